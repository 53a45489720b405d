"""What is told of a query before it runs is what Spark then writes down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.query.logical_plan import StatefulKind, notices_reading, sources_of, stateful_kinds
from tests.helpers.spark.streaming import SCHEMA, write_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Combine = Callable[[DataFrame, DataFrame], DataFrame]


@pytest.mark.parametrize(
    ("combine", "least"),
    [
        pytest.param(lambda one, _: one.union(one), 1, id="one relation twice"),
        pytest.param(lambda one, other: one.union(other), 2, id="two relations"),
    ],
)
def test_sources_are_counted_as_spark_does(spark: SparkSession, tmp_path: Path, combine: Combine, least: int) -> None:
    """Spark takes one relation that is read twice for two sources; its plan does not show that before it starts."""
    write_input(tmp_path / "in", range(1))
    one, other = (spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")) for _ in range(2))
    writer = combine(one, other).select("id").writeStream.format("noop").trigger(availableNow=True)
    assert sources_of(writer) == range(least, 3)
    query = writer.option("checkpointLocation", str(tmp_path / "live")).start()
    query.awaitTermination()
    assert len(CheckpointLocation(tmp_path / "live").offsets(0).sources) == 2


def test_what_is_no_stream_keeps_no_state(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", range(1))
    table = spark.read.schema(SCHEMA).json(str(tmp_path / "in")).dropDuplicates(["id"]).select("id")
    stream = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    assert not stateful_kinds(stream.join(table, "id").writeStream)
    assert stateful_kinds(stream.join(table, "id").distinct().writeStream) == {StatefulKind.DEDUPE: 1}


def test_a_source_that_may_notice_that_it_is_opened_once_more_is_told(spark: SparkSession, tmp_path: Path) -> None:
    def noticed(name: str, **options: str) -> str:
        return notices_reading(spark.readStream.format(name).options(**options).load().writeStream)

    (tmp_path / "in").mkdir()
    assert noticed("rate") == ""
    assert "kafka.group.id" in noticed("rate", **{"kafka.group.id": "mine"})
    assert noticed("text", path=str(tmp_path / "in"), cleanSource="delete") == "", "it deletes only what it is told of"
    assert noticed("socket", host="127.0.0.1", port="1") == "source 0 (socket) may notice that it is read"
