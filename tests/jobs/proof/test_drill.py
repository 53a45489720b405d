"""Restore drills: the newest checkpoint and the job's own query, while nothing of the job is touched."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.errors import CheckpointFileChanged, CheckpointNotFound, QueryMismatch, RestoreWithLoss
from dagster_ckpt.spark.job import Versions
from dagster_ckpt.spark.proof.batch_on_copy import AS_PLANNED, NEW, NOTHING, BatchOnCopy
from dagster_ckpt.spark.proof.drill import Drilled, drill_restore
from dagster_ckpt.spark.proof.rehearsal import NotRehearsedError, rehearse
from dagster_ckpt.spark.query import try_query
from tests.jobs.harness import NEVER, OFTEN, Bench, deduplicated, eventually, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
    from dagster_ckpt.spark.job import StreamingJob


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where the copies lie; nothing is left there."""
    place = tmp_path / "scratch"
    yield place
    assert not place.exists() or not list(place.iterdir())


def _drill(bench: Bench, scratch: Path, job: StreamingJob | None = None) -> Drilled:
    return drill_restore(job or bench.job(), bench.catalog, SystemClock(), scratch_directory=scratch)


def _untouched(bench: Bench) -> dict[str, dict[str, bytes]]:
    return {name: tree(bench.root / name) for name in ("in", "out", "storage", "live")}


def _partitioned(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).dropDuplicates(["id"]).select("id", "v", "k")
    return bench.write(rows).partitionBy("k")


