"""The names of the columns by which a query keeps state: in Spark's schema files, in a plan, and compared."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest

from dagster_ckpt.checkpoint import Operator, materialize_checkpoint
from dagster_ckpt.spark.files import key_names
from dagster_ckpt.spark.preflight.query_checks import state_keys_finding
from dagster_ckpt.spark.query import state_keys
from dagster_ckpt.spark.verdict import Finding, Verdict
from tests.jobs.harness import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Rows: TypeAlias = "Callable[[DataFrame], DataFrame]"
FINE = "as in the checkpoint, where they have names."


def _text(text: str) -> bytes:
    """A text as Java writes it: each half of a pair of surrogates for itself."""
    halves = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(halves) // 2}H", halves)
    data = b"".join(chr(unit).encode("utf-8", "surrogatepass") for unit in units)
    return struct.pack(">H", len(data)) + data


def _schema(*names: str, version: int = 2, piece: int = 40) -> bytes:
    """A schema as Spark writes it, whose key has columns of these names."""
    fields = [{"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in names]
    key, value = json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False), '{"type":"struct","fields":[]}'
    if version == 1:
        return _text("v1") + _text(key) + _text(value)
    written = _text(f"v{version}")
    for text in (key, value):
        pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
        written += struct.pack(">i", len(pieces)) + b"".join(map(_text, pieces))
    return written


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("names", [(), ("k",), ("window", "größe", "😀")])
def test_names_in_a_schema(names: tuple[str, ...], version: int) -> None:
    assert key_names(_schema(*names, version=version)) == names


@pytest.mark.parametrize("data", [b"", _schema("k")[:60], _schema("k", version=3), _text("v2") + b"\x7f\xff\xff\xff"])
def test_what_is_no_schema_is_no_schema(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|version"):
        key_names(data)


def _grouped(*keys: str) -> Rows:
    return lambda rows: rows.groupBy(*keys).count()


def _of_sessions(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return rows.withWatermark("ts", "1 hour").groupBy(F.session_window("ts", "5 minutes"), "k").count()


def _by_window(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    by_minute = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("v"))
    return by_minute.groupBy(F.window(F.window_time("window"), "10 minutes")).agg(F.sum("v"))


def _computed(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("k", "q").groupBy((rows["id"] + 1).alias("more"), "q").count()


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.select("k", "id").distinct()


def _within_watermark(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"])


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        (_grouped("K", "v"), "update"),
        (_computed, "update"),
        (_of_sessions, "append"),
        (_by_window, "append"),
        (_distinct, "append"),
        (_within_watermark, "append"),
    ],
    ids=["columns", "computed", "sessions", "two aggregations", "distinct", "within a watermark"],
)
def test_the_plan_tells_the_names_that_spark_writes(
    spark: SparkSession, tmp_path: Path, query: Rows, mode: str
) -> None:
    bench = Bench(spark, tmp_path)
    bench.land(1)
    writer = query(bench.read(spark)).writeStream.outputMode(mode)
    live = tmp_path / "live"
    started = writer.format("noop").option("checkpointLocation", str(live)).trigger(availableNow=True).start()
    started.awaitTermination()
    written = [key_names(file.read_bytes()) for file in sorted(live.glob("state/*/0/_metadata/schema"))]
    told = [names for _, names in state_keys(writer)]
    if query is _of_sessions:
        written = [names[:-1] for names in written]
    assert sorted(written) == sorted(told)
    assert told


@pytest.fixture(scope="module")
def bench(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job with a checkpoint of a query with state, which is unpacked."""
    bench = Bench(spark, tmp_path_factory.mktemp("keys") / "job")
    bench.tick(1)
    materialize_checkpoint(bench.catalog, bench.checkpoints()[-1], bench.root / "unpacked")
    return bench


def _found(bench: Bench, operator: str, schema: bytes | None, query: Rows, tmp_path: Path) -> Finding:
    """The finding for a checkpoint whose state has another operator and another schema."""
    location = tmp_path / "checkpoint"
    shutil.copytree(bench.root / "unpacked" / "checkpoint", location)
    file = location / "state" / "0" / "0" / "_metadata" / "schema"
    file.unlink() if schema is None else file.write_bytes(schema)
    restored = bench.checkpoints()[-1]
    operators = [Operator(id="0", name=operator, partitions=2, stores=["default"])]
    restored = replace(restored, facts=restored.facts.model_copy(update={"operators": operators}))
    return state_keys_finding(bench.catalog, restored, query(bench.read(bench.spark)).writeStream, location)


_SAVE, _SESSIONS, _DEDUPE = "stateStoreSave", "sessionWindowStateStoreSaveExec", "dedupe"


@pytest.mark.parametrize(
    ("operator", "names", "query", "differs"),
    [
        (_SAVE, ["k"], _grouped("k"), False),
        (_SAVE, ["K"], _grouped("k"), False),
        (_SAVE, ["v"], _grouped("k"), True),
        (_SAVE, ["k", "v"], _grouped("v", "k"), True),
        (_SAVE, ["id", "k"], _grouped("k"), False),  # Spark refuses another number itself
        (_SAVE, ["_groupingexpression"], _grouped("k"), False),
        (_SAVE, ["(k#7 + 1)"], _grouped("k"), False),
        (_SAVE, ["_groupingexpression", "v"], _computed, True),
        (_SAVE, ["window", "id"], _by_window, True),
        (_SAVE, ["window"], _by_window, False),
        (_SESSIONS, ["k", "sessionStartTime"], _of_sessions, False),
        (_SESSIONS, ["v", "sessionStartTime"], _of_sessions, True),
        (_DEDUPE, ["id", "k"], _distinct, False),  # some releases sort them
        (_DEDUPE, ["id", "v"], _distinct, True),
        ("dedupeWithinWatermark", ["v"], _within_watermark, True),
        ("symmetricHashJoin", ["v"], _grouped("k"), False),
        ("of a later Spark", ["v"], _grouped("k"), False),
    ],
)
def test_another_column_of_the_same_type_is_found(
    bench: Bench, tmp_path: Path, operator: str, names: list[str], query: Rows, *, differs: bool
) -> None:
    found = _found(bench, operator, _schema(*names), query, tmp_path)
    if not differs:
        assert (found.verdict, found.reason) == (Verdict.RESTORABLE, FINE)
        return
    assert found.verdict is Verdict.WITH_LOSS
    assert not found.only_doubles
    shown = names[:-1] if operator == _SESSIONS else names
    assert f"operator 0 ({operator}) has its state by {', '.join(shown)}, and the query keeps such" in found.reason


def test_a_schema_that_is_not_unpacked_is_fetched(bench: Bench, tmp_path: Path) -> None:
    """As where the storage copies the state to a live location of its own."""
    found = _found(bench, _DEDUPE, None, lambda rows: rows.dropDuplicates(["v"]), tmp_path)
    assert "has its state by id, and the query keeps such state by v" in found.reason


def test_a_damaged_schema_is_left_to_spark(bench: Bench, tmp_path: Path) -> None:
    found = _found(bench, _SAVE, b"\x00\x02v2\x00", _grouped("k"), tmp_path)
    assert found.verdict is Verdict.RESTORABLE
    assert found.reason.startswith("not checked: The schema of the state of operator 0 is not what it must be")
