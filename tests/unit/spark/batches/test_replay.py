"""Running batches again as they were, where the query itself has no trigger for a single batch."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.spark.batches.replay import replay_batches
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.live.on_disk import LocalLive
from tests.helpers.spark.streaming import SCHEMA, materialize, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@pytest.mark.slow
def test_a_query_with_asynchronous_progress_replays_and_is_asynchronous_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def writer(location: Path, files: int) -> DataStreamWriter:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(str(tmp_path / "in"))
        return (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(location))
            .option("asyncProgressTrackingEnabled", "true")
            .option("asyncProgressTrackingCheckpointIntervalMs", "0")
            .trigger(processingTime="0 seconds")
        )

    def run(again: DataStreamWriter) -> list[tuple[int, int]]:
        query = again.start()
        try:
            assert "Async" in query._jsq.streamingQuery().getClass().getName()
            query.processAllAvailable()
        finally:
            query.stop()
        return [(report.batchId, report.numInputRows) for report in query.recentProgress if report.numInputRows]

    def raise_failure(query: StreamingQuery) -> None:
        if (failure := query.exception()) is not None:
            raise failure

    write_input(tmp_path / "in", range(6))
    live = tmp_path / "live"
    assert run(writer(live, 1)) == [(batch, 8) for batch in range(6)]
    restored = materialize(capture(CheckpointLocation(live), 1, tmp_path / "pins"), tmp_path / "restored")
    plans = PlannedBatches(CheckpointLocation(live), 1).new()
    assert [plan.batch for plan in plans] == [2, 3, 4, 5]

    resumed, done = writer(restored, 100), list[int]()
    live_again = LocalLive(restored)
    assert replay_batches(spark, resumed, live_again, plans, Event(), raise_failure, lambda _: None, done.append)
    assert done == [2, 3, 4]
    write_input(tmp_path / "in", range(6, 8))
    assert run(resumed) == [(5, 8), (6, 16)]
