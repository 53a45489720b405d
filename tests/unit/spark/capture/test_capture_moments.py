"""Captures at particular moments: in flight, after the end, late; and what a plain copy would do."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from dagster_ckpt.errors import CaptureIncomplete, RestoreRefused
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from tests.helpers.spark.streaming import EAGER, SCHEMA, VARIANTS, Job, confs, discard, materialize, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dagster_ckpt.checkpoint.format.snapshot import Snapshot

pytestmark = pytest.mark.slow


def copy_naively(source: Path, target: Path, *besides: str) -> None:
    """Copy what is there, as far as it still is when its turn comes: Spark's maintenance deletes beside the query."""

    def copy_if_there(file: str, copy: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(file, copy)

    ignored = shutil.ignore_patterns(*besides, ".*")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored, copy_function=copy_if_there)


@pytest.mark.parametrize(
    ("query", "variant"),
    [
        ("stateless", "hdfs"),
        pytest.param("aggregation", "hdfs", marks=pytest.mark.exhaustive),
        pytest.param("chained", "rocks+changelog", marks=pytest.mark.exhaustive),
        pytest.param("join", "rocks", marks=pytest.mark.exhaustive),
    ],
)
def test_naive_copy_loses_batches_silently_where_a_capture_does_not(
    spark: SparkSession, tmp_path: Path, query: str, variant: str
) -> None:
    """A recursive copy that is slower than the query: commits/ first, the rest four batches later."""
    write_input(tmp_path / "in", range(12))
    job = Job(spark, query, VARIANTS[variant] | EAGER, tmp_path / "in")
    live, naive = tmp_path / "live", tmp_path / "naive"
    snapshots: list[Snapshot] = []

    def copy_meanwhile(batch: int) -> None:
        # Batch 4 runs: 3 is committed, 4 is planned, and nothing moves until this returns.
        if batch == 4:
            copy_naively(live / "commits", naive / "commits")
            snapshots.append(capture(CheckpointLocation(live), 3, tmp_path / "pins"))
        if batch == 8:
            copy_naively(live, naive, "commits")

    expected = job.run(live, before_batch=copy_meanwhile)
    discard(live)
    later = {batch: rows for batch, rows in expected.items() if 3 < batch < 12}

    from_capture = job.run(materialize(snapshots[0], tmp_path / "restored"))
    assert {batch: from_capture.get(batch) for batch in later} == later

    from_copy = job.run(naive)  # no error
    assert sorted(later.keys() - from_copy.keys()) == [4, 5, 6, 7]
    assert {batch: from_copy.get(batch) for batch in later} != later


@pytest.mark.exhaustive
def test_naive_copy_under_state_format_v2_does_not_even_start(spark: SparkSession, tmp_path: Path) -> None:
    """There the ids of the state come from commits/, which the copy has of an earlier batch."""
    write_input(tmp_path / "in", range(12))
    job = Job(spark, "aggregation", VARIANTS["rocks-v2+changelog"] | EAGER, tmp_path / "in")
    live, naive = tmp_path / "live", tmp_path / "naive"

    def copy_meanwhile(batch: int) -> None:
        if batch == 4:
            copy_naively(live / "commits", naive / "commits")
        if batch == 8:
            copy_naively(live, naive, "commits")

    job.run(live, before_batch=copy_meanwhile)
    with pytest.raises(StreamingQueryException):
        job.run(naive)


@pytest.mark.parametrize("variant", [pytest.param("hdfs", marks=pytest.mark.exhaustive), "rocks-v2+changelog"])
def test_in_flight_batch_replays_exactly_the_planned_rows(spark: SparkSession, tmp_path: Path, variant: str) -> None:
    write_input(tmp_path / "in", range(12))
    job = Job(spark, "aggregation", VARIANTS[variant] | EAGER, tmp_path / "in")
    live = tmp_path / "live"
    location = CheckpointLocation(live)
    snapshots: list[Snapshot] = []

    def capture_in_flight(batch: int) -> None:
        if batch == 5:
            assert (location.last_committed(), location.planned()) == (4, 5)
            snapshots.append(capture(location, 4, tmp_path / "pins"))

    expected = job.run(live, before_batch=capture_in_flight)
    discard(live)
    assert snapshots[0].facts.planned_batch == 5
    assert "checkpoint/offsets/5" in {file.path for file in snapshots[0].files}
    assert not any(file.path.endswith("/sources/0/6") for file in snapshots[0].files)

    restored = job.run(materialize(snapshots[0], tmp_path / "restored"), files_per_trigger=4)
    assert restored[5] == expected[5]  # one file, as planned; not four
    assert sorted(restored) == [5, 6, 7]  # then 6 to 9, and 10 to 11
    assert _final(expected | restored) == _final(expected)
    assert _final(restored)  # every key was seen again


def _final(output: dict[int, list[tuple[int, ...]]]) -> dict[int, tuple[int, ...]]:
    return {row[0]: row for batch in sorted(output) for row in output[batch]}


@pytest.mark.exhaustive
def test_completed_query_goes_on_with_new_data(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, "aggregation", VARIANTS["rocks+changelog"] | EAGER, tmp_path / "in")
    write_input(tmp_path / "in", range(8))
    expected = job.run(tmp_path / "whole")
    shutil.rmtree(tmp_path / "in")

    write_input(tmp_path / "in", range(5))
    job.run(tmp_path / "live")
    location = CheckpointLocation(tmp_path / "live")
    assert location.planned() is None
    snapshot = capture(location, 4, tmp_path / "pins")
    assert snapshot.facts.planned_batch is None
    discard(tmp_path / "live")

    write_input(tmp_path / "in", range(5, 8))
    restored = job.run(materialize(snapshot, tmp_path / "restored"))
    assert restored == {batch: expected[batch] for batch in (5, 6, 7)}


