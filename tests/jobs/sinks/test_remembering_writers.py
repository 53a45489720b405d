"""Writers that keep by themselves which batches of a query they have seen: covered, or refused by name.

After a rollback such a writer skips the batches that run again, because it has their numbers already. What these
batches have then, and did not have before, is lost.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.query.writer_plan import plan_of
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from tests.jobs.harness import NEVER, Bench, deduplicated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TABLE_FORMATS = [
    "delta",
    "DELTA",
    "org.apache.spark.sql.delta.sources.DeltaDataSource",
    "io.delta.sql.Anything",
    "iceberg",
    "Iceberg",
    "org.apache.iceberg.spark.source.IcebergSource",
    "hudi",
    "org.apache.hudi.DefaultSource",
]
_PARQUET_BY_CLASS = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"


def custom(writer: DataStreamWriter) -> DataStreamWriter:
    return sink_to(writer, CustomSink("orders", position=lambda batch: batch, rollback_to=lambda *_: None))


def as_it_is(writer: DataStreamWriter) -> DataStreamWriter:
    return writer


def _at_least_once() -> Any:
    return NEVER.model_copy(update={"mode": CheckpointingMode.AT_LEAST_ONCE})


@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("wrapped", [custom, as_it_is])
@pytest.mark.parametrize("name", _TABLE_FORMATS)
def test_table_formats_are_refused(
    bench: Bench,
    spark: SparkSession,
    name: str,
    wrapped: Callable[[DataStreamWriter], DataStreamWriter],
    mode: CheckpointingMode,
) -> None:
    bench.land(1)
    writer = wrapped(bench.read(spark).writeStream.format(name).option("path", "/data/orders"))
    with pytest.raises(InvalidConfiguration) as refused:
        plan_of(writer).check("tiny", mode)
    assert f"{name.lower()} writer of job 'tiny'" in refused.value.message
    assert "keeps by itself which batches" in refused.value.message
    assert "lost" in refused.value.message
    for sink in ("Delta", "Iceberg"):
        assert (f"{sink}Sink" in refused.value.hint) == (sink.lower() in name.lower())
    assert ("ForeachBatchSink" in refused.value.hint) == ("hudi" in name.lower())
    assert ("AT_LEAST_ONCE" in refused.value.message) == (mode is CheckpointingMode.AT_LEAST_ONCE)


def test_the_default_format_of_the_session_counts(bench: Bench, spark: SparkSession) -> None:
    """A query that names no format."""
    bench.land(1)
    kept = spark.conf.get("spark.sql.sources.default")
    spark.conf.set("spark.sql.sources.default", "delta")
    try:
        writer = custom(bench.read(spark).writeStream.option("path", "/data/orders"))
        with pytest.raises(InvalidConfiguration, match="delta writer of job 'tiny'"):
            plan_of(writer).check("tiny", CheckpointingMode.EXACTLY_ONCE)
    finally:
        spark.conf.set("spark.sql.sources.default", kept or "parquet")


@pytest.mark.parametrize("mode", CheckpointingMode)
def test_a_job_that_writes_to_a_table_format_touches_nothing(bench: Bench, mode: CheckpointingMode) -> None:
    """A job that wrote to a file sink so far."""
    config = NEVER.model_copy(update={"mode": mode})
    bench.tick(1, bench.job(config=config))
    touched: list[int] = []

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        writer = deduplicated(bench, session).format("delta")
        return sink_to(writer, CustomSink("orders", position=str, rollback_to=lambda batch, _: touched.append(batch)))

    for restore_from in ("latest", "chk-1", "none"):
        refusal = bench.refused(InvalidConfiguration, bench.job(config=config, query=query), restore_from=restore_from)
        assert "delta writer" in refusal.message
    assert not touched
    bench.tick(1, bench.job(config=config))
    bench.assert_exact()


@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("name", ["parquet", "xml", _PARQUET_BY_CLASS])
def test_sparks_file_sink_in_a_custom_sink_is_refused(
    bench: Bench, spark: SparkSession, name: str, mode: CheckpointingMode
) -> None:
    bench.land(1)
    writer = custom(bench.write(bench.read(spark)).format(name))
    with pytest.raises(InvalidConfiguration) as refused:
        plan_of(writer).check("tiny", mode)
    assert "_spark_metadata" in refused.value.message
    assert "'orders'" in refused.value.message
    assert "without sink_to" in refused.value.hint


def test_a_format_that_takes_the_place_of_foreach_batch_is_refused(bench: Bench, spark: SparkSession) -> None:
    """Spark would write by that format, and the sink would never be called."""
    bench.land(1)
    sink = ForeachBatchSink("delays", lambda *_: None, rollback_to=lambda *_: None)
    writer = sink_to(bench.read(spark), sink).format("noop")
    with pytest.raises(InvalidConfiguration, match=r"'delays'.*noop"):
        plan_of(writer).check("tiny", CheckpointingMode.EXACTLY_ONCE)


def test_why_it_is_refused(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    """Spark alone: its checkpoint goes back, the data too, and its file sink skips the batch by its log."""
    kept = tmp_path / "kept"
    location = tmp_path / "location"

    def run() -> None:
        bench.land(1)
        bench.files_per_trigger = 100
        deduplicated(bench, spark).option("checkpointLocation", str(location)).start().awaitTermination()

    run()
    shutil.copytree(location, kept)
    first = set(bench.sink.glob("part-*"))
    run()
    for file in set(bench.sink.glob("part-*")) - first:
        file.unlink()
    shutil.rmtree(location)
    shutil.copytree(kept, location)
    run()
    assert bench.in_raw_directory() < bench.expected(), "the rows of the second and the third file are lost"


@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("name", [_PARQUET_BY_CLASS, "xml"])
def test_sparks_file_sink_is_covered_by_any_name(bench: Bench, name: str, mode: CheckpointingMode) -> None:
    """As with ``parquet``: also under ``AT_LEAST_ONCE`` the rollback takes its log back."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return deduplicated(bench, session).format(name).option("rowTag", "row")

    job = bench.job(config=NEVER.model_copy(update={"mode": mode}), query=query)
    bench.tick(1, job)
    bench.tick(1, job)
    bench.files_per_trigger = 5
    launch = bench.tick(1, job, restore_from="chk-1")
    assert "log entries removed" in launch.started.sink
    read = bench.spark.read.schema("id INT, v INT").option("rowTag", "row")
    rows = read.format(name).load(str(bench.sink)).select("id", "v").collect()
    assert sorted(map(tuple, rows)) == sorted(bench.expected())
