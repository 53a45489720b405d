"""Launches that would lose or double data, or cannot work: refused before anything is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.errors import (
    CorruptRecord,
    ForeignCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
    QueryNotBuilt,
    RestoreRefused,
    RestoreWithLoss,
    SinkMismatch,
    SinkNotEmpty,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.spark.events import SparkStarted, Started
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Lie
from tests.helpers.mounts import mounted
from tests.jobs.harness import Bench, copied, deduplicated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROOT = Path(__file__).resolve().parents[3]


def _goes_on(bench: Bench) -> None:
    went_on = bench.tick(1)
    assert went_on.started.restored is not None
    assert went_on.started.restored.name == "chk-3"
    bench.assert_exact()


# --- storage ---------------------------------------------------------------------------------------------------------


def test_a_storage_that_refuses_writes(ticked: Bench) -> None:
    with mounted("--bind", str(ticked.storage), str(ticked.storage)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(ticked.storage)], check=True)
        before = ticked.photograph()
        launch = ticked.launch()
        with pytest.raises(StorageUnusable) as refused:
            launch.result()
        assert ticked.photograph() == before
        assert not launch.events  # nothing was started, not even Spark
    assert str(ticked.storage) in refused.value.message
    assert "Read-only file system" in refused.value.message
    assert "writable" in refused.value.hint
    _goes_on(ticked)


@pytest.mark.parametrize(
    ("operation", "says"),
    [("create", "cannot be written"), ("read", "cannot be written"), ("list", "cannot be written")],
)
def test_a_storage_that_fails(ticked: Bench, operation: str, says: str) -> None:
    broken = FaultInjectingFileSystem(ticked.filesystem, lambda asked: Fail() if asked.name == operation else None)
    before = ticked.photograph()
    launch = ticked.launch(ticked.job(filesystem=broken))
    with pytest.raises(StorageUnusable, match=says) as refused:
        launch.result()
    assert ticked.photograph() == before
    assert not launch.events
    assert str(ticked.storage) in refused.value.message
    assert refused.value.hint


def test_a_storage_without_exclusive_create(ticked: Bench) -> None:
    broken = FaultInjectingFileSystem(ticked.filesystem)
    broken.plan = lambda asked: Lie() if asked.name == "create" and asked.sequence > 0 else None
    launch = ticked.launch(ticked.job(filesystem=broken))
    with pytest.raises(StorageUnusable, match="created twice") as refused:
        launch.result()
    assert "exclusive create" in refused.value.hint
    assert not launch.events


def test_a_storage_that_lists_nothing_voids_no_checkpoint(ticked: Bench) -> None:
    """As a mount does that went away after what was restored had been read: a start records what it finds complete."""
    lineage = f"tiny/{ticked.catalog.job_ids()[0]}"
    before = find_newest(ticked.catalog).metadata
    broken = FaultInjectingFileSystem(ticked.filesystem)
    broken.plan = lambda asked: Lie() if (asked.name, asked.path) == ("list", lineage) else None
    refusal = ticked.refused(StorageError, ticked.job(filesystem=broken))
    assert f"{ticked.storage}/{lineage}" in refusal.message
    assert "mounted" in refusal.hint
    assert find_newest(ticked.catalog).metadata == before
    _goes_on(ticked)


def test_a_working_directory_that_refuses_writes(ticked: Bench) -> None:
    ticked.working.mkdir(exist_ok=True)
    with mounted("--bind", str(ticked.working), str(ticked.working)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(ticked.working)], check=True)
        refusal = ticked.refused(StorageUnusable)
    assert str(ticked.working) in refusal.message
    assert "Read-only file system" in refusal.message
    assert "working_directory" in refusal.hint
    _goes_on(ticked)


@pytest.mark.parametrize("record", ["owner", "heartbeat", "epochs/e-0000000003.choice", "epochs/e-0000000003.end"])
def test_a_record_of_the_job_that_cannot_be_read(ticked: Bench, record: str) -> None:
    path = ticked.storage / "tiny" / "control" / record
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refusal = ticked.refused(CorruptRecord)
    assert str(path) in refusal.message
    assert refusal.hint
    path.write_bytes(whole)
    _goes_on(ticked)


def test_the_directory_of_another_deployment(ticked: Bench) -> None:
    refusal = ticked.refused(ForeignCheckpoint, ticked.job(deployment="staging"))
    assert f"{ticked.storage}/tiny" in refusal.message
    assert "'tests'" in refusal.message
    assert "'staging'" in refusal.message
    assert "deployment='tests'" in refusal.hint
    _goes_on(ticked)


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", ["9 ms", "0 s", "-1 s"])
def test_an_interval_under_10_ms(interval: str) -> None:
    with pytest.raises(InvalidConfiguration, match="interval") as refused:
        CheckpointConfig(interval=interval)
    assert "10 s" in refused.value.hint


# --- two runs of one job ---------------------------------------------------------------------------------------------

_HOLDER = """
import sys
from pathlib import Path
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.checkpoint.control.heartbeat import Heart
from dagster_ckpt.filesystem import PosixFileSystem
heart = Heart(HeartbeatFile(PosixFileSystem(Path(sys.argv[1])), "tiny"), SystemClock(), epoch=4, run_id="the-other-run")
heart.start()
print("alive", flush=True)
sys.stdin.read()
heart.stop()
"""


@pytest.fixture
def other_run(ticked: Bench) -> Iterator[subprocess.Popen[str]]:
    """Another process that drives the job, as far as its heartbeat tells."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(ticked.storage)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "alive\n"
        yield process
        process.kill()


