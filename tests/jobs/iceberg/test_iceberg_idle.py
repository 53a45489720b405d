"""Jobs that write no batch for long, while others write to the table and expire its snapshots."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.iceberg.lineage import Mark
from tests.jobs.harness import Bench
from tests.jobs.tables.common import Starts, into, run_without_checkpoint
from tests.jobs.tables.iceberg import call, current, expire, seen, snapshots, sql, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.releases

_BRANCH = "dagster_ckpt_orders"


def to_iceberg(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return into(IcebergSink(table_of(bench, session)), bench, session)


class Others:
    """Writers that append a row at a time, and expire what Iceberg lets them: the snapshots between branch and head."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def append(self) -> None:
        """A row; what follows still comes from the snapshot before."""
        row = (-1 - len(self.rows), -1)
        sql(self._bench, f"INSERT INTO {{table}} VALUES {row}")
        self.rows[row] += 1
        expire(self._bench)

    def break_the_line(self) -> None:
        """Two rows, and the snapshot of the first has expired."""
        self.append()
        self.append()


@pytest.fixture
def rows(bench: Bench) -> DataFrame:
    """Three rows of a batch."""
    return bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")


@pytest.fixture
def starts(bench: Bench, rows: DataFrame) -> Starts[IcebergSink]:
    return Starts(bench.root, rows, lambda: IcebergSink(table_of(bench)))


def _count(bench: Bench, others: Others) -> int:
    """How many rows of the job there are; the others' are all there."""
    found = seen(bench)
    assert found & others.rows == others.rows
    return (found - others.rows).total()


def test_batches_after_an_idle_time_are_taken_back(bench: Bench) -> None:
    """Starts only claimed the table, and their claims have expired; then batches were lost with the live location."""
    bench.query = to_iceberg
    bench.tick(1)
    others = Others(bench)
    for _ in range(2):
        others.break_the_line()
        bench.tick(0)
    others.break_the_line()
    run_without_checkpoint(bench, 2)
    others.append()
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 2
    assert "removed" in bench.tick(0).started.sink
    assert seen(bench) == bench.expected() + others.rows
    others.append()
    bench.files_per_trigger = 5
    bench.tick(1, restore_from="chk-1")
    assert seen(bench) == bench.expected() + others.rows


def test_a_start_that_is_idle_for_long(bench: Bench, rows: DataFrame, starts: Starts[IcebergSink]) -> None:
    """Its claim has expired before its first batch. A savepoint of the idle start, too, can be restored."""
    others = Others(bench)
    first = starts.begun(1)
    first.write_batch(rows, 0)
    covered = starts.position(first, 1, 0)
    second = starts.begun(2, covered)
    idle = starts.position(second, 2, 0)
    others.break_the_line()
    for batch in (1, 2):
        second.write_batch(rows, batch)
        assert current(bench.sink).refs()[_BRANCH].snapshot_id == snapshots(bench)[-1]
        others.append()
    assert _count(bench, others) == 9
    for epoch, position in ((3, idle), (4, covered)):
        sink = starts.begun(epoch, position)
        assert _count(bench, others) == 3
        sink.write_batch(rows, 1)
        others.append()


def test_a_start_from_nothing_that_is_idle_for_long(bench: Bench, rows: DataFrame, starts: Starts[IcebergSink]) -> None:
    """Until its first checkpoint it goes back to nothing; so does a start in a table that was made for it."""
    others = Others(bench)
    sink = starts.attached()
    before = sink.seed(-1, bench.root, bench.spark)
    assert before["snapshot"] is None
    for epoch in (1, 3, 5):
        if epoch == 1:
            starts.begin(sink, epoch)
        else:
            sink = starts.begun(epoch, before)
        others.break_the_line()
        for batch in (0, 1):
            sink.write_batch(rows, batch)
            others.append()
        assert _count(bench, others) == 6
        sink = starts.attached()
        if epoch == 1:
            sink.rollback_to_nothing(0, epoch + 1)
        else:
            sink.rollback_to(before, bench.root, epoch + 1)
        assert _count(bench, others) == 0
    for epoch in (7, 8):
        others.break_the_line()
        starts.begun(epoch, before)


def test_what_a_checkpoint_needs_is_kept_after_an_idle_time(bench: Bench) -> None:
    """By the branch, through later starts and checkpoints, as long as the checkpoint is retained."""
    bench.query = to_iceberg
    bench.tick(1)
    others = Others(bench)
    others.break_the_line()
    bench.tick(0)
    others.break_the_line()
    for _ in range(2):
        bench.tick(1)
        run_without_checkpoint(bench, 1)
        others.append()
    assert len(bench.checkpoints()) == 4
    bench.files_per_trigger = 9
    assert "removed" in bench.tick(1, restore_from="chk-1").started.sink
    assert seen(bench) == bench.expected() + others.rows


def test_a_batch_before_an_idle_time_stays_beyond_reach(bench: Bench) -> None:
    """What others have done in between is unknown; the refusal names the snapshot that is gone."""
    bench.query = to_iceberg
    bench.tick(1)
    bench.tick(1)
    others = Others(bench)
    others.break_the_line()
    gone = snapshots(bench)[0]
    bench.tick(1)
    refusal = bench.refused(SinkMismatch, restore_from="chk-1")
    assert f"does not have snapshot {gone} any more" in refusal.message
    assert seen(bench) == bench.expected() + others.rows
    covered = bench.checkpoints()[0].sink
    assert covered is not None
    assert f"set_current_snapshot to {covered['snapshot']}" in refusal.hint
    call(bench, "set_current_snapshot", f"snapshot_id => {covered['snapshot']}")
    bench.files_per_trigger = 9
    bench.tick(0, restore_from="chk-1")
    assert seen(bench) == bench.expected()


def test_claims_of_an_early_build_do_not_tell_what_they_hold(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that has to trust one of them is refused, and a fork goes on in another table."""
    summary = Mark.summary

    def told_less(mark: Mark, job: str, *, is_first: bool = False) -> dict[str, str]:
        return summary(replace(mark, held=None, before=None), job, is_first=is_first)

    bench.query = to_iceberg
    others = Others(bench)
    with monkeypatch.context() as early:
        early.setattr(Mark, "summary", told_less)
        bench.tick(1)
        bench.tick(0)
        others.break_the_line()
    refusal = bench.refused(SinkMismatch)
    assert "any more" in refusal.message
    assert "launch a job of another name with fork_from and a table of its own" in refusal.hint
    before = bench.expected()
    fork = Bench(bench.spark, tmp_path / "fork", name="fork")
    fork.query = lambda _, session: into(IcebergSink(table_of(fork, session)), bench, session)
    bench.land(1)
    fork.launch(fork_from=str(bench.storage / bench.name / bench.checkpoints()[-1].reference)).result()
    assert seen(fork) == bench.expected() - before
    bench.land(1)
    fork.tick(0)
    assert seen(fork) == bench.expected() - before
