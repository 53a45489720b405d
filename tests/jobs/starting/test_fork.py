"""A job that begins with a checkpoint of another, which may go on meanwhile and is not touched."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.taking.savepoint_files import copy_to_savepoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import CheckpointNotFound, RestoreRefused, RestoreWithLoss, SinkMismatch, SinkNotEmpty
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.jobs.harness import NEW_PER_FILE, OFTEN, ROWS_PER_FILE, Bench, Row, copied, eventually, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata


@dataclass
class Fork(Bench):
    """A job of its own that reads what another one reads, from file ``begins`` on."""

    reads: Path = Path()
    begins: int = 0

    @property
    def source(self) -> Path:
        return self.reads

    def expected(self) -> Counter[Row]:
        rows = [
            (key, key * 10)
            for number in range(self.begins, self.landed)
            for key in range(number * NEW_PER_FILE, number * NEW_PER_FILE + ROWS_PER_FILE)
        ]
        if self.query is copied:
            return Counter(rows)
        seen = self.begins * NEW_PER_FILE + ROWS_PER_FILE - NEW_PER_FILE
        return Counter({row for row in rows if row[0] >= seen})


def fork_of(bench: Bench, checkpoint: CheckpointMetadata, root: Path) -> Fork:
    """A job that has read what ``checkpoint`` has read, a file in each batch."""
    return Fork(
        bench.spark,
        root / "fork",
        name="forked",
        query=bench.query,
        landed=bench.landed,
        reads=bench.source,
        begins=checkpoint.batch + 1,
    )


@pytest.mark.exhaustive
def test_a_fork_of_a_checkpoint_after_which_input_is_gone(ticked: Bench, tmp_path: Path) -> None:
    """The fork would read what the first job has read since, and not find all of it."""
    point = ticked.checkpoints()[0]
    fork = fork_of(ticked, point, tmp_path)
    gone = ticked.source / "0003.json"
    gone.rename(tmp_path / "archived.json")
    refusal = fork.refused(RestoreWithLoss, fork_from=ticked.catalog.pointer(point))
    assert str(gone) in refusal.message
    (tmp_path / "archived.json").rename(gone)
    fork.tick(fork_from=ticked.catalog.pointer(point))
    fork.assert_exact()


def test_a_fork_while_the_first_job_goes_on(bench: Bench, tmp_path: Path) -> None:
    bench.until_done = False
    first = bench.launch(bench.job(config=OFTEN))
    eventually("the query starts", lambda: bool(first.of(Started)), unless=first.check)
    bench.land(4)
    bench.await_in_sink(first)
    eventually("it is checkpointed", lambda: bool(first.completed) and first.completed[-1].batch == 3)
    point = first.completed[-1]
    before = tree(Path(bench.catalog.pointer(point)))
    stored = {name: (bench.storage / "tiny" / point.job_id / name.removeprefix("../")) for name in point.references}
    bytes_before = {name: path.read_bytes() for name, path in stored.items()}

    fork = fork_of(bench, point, tmp_path)
    fork.until_done = False
    second = fork.launch(fork.job(config=OFTEN), fork_from=bench.catalog.pointer(point))
    eventually("the fork starts", lambda: bool(second.of(Started)), unless=second.check)
    bench.land(3)
    fork.landed = bench.landed
    bench.await_in_sink(first)
    fork.await_in_sink(second)
    eventually("both are checkpointed", lambda: first.completed[-1].batch == second.completed[-1].batch == 6)
    assert not first.ended
    for launch in (first, second):
        launch.run.cancel()
        launch.result()

    bench.assert_exact()
    fork.assert_exact()
    assert tree(Path(bench.catalog.pointer(point))) == before
    assert {name: path.read_bytes() for name, path in stored.items()} == bytes_before
    restored = second.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch, restored.job_name) == ("fork", 3, "forked")
    assert restored.restored_from == bench.catalog.pointer(point)
    assert restored.job_id == second.run_id.replace("-", "") != point.job_id
    assert restored.checkpoint_id > point.checkpoint_id
    assert restored.facts.query_id == second.completed[-1].facts.query_id != point.facts.query_id
    assert first.completed[-1].facts.query_id == point.facts.query_id
    assert f"a fork of {point.name} of job 'tiny'" in second.started.reason
    chosen = fork.catalog.choice()
    assert chosen is not None
    assert chosen[1].forked_from == bench.catalog.pointer(point)

    shutil.rmtree(bench.storage)  # nobody needs it any more
    fork.until_done = True
    fork.tick(1)
    fork.assert_exact()


def test_before_its_first_checkpoint_it_comes_back_to_the_fork(ticked: Bench, tmp_path: Path) -> None:
    """Even when the first job, and what the fork did, are lost; and the same launch again is no second fork."""
    point = ticked.checkpoints()[-1]
    fork = fork_of(ticked, point, tmp_path)
    pointer = ticked.catalog.pointer(point)
    fork.run_and_cancel(2, fork_from=pointer)
    shutil.rmtree(fork.working)
    shutil.rmtree(ticked.storage)
    launch = fork.tick(1, fork_from=pointer)
    assert launch.started.restored is not None
    assert (launch.started.restored.kind, launch.started.restored.batch) == ("fork", point.batch)
    assert f"the fork of {pointer}" in launch.started.reason
    assert "2 log entries removed" in launch.started.sink
    fork.assert_exact()
    refusal = fork.refused(RestoreRefused, fork_from=pointer)
    assert launch.completed[-1].reference in refusal.message
    assert "without fork_from" in refusal.hint


@pytest.mark.exhaustive
@pytest.mark.parametrize(("batches", "interval"), [(4, "10"), (14, "10"), (11, "3")])
def test_the_log_of_a_fork_is_compacted_again_and_again(
    bench: Bench, batches: int, interval: str, tmp_path: Path
) -> None:
    """Spark wants every entry since the last compaction, also those of batches that only the first job ran."""
    bench.query = copied
    bench.spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", interval)
    try:
        bench.tick(batches)
        (point,) = bench.checkpoints()
        fork = fork_of(bench, point, tmp_path)
        fork.tick(12, fork_from=bench.catalog.pointer(point))
        fork.assert_exact()
        fork.tick(12)
        fork.assert_exact()
        log = fork.sink / "_spark_metadata"
        compacted = sorted(int(file.stem) for file in log.glob("[0-9]*.compact"))
        assert len([number for number in compacted if number > point.batch]) >= 2
        assert all((number + 1) % int(interval) == 0 for number in compacted)
    finally:
        bench.spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


def test_a_fork_of_a_savepoint_into_a_transactional_sink(ticked: Bench, tmp_path: Path) -> None:
    point = ticked.checkpoints()[1]
    saved = copy_to_savepoint(ticked.catalog, point, PosixFileSystem(tmp_path / "savepoints"), SystemClock())
    fork = fork_of(ticked, point, tmp_path)

    def transactional(of: Bench, session: SparkSession) -> DataStreamWriter:
        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        return sink_to(rows, TransactionalFileSink(of.sink)).trigger(availableNow=True)

    # The first job's sink is of another kind, which is no reason to refuse: only the place must be another.
    fork.query = transactional
    assert saved.location is not None
    fork.tick(1, fork_from=f"file://{saved.location}/_metadata")
    assert fork.in_raw_directory() == fork.expected()
    fork.tick(1)
    assert fork.in_raw_directory() == fork.expected()


def test_a_fork_into_foreach_batch(ticked: Bench, tmp_path: Path) -> None:
    point = ticked.checkpoints()[-1]
    fork = fork_of(ticked, point, tmp_path)
    told: list[int] = []
    batches: dict[int, list[Row]] = {}

    def query(of: Bench, session: SparkSession) -> DataStreamWriter:
        def write(rows: DataFrame, batch: int) -> None:
            batches[batch] = [tuple(row) for row in rows.collect()]

        rows = of.read(session).dropDuplicates(["id"]).select("id", "v")
        sink = ForeachBatchSink(
            "rows",
            write,
            rollback_to=lambda batch, _: told.append(batch),
            newest_batch=lambda: max(batches, default=None),
        )
        return sink_to(rows, sink).trigger(availableNow=True)

    fork.query = query
    fork.tick(2, fork_from=ticked.catalog.pointer(point))
    assert told == [-1], "it holds nothing of any batch yet"
    assert sorted(batches) == [6, 7]
    assert Counter(row for rows in batches.values() for row in rows) == fork.expected()
    fork.tick(1)
    assert told == [-1, 7]
    assert Counter(row for rows in batches.values() for row in rows) == fork.expected()


def test_refusals(ticked: Bench, tmp_path: Path) -> None:
    """Nothing of either job is touched."""
    point = ticked.checkpoints()[-1]
    pointer = ticked.catalog.pointer(point)
    before = ticked.photograph()
    fork = fork_of(ticked, point, tmp_path)

    def into_the_same(of: Bench, session: SparkSession) -> DataStreamWriter:
        link = of.root / "alias"
        if not link.exists():
            link.symlink_to(ticked.sink)
        return of.read(session).select("id", "v").writeStream.format("parquet").option("path", str(link))

    refusal: Exception = fork.refused(SinkMismatch, fork.job(query=into_the_same), fork_from=pointer)
    assert "the two jobs would write over each other" in str(refusal)
    fork.sink.mkdir(parents=True)
    (fork.sink / "part-of-something.parquet").write_bytes(b"data")
    refusal = fork.refused(SinkNotEmpty, fork_from=pointer)
    assert str(fork.sink) in str(refusal)
    refusal = ticked.refused(RestoreRefused, fork_from=pointer)
    assert "has checkpoints of its own" in str(refusal)
    fork.refused(CheckpointNotFound, fork_from=pointer.replace("chk-3", "chk-4"))
    assert not CheckpointCatalog(fork.filesystem, "forked").job_ids()
    assert ticked.photograph().trees["storage"].keys() >= before.trees["storage"].keys()
    before.assert_untouched(ticked)