def test_two_runs_of_one_job(ticked: Bench, other_run: subprocess.Popen[str]) -> None:
    refusal = ticked.refused(JobAlreadyRunning)
    assert "'tiny'" in refusal.message
    assert "the-other-run" in refusal.message
    assert f"process {other_run.pid}" in refusal.message
    assert "Terminate run the-other-run" in refusal.hint
    assert ticked.catalog.records.epochs.highest() == 3  # it did not even claim an epoch
    assert other_run.stdin is not None
    other_run.stdin.close()  # the other run ends in order
    assert other_run.wait() == 0
    _goes_on(ticked)


def test_a_run_that_was_killed_does_not_block_the_next(ticked: Bench, other_run: subprocess.Popen[str]) -> None:
    other_run.kill()
    other_run.wait()
    _goes_on(ticked)


def test_two_runs_of_one_job_in_one_process(bench: Bench) -> None:
    bench.tick(1)
    bench.until_done = False
    first = bench.launch()
    try:
        bench.land(1)
        bench.await_in_sink(first)
        second = bench.launch()
        with pytest.raises(JobAlreadyRunning, match=first.run_id):
            second.result()
    finally:
        first.run.cancel()
    first.result()
    bench.until_done = True
    bench.tick(1)
    bench.assert_exact()


# --- sinks -----------------------------------------------------------------------------------------------------------