def _deleting(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """As ``deduplicated``; Spark deletes the files of a batch when it plans the next one."""
    stream = session.readStream.schema("id int, k int, ts timestamp, v int").option("cleanSource", "delete")
    rows = stream.option("maxFilesPerTrigger", 1).json(str(bench.source))
    return bench.write(rows.dropDuplicates(["id"]).select("id", "v"))


def _asynchronous(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Spark has no trigger that ends by itself for such a query."""
    return bench.read(session).writeStream.format("noop").option("asyncProgressTrackingEnabled", "true")


def _synchronous(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.read(session).writeStream.format("noop").trigger(availableNow=True)


def _other(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return bench.write(bench.read(session).dropDuplicates(["id", "k"]).select("id", "v"))


def test_a_drill_of_a_stopped_job_reads_what_a_start_would_and_touches_nothing(ticked: Bench, scratch: Path) -> None:
    before = _untouched(ticked)
    idle = _drill(ticked, scratch)
    assert (idle.read, idle.batch, idle.input_rows) == (NOTHING, 6, 0)
    assert idle.state_rows == 33, "every partition was opened, though there is nothing to read"
    assert _untouched(ticked) == before

    ticked.land(1)
    before = _untouched(ticked)
    drilled = _drill(ticked, scratch)
    assert (drilled.read, drilled.input_rows, drilled.state_rows) == (NEW, 8, 38)
    assert drilled.checkpoint == ticked.checkpoints()[-1].reference
    assert drilled.recovery_seconds >= drilled.batch_seconds > 0
    assert drilled.age_seconds > 0
    assert (drilled.batches_behind, drilled.rows_behind) == (0, 0)
    assert _untouched(ticked) == before
    ticked.tick()
    ticked.assert_exact()


def test_a_drill_beside_a_running_job_disturbs_nothing(bench: Bench, scratch: Path) -> None:
    """In the same JVM, where Spark stops a query when another of its id starts."""
    bench.until_done = False
    launch = bench.launch(bench.job(config=OFTEN))
    bench.land(2)
    eventually("a checkpoint completes", lambda: bool(launch.completed), unless=launch.check)
    bench.await_in_sink(launch)
    epochs = bench.catalog.records.epochs.names()
    drilled = _drill(bench, scratch)
    assert drilled.state_rows
    assert bench.catalog.records.epochs.names() == epochs
    assert not launch.ended
    bench.land(2)
    bench.await_in_sink(launch)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert not launch.restarts
    bench.assert_exact()


def test_batches_after_the_checkpoint_are_read_as_they_were_planned(ticked: Bench, scratch: Path) -> None:
    ticked.run_and_cancel(2, ticked.job(config=NEVER))
    shutil.rmtree(ticked.working)  # so that nothing can be salvaged
    ticked.files_per_trigger = 5
    before = _untouched(ticked)
    drilled = _drill(ticked, scratch)
    assert (drilled.read, drilled.batch, drilled.input_rows) == (AS_PLANNED, 6, 8)
    assert (drilled.batches_behind, drilled.files_behind) == (2, 2)
    assert drilled.rows_behind is None, "JSON tells no number of rows"
    assert _untouched(ticked) == before
    (ticked.source / "0006.json").unlink()
    with pytest.raises(RestoreWithLoss, match=r"0006\.json"):
        _drill(ticked, scratch)


def test_no_input_is_deleted_by_a_drill(bench: Bench, scratch: Path) -> None:
    """Neither that of the checkpoint's batch, nor that of a batch that was planned after the checkpoint."""
    bench.query = _deleting
    bench.tick(2)
    bench.land(1)
    before = _untouched(bench)
    assert _drill(bench, scratch).read == NOTHING
    assert _untouched(bench) == before
    bench.run_and_cancel(0)
    shutil.rmtree(bench.working)
    before = _untouched(bench)
    assert _drill(bench, scratch).read == AS_PLANNED
    assert _untouched(bench) == before


class _Numbers(DataSource):
    """Numbers from 0 on; told that a batch is done, the source writes that down."""

    @classmethod
    def name(cls) -> str:
        return "numbers_that_are_acknowledged"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: N802 - Spark's name
        return _Reader(Path(self.options["told"]))


class _Reader(DataSourceStreamReader):
    def __init__(self, told: Path) -> None:
        self._told = told

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - with every release of Spark
        return {"n": int((self._told / "upto").read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(*partition.value))

    def commit(self, end: dict[str, int]) -> None:
        (self._told / f"done-{end['n']}").touch()


def _acknowledging(bench: Bench, session: SparkSession) -> DataStreamWriter:
    session.dataSource.register(_Numbers)
    rows = session.readStream.format(_Numbers.name()).option("told", str(bench.source)).load()
    return rows.dropDuplicates(["n"]).writeStream.format("noop").trigger(once=True)


@pytest.mark.exhaustive
def test_no_source_is_told_by_a_drill_that_a_batch_is_done(bench: Bench, scratch: Path) -> None:
    bench.query = _acknowledging
    bench.land(0)
    for upto in ("3", "5"):
        (bench.source / "upto").write_text(upto)
        bench.tick()
    assert [path.name for path in bench.source.glob("done-*")] == ["done-3"]
    (bench.source / "upto").write_text("9")
    drilled = _drill(bench, scratch)
    assert (drilled.read, drilled.state_rows) == (NOTHING, 5)
    assert [path.name for path in bench.source.glob("done-*")] == ["done-3"]


@pytest.mark.exhaustive
def test_a_source_that_may_notice_it_is_not_read_by_a_rehearsal(bench: Bench) -> None:
    bench.query = _acknowledging
    bench.land(0)
    (bench.source / "upto").write_text("3")
    bench.tick()
    (bench.source / "upto").unlink()
    with pytest.raises(NotRehearsedError, match="may notice"):
        rehearse(bench.job(), bench.catalog, Flag())


def test_a_rehearsal_repeats_a_batch_of_the_size_of_the_job_and_touches_nothing(
    ticked: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    run = BatchOnCopy.run

    def told(batch: BatchOnCopy, known: Sequence[PlannedBatch]) -> tuple[str, dict[str, Any]]:
        what, report = run(batch, known)
        read.append((what, report["numInputRows"]))
        return what, report

    monkeypatch.setattr(BatchOnCopy, "run", told)
    ticked.land(5)
    before = _untouched(ticked)
    done = rehearse(ticked.job(), ticked.catalog, Flag())
    assert (done.checkpoint, done.times) == (ticked.checkpoints()[-1].reference, 3)
    assert {rows for _, rows in read} == {8}, "one file of the five"
    assert [what for what, _ in read] == [NEW, AS_PLANNED, AS_PLANNED]
    assert _untouched(ticked) == before


def test_a_rehearsal_deletes_no_input(bench: Bench) -> None:
    """Spark would be told to delete when it plans a further batch."""
    bench.query = _deleting
    bench.tick(2)
    bench.land(3)
    before = _untouched(bench)
    assert rehearse(bench.job(), bench.catalog, Flag()).times == 3
    assert _untouched(bench)["in"] == before["in"]
    bench.run_and_cancel(0)
    shutil.rmtree(bench.working)
    before = _untouched(bench)
    assert rehearse(bench.job(), bench.catalog, Flag()).times == 3
    assert _untouched(bench)["in"] == before["in"]


def test_a_rehearsal_that_is_cut_leaves_nothing(ticked: Bench) -> None:
    before, cut = _untouched(ticked), Flag()
    cut.set()
    with pytest.raises(NotRehearsedError, match="was needed"):
        rehearse(ticked.job(), ticked.catalog, cut)
    assert _untouched(ticked) == before


def test_a_query_with_asynchronous_progress_is_drilled_rehearsed_and_tried(bench: Bench, scratch: Path) -> None:
    bench.tick(2, bench.job(query=_synchronous))
    bench.land(2)
    job = bench.job(query=_asynchronous)
    drilled = _drill(bench, scratch, job)
    assert (drilled.read, drilled.batch, drilled.input_rows) == (NEW, 2, 16)
    assert rehearse(job, bench.catalog, Flag()).times == 3
    assert try_query(job.query(bench.spark), str(bench.root / "copy"), Flag()) is None
    assert (bench.root / "copy" / "offsets" / "0").is_file(), "Spark planned a batch"


def test_a_drill_proves_the_version_that_the_job_was_cut_over_to(bench: Bench, scratch: Path) -> None:
    """The function of the deployed version does not fit the state."""
    versions = Versions("1", green={"2": partial(deduplicated, bench)})
    job = replace(bench.job(query=_other), versions=versions)
    bench.tick(1, job, code_version="2")
    bench.land(1)
    assert _drill(bench, scratch, job).input_rows == 8


def test_a_partitioned_sink_is_drilled_too(bench: Bench, scratch: Path) -> None:
    bench.query = _partitioned
    bench.tick(1)
    bench.land(1)
    assert _drill(bench, scratch).input_rows == 8


def test_what_would_make_a_restore_fail_makes_the_drill_fail_by_name(ticked: Bench, scratch: Path) -> None:
    newest = ticked.checkpoints()[-1]
    with pytest.raises(QueryMismatch, match=newest.name):
        _drill(ticked, scratch, ticked.job(query=_other))
    state = next(file for file in newest.files if file.path.startswith("checkpoint/state/") and file.reference)
    stored = ticked.storage / ticked.catalog.stored_path(newest, state.reference or "")
    stored.write_bytes(bytes(len(stored.read_bytes())))
    with pytest.raises(CheckpointFileChanged, match=stored.name):
        _drill(ticked, scratch)


def test_a_job_without_a_checkpoint_cannot_be_drilled(bench: Bench, scratch: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="has no checkpoint"):
        _drill(bench, scratch)


def test_the_same_query_again_is_no_mismatch(ticked: Bench, scratch: Path) -> None:
    config = CheckpointConfig(mode="AT_LEAST_ONCE")
    assert _drill(ticked, scratch, ticked.job(query=deduplicated, config=config)).read == NOTHING