@pytest.mark.parametrize("variant", [pytest.param("rocks", marks=pytest.mark.exhaustive), "rocks-v2+changelog"])
def test_every_retained_batch_can_be_captured_late(spark: SparkSession, tmp_path: Path, variant: str) -> None:
    """With offset log v2, and with batch 0: Spark's default keeps the last hundred batches."""
    write_input(tmp_path / "in", range(6))
    settings = VARIANTS[variant] | {"spark.sql.streaming.offsetLog.formatVersion": "2"}
    job = Job(spark, "aggregation", settings, tmp_path / "in")
    expected = job.run(tmp_path / "live")
    location = CheckpointLocation(tmp_path / "live")
    assert location.offsets(3).version == 2
    assert location.offsets(3).sources == (("0", '{"logOffset":3}'),)
    snapshots = {batch: capture(location, batch, tmp_path / f"pins-{batch}") for batch in range(6)}
    discard(tmp_path / "live")
    for batch in (0, 3):
        restored = job.run(materialize(snapshots[batch], tmp_path / f"restored-{batch}"))
        assert restored == {later: expected[later] for later in range(batch + 1, 6)}


def test_asynchronous_progress_restarts_from_the_last_durable_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Only every so many batches are in offsets/ and commits/; the one before is not N - 1."""
    write_input(tmp_path / "in", range(40))

    def start(location: Path, milliseconds: int) -> StreamingQuery:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        return (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(location))
            .option("asyncProgressTrackingEnabled", "true")
            .option("asyncProgressTrackingCheckpointIntervalMs", str(milliseconds))
            .trigger(processingTime="0 seconds")
            .start()
        )

    gaps: list[int] = []
    for milliseconds in (500, 2000, 100):  # how many batches that is depends on the machine
        location = CheckpointLocation(tmp_path / f"live-{milliseconds}")
        query = start(location.path, milliseconds)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        durable = sorted(int(name) for name in location.names("commits") if name.isdigit())
        gaps = [n for n in durable[2:-1] if (location.previous_offsets(n) or 0) < n - 1]
        if gaps:
            break
    assert gaps, durable
    batch = gaps[0]
    snapshot = capture(location, batch, tmp_path / "pins")
    discard(location.path)

    read_by_then = location_offset(snapshot) + 1
    query = start(materialize(snapshot, tmp_path / "restored"), milliseconds)
    try:
        query.processAllAvailable()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
    finally:
        query.stop()
    assert rows == 8 * (40 - read_by_then)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rocks", pytest.param("rocks-v2+changelog", marks=pytest.mark.exhaustive)])
def test_offline_repartition(spark: SparkSession, tmp_path: Path, variant: str) -> None:
    """It leaves the operator's metadata with the old number of partitions."""
    job = Job(spark, "aggregation", VARIANTS[variant], tmp_path / "in")
    write_input(tmp_path / "in", range(6))
    expected = job.run(tmp_path / "whole")
    shutil.rmtree(tmp_path / "in")
    write_input(tmp_path / "in", range(4))
    job.run(tmp_path / "live")
    with confs(spark, job.settings):
        spark._streamingCheckpointManager.repartition(str(tmp_path / "live"), 3)  # as batch 4

    location = CheckpointLocation(tmp_path / "live")
    before, after = (capture(location, batch, tmp_path / f"pins-{batch}") for batch in (3, 4))
    discard(location.path)
    assert (before.facts.partitions, after.facts.partitions) == (2, 3)
    assert before.facts.planned_batch is None  # half a repartition is not restartable
    write_input(tmp_path / "in", range(4, 6))
    for name, snapshot in (("before", before), ("after", after)):
        restored = job.run(materialize(snapshot, tmp_path / name))
        assert [restored[batch] for batch in sorted(restored)] == [expected[4], expected[5]]


def location_offset(snapshot: Snapshot) -> int:
    offset = snapshot.facts.sources[0].offset
    assert isinstance(offset, dict)
    number = offset["logOffset"]
    assert isinstance(number, int)
    return number


def test_continuous_processing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    location = CheckpointLocation(tmp_path / "live")
    query = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 5)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(location.path))
        .trigger(continuous="100 milliseconds")
        .start()
    )
    try:
        while location.last_committed() is None:
            query.awaitTermination(1)
    finally:
        query.stop()
    batch = location.last_committed()
    assert batch is not None
    with pytest.raises(RestoreRefused, match="continuous processing"):
        capture(location, batch, tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


def test_purged_batch_is_incomplete(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", range(8))
    Job(spark, "aggregation", VARIANTS["hdfs"] | EAGER, tmp_path / "in").run(tmp_path / "live")
    with pytest.raises(CaptureIncomplete):
        capture(CheckpointLocation(tmp_path / "live"), 0, tmp_path / "pins")
    assert not (tmp_path / "pins").exists()


def test_source_without_a_log_of_files_keeps_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """The rate source's log holds when it began; without it, it would begin again."""
    location = CheckpointLocation(tmp_path / "live")
    with confs(spark, EAGER):
        query = (
            spark.readStream.format("rate")
            .option("rowsPerSecond", 5)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(location.path))
            .start()
        )
        try:
            while (location.last_committed() or 0) < 3:
                query.awaitTermination(1)
        finally:
            query.stop()
    batch = location.last_committed()
    assert batch is not None
    paths = {file.path for file in capture(location, batch, tmp_path / "pins").files}
    assert "checkpoint/sources/0/0" in paths