def test_another_sink_path(ticked: Bench) -> None:
    def elsewhere(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return deduplicated(bench, session).option("path", str(bench.root / "elsewhere"))

    refusal = ticked.refused(RestoreWithLoss, ticked.job(query=elsewhere))
    assert str(ticked.sink) in refusal.message
    assert str(ticked.root / "elsewhere") in refusal.message
    assert "chk-3" in refusal.message
    assert "Write to the sink before again" in refusal.hint
    assert not (ticked.root / "elsewhere").exists()
    _goes_on(ticked)


def test_a_sink_that_cannot_be_rolled_back_instead_of_the_file_sink(ticked: Bench) -> None:
    """The rows from here on would go nowhere, while the file sink's readers wait for them."""

    def nowhere(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return bench.read(session).dropDuplicates(["id"]).writeStream.format("noop").trigger(availableNow=True)

    ticked.land(1)
    refusal = ticked.refused(RestoreWithLoss, ticked.job(query=nowhere))
    assert str(ticked.sink) in refusal.message
    assert "noop" in refusal.message
    _goes_on(ticked)


def test_a_wiped_sink(ticked: Bench) -> None:
    kept = ticked.root / "kept"
    ticked.sink.rename(kept)
    refusal = ticked.refused(SinkMismatch)
    assert str(ticked.sink) in refusal.message
    assert "missing" in refusal.message
    assert "restore_from" in refusal.hint
    assert not ticked.sink.exists()
    kept.rename(ticked.sink)
    _goes_on(ticked)


def test_a_sink_that_lost_one_file(ticked: Bench) -> None:
    lost = min(ticked.sink.glob("part-*.parquet"))
    content, times = lost.read_bytes(), lost.stat()
    lost.unlink()
    refusal = ticked.refused(RestoreWithLoss)
    assert str(lost) in refusal.message
    assert "Put the files back" in refusal.hint
    lost.write_bytes(content[:-1])
    assert str(lost) in ticked.refused(SinkMismatch).message
    lost.write_bytes(content)
    os.utime(lost, ns=(times.st_atime_ns, times.st_mtime_ns))
    _goes_on(ticked)


def test_start_from_nothing_with_a_sink_that_has_data(ticked: Bench) -> None:
    refusal = ticked.refused(SinkNotEmpty, restore_from="none")
    assert str(ticked.sink) in refusal.message
    assert "'tiny'" in refusal.message
    assert f"empty {ticked.sink}" in refusal.hint
    assert "restore_from: latest" in refusal.hint
    _goes_on(ticked)


def test_start_from_nothing_with_data_files_that_no_log_lists(ticked: Bench) -> None:
    """Data of a batch job, or of a sink whose log was deleted: readers of a new log would not see it any more."""
    shutil.rmtree(ticked.sink / "_spark_metadata")
    refusal = ticked.refused(SinkNotEmpty, restore_from="none")
    assert str(ticked.sink) in refusal.message


def test_start_from_nothing_into_an_emptied_sink(ticked: Bench) -> None:
    shutil.rmtree(ticked.sink)
    before = ticked.checkpoints()
    afresh = ticked.tick(1, restore_from="none")
    assert afresh.started.restored is None
    assert afresh.started.job_id != before[0].job_id
    ticked.assert_exact()
    assert ticked.tick(1).started.restored == afresh.completed[-1]
    ticked.assert_exact()
    for metadata in before:
        verify_checkpoint(ticked.catalog, ticked.catalog.resolve(metadata.reference))  # the old lineage stays


# --- what the job's function returns ---------------------------------------------------------------------------------


def _with(change: Callable[[DataStreamWriter], DataStreamWriter]) -> Callable[[Bench, SparkSession], DataStreamWriter]:
    return lambda bench, session: change(deduplicated(bench, session))


def _ignored(frame: DataFrame, batch: int) -> None:
    """A foreachBatch function."""


@pytest.mark.parametrize(
    ("change", "error", "says", "way_on"),
    [
        (
            lambda writer: writer.option("checkpointLocation", "/tmp/mine"),
            InvalidConfiguration,
            "/tmp/mine",
            "Remove the checkpointLocation",
        ),
        (
            lambda writer: writer.trigger(continuous="1 second"),
            InvalidConfiguration,
            "continuous trigger",
            "processingTime",
        ),
        (
            lambda writer: writer.trigger(realTime="5 seconds"),
            InvalidConfiguration,
            "real-time trigger",
            "processingTime",
        ),
        (lambda writer: writer.foreachBatch(_ignored), RestoreRefused, "foreachBatch", "AT_LEAST_ONCE"),
        (lambda writer: writer.foreach(print), RestoreRefused, "foreach", "AT_LEAST_ONCE"),
        (lambda writer: writer.format("kafka"), RestoreRefused, "kafka", "AT_LEAST_ONCE"),
        (lambda writer: writer.format("memory"), RestoreRefused, "memory", "AT_LEAST_ONCE"),
        (
            lambda writer: writer.option("path", "s3://bucket/out"),
            InvalidConfiguration,
            "s3://",
            "Mount it",
        ),
        (lambda writer: None, InvalidConfiguration, "NoneType", "without calling start()"),
        (lambda writer: "a path", InvalidConfiguration, "str", "without calling start()"),
    ],
    ids=["location", "continuous", "real time", "foreachBatch", "foreach", "kafka", "memory", "s3", "nothing", "text"],
)
def test_a_query_that_cannot_be_checkpointed(
    ticked: Bench, change: Callable[[Any], Any], error: type[Any], says: str, way_on: str
) -> None:
    refusal = ticked.refused(error, ticked.job(query=_with(change)))
    assert says in refusal.message
    assert way_on in refusal.hint
    assert "'tiny'" in refusal.message or "sink" in refusal.message or "job's function" in refusal.message
    _goes_on(ticked)


def test_a_query_that_was_started(ticked: Bench) -> None:
    started: list[Any] = []

    def start(bench: Bench, session: SparkSession) -> Any:
        rows = bench.read(session).writeStream.format("noop")
        started.append(rows.option("checkpointLocation", str(bench.root / "mine")).start())
        return started[-1]

    refusal = ticked.refused(InvalidConfiguration, ticked.job(query=start))
    assert "StreamingQuery" in refusal.message
    assert "without calling start()" in refusal.hint
    for query in started:
        query.stop()
    _goes_on(ticked)


class Mistake(Exception):
    """What the user's function raises."""


def test_a_function_that_raises(ticked: Bench) -> None:
    def build(bench: Bench, session: SparkSession) -> DataStreamWriter:
        raise Mistake("no such column")

    before = ticked.photograph()
    launch = ticked.launch(ticked.job(query=build))
    with pytest.raises(QueryNotBuilt, match="Mistake: no such column") as raised:
        launch.result()
    assert isinstance(raised.value.__cause__, Mistake)
    assert not launch.of(Started)
    assert launch.of(SparkStarted)
    before.assert_untouched(ticked)
    _goes_on(ticked)


def test_a_query_that_spark_cannot_plan(bench: Bench) -> None:
    """Named as what was never a query; how often that is tried again is told in another test."""

    def complete(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return copied(bench, session).outputMode("complete")

    bench.land(1)
    refusal = bench.refused(QueryNotBuilt, bench.job(query=complete))
    assert "'tiny'" in refusal.message
    bench.tick()
    bench.assert_exact()
