"""By which columns a query keeps its state: as its plan tells, and compared with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest

from dagster_ckpt.checkpoint import CheckpointMetadata, Facts, StateKeys
from dagster_ckpt.spark.preflight.query_checks import state_keys_finding
from dagster_ckpt.spark.query import state_keys
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.manifests import MANIFEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Rows: TypeAlias = "Callable[[DataFrame], DataFrame]"
_Columns: TypeAlias = list[str | None]


def _rows(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("CAST(value AS INT) id", "CAST(value AS INT) k", "timestamp ts", "CAST(value AS INT) v")


def _writer(rows: DataFrame) -> DataStreamWriter:
    return rows.writeStream.format("noop")


def _computed(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("k", "q").groupBy((rows["id"] + 1).alias("more"), "q").count()


def _windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    by_minute = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("v"))
    return by_minute.groupBy(F.window(F.window_time("window"), "10 minutes")).agg(F.sum("v"))


def _joined(rows: DataFrame) -> DataFrame:
    other = rows.selectExpr("id AS other", "k AS more", "v AS w")
    same = (rows["id"] == other["other"]) & (rows["k"] + 1 == other["more"])
    return rows.join(other, same & (rows["v"] > other["w"]))


def _of_text(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("k + 1", "id").dropDuplicates()


def _by_field(rows: DataFrame) -> DataFrame:
    """As Spark names a field of a struct, with the number that the column has in this JVM."""
    return rows.withColumnRenamed("k", "of#12[k]").groupBy("`of#12[k]`", "id").count()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (lambda rows: rows.groupBy("K", "v").count(), [("aggregation", ["K", "v"])]),
        (_computed, [("aggregation", [None, "q"])]),
        (_windows, [("aggregation", ["window"]), ("aggregation", ["window", "k"])]),
        (lambda rows: rows.select("k", "id").distinct(), [("dedupe", ["k", "id"])]),
        (_of_text, [("dedupe", [None, "id"])]),
        (
            lambda rows: rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["v", "id"]),
            [("dedupeWithinWatermark", ["v", "id"])],
        ),
        (_joined, [("symmetricHashJoin", ["id", None, "other", "more"])]),
        (_by_field, [("aggregation", [None, "id"])]),
        (lambda rows: rows.limit(3), [("limit", [])]),
        (lambda rows: rows.select("k"), []),
    ],
    ids=["columns", "computed", "two", "distinct", "of a text", "watermark", "join", "field", "limit", "stateless"],
)
def test_what_the_plan_tells(spark: SparkSession, query: Rows, told: list[tuple[str, _Columns]]) -> None:
    writer = _writer(query(_rows(spark)))
    assert state_keys(writer) == [StateKeys(operator=operator, columns=columns) for operator, columns in told]


def test_a_plan_that_does_not_tell(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Spark that has another name for it."""
    monkeypatch.setattr("dagster_ckpt.spark.query.key_columns._KEYS", {"Aggregate": "keysOfAnotherRelease"})
    assert state_keys(_writer(_rows(spark).groupBy("k").count())) is None


def _taken(*keys: tuple[str, _Columns]) -> CheckpointMetadata:
    return replace(MANIFEST, facts=Facts(state_keys=_keys(*keys)))


def _keys(*keys: tuple[str, _Columns]) -> list[StateKeys]:
    return [StateKeys(operator=operator, columns=columns) for operator, columns in keys]


_BY_K: tuple[str, _Columns] = ("aggregation", ["window", "k"])
_BY_V: tuple[str, _Columns] = ("aggregation", ["window", "v"])


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ([_BY_K], [("aggregation", ["window", "K"])]),
        ([_BY_K], [("aggregation", ["window", None])]),
        ([_BY_K], [("aggregation", ["k"])]),  # another number of keys is refused by Spark
        ([_BY_K], [("dedupe", ["window", "v"])]),
        ([_BY_K], [_BY_K, ("limit", [])]),
        ([], []),
    ],
)
def test_columns_that_may_be_the_same(was: list[tuple[str, _Columns]], now: list[tuple[str, _Columns]]) -> None:
    assert state_keys_finding(_taken(*was), _keys(*now)).verdict is Verdict.RESTORABLE


@pytest.mark.parametrize(
    ("was", "now", "number"),
    [
        ([_BY_K], [_BY_V], 1),
        ([_BY_K, _BY_V], [_BY_K, _BY_K], 2),
        ([_BY_K, _BY_V], [_BY_V, _BY_K], 1),
        ([("dedupe", ["k", "v"])], [("dedupe", ["v", "k"])], 1),
        ([("aggregation", [None, "k"])], [("aggregation", ["k", "v"])], 1),
    ],
)
def test_columns_that_are_others(was: list[tuple[str, _Columns]], now: list[tuple[str, _Columns]], number: int) -> None:
    found = state_keys_finding(_taken(*was), _keys(*now))
    assert found.verdict is Verdict.WITH_LOSS
    assert not found.only_doubles
    assert f"(stateful operator {number}) by " in found.reason


def test_who_does_not_tell_is_not_compared() -> None:
    assert "the checkpoint does not tell" in state_keys_finding(MANIFEST, _keys(_BY_K)).reason
    told = _taken(_BY_K)
    assert "the plan does not tell" in state_keys_finding(told, None).reason
    assert CheckpointMetadata.decode(told.encode(), "here").facts.state_keys == _keys(_BY_K)
