"""Going back to a checkpoint with Spark's file sink: what Spark reads and what lies there, exactly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.spark.streaming import QUERIES, SCHEMA, VARIANTS, confs, discard, materialize, tree, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_FILES = 10
_PARTITION = "part of: 100%"  # a column and values that the log must escape
_COMPACT_EVERY_THIRD = {"spark.sql.streaming.fileSink.log.compactInterval": "3"}


@dataclass
class Pipeline:
    """A query into a JSON output directory, partitioned if it is stateless."""

    spark: SparkSession
    query: str
    source: Path
    output: Path

    def run(self, location: Path, *, files_per_trigger: int = 1) -> None:
        plan, _ = QUERIES[self.query]
        with confs(self.spark, VARIANTS["rocks+changelog"] | _COMPACT_EVERY_THIRD):
            rows = plan(
                lambda: (
                    self.spark.readStream.schema(SCHEMA)
                    .option("maxFilesPerTrigger", files_per_trigger)
                    .json(str(self.source))
                )
            )
            writer = rows.selectExpr("id", "v", f"concat('a b:', id % 3) AS `{_PARTITION}`").writeStream
            if self.query == "stateless":
                writer = writer.partitionBy(_PARTITION)
            query = (
                writer.format("json")
                .option("path", str(self.output))
                .option("checkpointLocation", str(location))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            finally:
                query.stop()

    def read_by_spark(self) -> Counter[tuple[int, int]]:
        rows = self.spark.read.schema(f"id int, v int, `{_PARTITION}` string").json(str(self.output)).collect()
        return Counter((row["id"], row["v"]) for row in rows)

    def read_raw(self) -> Counter[tuple[int, int]]:
        lines = [
            json.loads(line)
            for file in self.output.rglob("part-*.json")
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        return Counter((line["id"], line["v"]) for line in lines)


# Batch 4 lies between two compactions of the log, batch 5 on one.
@pytest.mark.parametrize(
    ("query", "files_per_trigger", "back_to"),
    [
        ("stateless", 1, 4),
        ("stateless", 3, 5),
        ("deduplication", 3, 4),
        pytest.param("stateless", 3, 4, marks=pytest.mark.exhaustive),
        pytest.param("stateless", 1, 5, marks=pytest.mark.exhaustive),
        pytest.param("deduplication", 1, 4, marks=pytest.mark.exhaustive),
        pytest.param("deduplication", 1, 5, marks=pytest.mark.exhaustive),
        pytest.param("deduplication", 3, 5, marks=pytest.mark.exhaustive),
    ],
)
def test_rollback_makes_the_output_exact(
    spark: SparkSession, tmp_path: Path, query: str, files_per_trigger: int, back_to: int
) -> None:
    write_input(tmp_path / "in", range(_FILES))
    pipeline = Pipeline(spark, query, tmp_path / "in", tmp_path / "out dir")
    sink = FileSink(pipeline.output)
    pipeline.run(tmp_path / "checkpoint")
    expected = pipeline.read_by_spark()
    assert pipeline.read_raw() == expected
    assert sum(expected.values()) > _FILES * 4
    assert sink.last_batch() == _FILES - 1
    assert {path.name for path in sink.committed_files()} == {
        path.name for path in pipeline.output.rglob("part-*.json")
    }

    live = CheckpointLocation(tmp_path / "checkpoint")
    reader = SparkFileSink(pipeline.output).position_reader(tmp_path, live)
    snapshot = capture(live, back_to, tmp_path / "pins", sink=reader)
    assert snapshot.sink == sink.position(back_to)
    restored = materialize(snapshot, tmp_path / "restored")
    (restored / "offsets" / str(back_to + 1)).unlink()  # without it, the boundaries are chosen anew
    discard(tmp_path / "checkpoint")

    position = tmp_path / "restored" / "sink" / "_spark_metadata"
    sink.check(position)
    undone = sink.rollback_to(position, back_to)
    assert undone.log_entries_removed == _FILES - 1 - back_to
    assert undone.data_files_removed > 0
    assert undone.bytes_removed > 0
    assert sink.last_batch() == back_to
    assert pipeline.read_raw() == pipeline.read_by_spark()
    after = tree(pipeline.output)
    again = sink.rollback_to(position, back_to)
    assert (again.log_entries_restored, again.log_entries_removed, again.data_files_removed) == (0, 0, 0)
    assert tree(pipeline.output) == after

    pipeline.run(restored, files_per_trigger=files_per_trigger)
    assert pipeline.read_by_spark() == expected
    assert pipeline.read_raw() == expected


def test_without_a_rollback_other_boundaries_lose_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Why the sink is rolled back at all: it skips batch ids it has seen without looking at the rows."""
    write_input(tmp_path / "in", range(_FILES))
    pipeline = Pipeline(spark, "stateless", tmp_path / "in", tmp_path / "out")
    pipeline.run(tmp_path / "checkpoint")
    expected = pipeline.read_by_spark()
    snapshot = capture(CheckpointLocation(tmp_path / "checkpoint"), 4, tmp_path / "pins")
    restored = materialize(snapshot, tmp_path / "restored")
    sink = FileSink(pipeline.output)
    for name in sink.position_files(_FILES - 1)[-1:]:
        name.unlink()  # the last batch of the old run was never committed
    (restored / "offsets" / "5").unlink()

    pipeline.run(restored, files_per_trigger=3)
    lost = expected - pipeline.read_by_spark()
    assert lost
