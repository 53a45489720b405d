"""Starts that claim one Delta table: of two jobs, of two storages, and starts whose commit has no answer."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.errors import CheckpointFailure, InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.delta import Commit, DeltaSink, DeltaTable, delta_sink
from tests.jobs.harness import Bench
from tests.jobs.tables.common import Starts, a_batch_is_left_out, a_claim_is_no_data
from tests.jobs.tables.delta import seen, sql, version, without_old_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.stored_json import Json

pytestmark = pytest.mark.releases


@pytest.fixture
def rows(bench: Bench) -> DataFrame:
    return bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")


def starts_of(bench: Bench, rows: DataFrame, *, job: str = "orders", storage: str = "storage") -> Starts[DeltaSink]:
    """Starts of a job with a storage."""
    directory = bench.root / f"{storage} of {job}"
    directory.mkdir(parents=True)
    return Starts(directory, rows, lambda: DeltaSink(bench.sink), job)


def written(bench: Bench) -> int:
    return sum(seen(bench).values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["orders", "returns"])
def test_each_of_two_jobs_takes_back_its_own_rows(bench: Bench, rows: DataFrame, first: str) -> None:
    """After a compaction has put rows of both into one file, too. Which of them comes back first does not matter."""
    jobs = {job: starts_of(bench, rows, job=job) for job in ("orders", "returns")}
    sinks = {job: each.begun(1) for job, each in jobs.items()}
    covered: dict[str, Mapping[str, Json]] = {}
    for job, sink in sinks.items():
        sink.write_batch(rows, 0)
        covered[job] = jobs[job].position(sink, 1, 0)
    for sink in sinks.values():
        sink.write_batch(rows, 1)
    sql(bench, "OPTIMIZE {table}")
    assert written(bench) == 4 * 3
    order = sorted(jobs, key=lambda job: job != first)
    for job in order:
        sinks[job] = jobs[job].begun(2, covered[job])
        sinks[job].write_batch(rows.limit(1), 1)
    assert written(bench) == 2 * 3 + 2 * 1
    for job in order:
        sinks[job] = jobs[job].begun(3, covered[job])
    assert written(bench) == 2 * 3
    assert seen(bench) == Counter({(n, 10 * n): 2 for n in range(3)})


@pytest.mark.exhaustive
def test_a_claim_is_no_data(bench: Bench, rows: DataFrame) -> None:
    rows.write.format("delta").save(str(bench.sink))
    a_claim_is_no_data(bench, rows, starts_of(bench, rows))


@pytest.mark.exhaustive
def test_the_batch_of_a_repartition_is_left_out(bench: Bench, rows: DataFrame) -> None:
    a_batch_is_left_out(rows, starts_of(bench, rows), lambda: written(bench), bench.root)


def test_a_batch_reads_the_log_once(bench: Bench, rows: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """To see that the table is the same, and what others have written meanwhile."""
    read: list[int] = []
    commit_of = DeltaTable.commit_of

    def counted(table: DeltaTable, number: int) -> Commit | None:
        read.append(number)
        return commit_of(table, number)

    starts = starts_of(bench, rows)
    sink = starts.begun(1)
    claim = version(bench)
    monkeypatch.setattr(DeltaTable, "commit_of", counted)
    for batch in range(3):
        sink.write_batch(rows, batch)
        assert starts.position(sink, 1, batch)["version"] == version(bench) == claim + batch + 1
    assert read == [claim, claim + 1, claim + 2]

    read.clear()
    rows.write.format("delta").mode("append").save(str(bench.sink))
    sink.write_batch(rows, 3)
    assert starts.position(sink, 1, 3)["version"] == version(bench) == claim + 5
    assert read == [claim + 3, claim + 4]


def jobs_of(bench: Bench, work: Callable[[], object]) -> int:
    """How many jobs Spark has run for some work."""
    context, group = bench.spark.sparkContext, uuid.uuid4().hex
    context.setJobGroup(group, "")
    try:
        work()
    finally:
        context._jsc.clearJobGroup()
    return len(context.statusTracker().getJobIdsForGroup(group))


@pytest.mark.exhaustive
def test_a_batch_has_spark_put_no_log_together(bench: Bench, rows: DataFrame) -> None:
    """Delta's own writer does so for each batch, to find the newest mark."""
    sink = starts_of(bench, rows).begun(1)
    writer = rows.write.format("delta").mode("append")
    sink.write_batch(rows, 0)
    writer.save(str(bench.sink))
    ours = jobs_of(bench, lambda: sink.write_batch(rows, 1))
    plain = jobs_of(bench, lambda: writer.save(str(bench.sink)))
    marked = jobs_of(bench, lambda: writer.option("txnAppId", "a").option("txnVersion", 1).save(str(bench.sink)))
    assert ours <= plain < marked


@pytest.mark.parametrize("is_claimed", [False, True], ids=["", "and claimed by another start"])
def test_an_older_copy_of_the_table_is_not_written_to(bench: Bench, rows: DataFrame, is_claimed: bool) -> None:
    """It has the id of the table, and other commits below the numbers of this start's."""
    starts = starts_of(bench, rows)
    sink = starts.begun(1)
    sink.write_batch(rows, 0)
    covered, copy = starts.position(sink, 1, 0), bench.root / "copy"
    shutil.copytree(bench.sink, copy)
    for batch in (1, 2):
        sink.write_batch(rows, batch)
    shutil.rmtree(bench.sink)
    shutil.copytree(copy, bench.sink)
    if is_claimed:
        newer = starts_of(bench, rows, storage="another storage").begun(2, covered)
        newer.write_batch(rows, 1)
    before = written(bench)
    with pytest.raises(SinkMismatch, match=r"was deleted and created again|claimed by epoch 2"):
        sink.write_batch(rows, 3)
    assert written(bench) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_claimed", [False, True], ids=["of others alone", "and a claim"])
def test_where_others_have_written_much_delta_tells_the_newest_mark(
    bench: Bench, rows: DataFrame, monkeypatch: pytest.MonkeyPatch, is_claimed: bool
) -> None:
    monkeypatch.setattr(delta_sink, "_MOST_READ", 1)
    starts = starts_of(bench, rows)
    sink = starts.begun(1)
    sink.write_batch(rows, 0)
    for _ in range(2):
        rows.write.format("delta").mode("append").save(str(bench.sink))
    if is_claimed:
        starts_of(bench, rows, storage="another storage").begun(2, starts.position(sink, 1, 0))
        with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
            sink.write_batch(rows, 1)
        return
    sink.write_batch(rows, 1)
    assert starts.position(sink, 1, 1)["version"] == version(bench)
    assert written(bench) == 4 * 3


@pytest.mark.exhaustive
def test_options_are_taken_as_by_sparks_writer(bench: Bench, rows: DataFrame) -> None:
    options = {"mergeSchema": True, "USERMETADATA": "mine", "maxRecordsPerFile": 2, "replaceWhere": None}
    directory = bench.root / "own"
    directory.mkdir(parents=True)
    made = Starts(directory, rows, lambda: DeltaSink(bench.sink, partition_by=["v"], options=options), "orders")
    made.begun(1).write_batch(rows.selectExpr("*", "'new' AS more"), 0)
    table = bench.spark.read.format("delta").load(str(bench.sink))
    assert (table.columns, table.where("more = 'new'").count()) == (["id", "v", "more"], 3)
    (newest,) = sql(bench, "DESCRIBE HISTORY {table} LIMIT 1")
    assert (newest["userMetadata"], newest["operationParameters"]["partitionBy"]) == ("mine", '["v"]')


def test_a_session_that_marks_all_commits_is_refused(bench: Bench, rows: DataFrame) -> None:
    name = "spark.databricks.delta.write.txnVersion"
    bench.spark.conf.set(name, "7")
    try:
        with pytest.raises(InvalidConfiguration, match=name):
            starts_of(bench, rows).begun(1)
    finally:
        bench.spark.conf.unset(name)


class _Log:
    """Delta's log of a table. Its next commit is made, and fails after that."""

    def __init__(self, log: Any, before: Callable[[], object], then: Callable[[], object]) -> None:
        self._log = log
        self._before = before
        self._then = then
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def startTransaction(self) -> Any:  # noqa: N802 - Delta's name
        return self._log.startTransaction() if self.failed else _Transaction(self._log.startTransaction(), self)

    def update(self, *given: Any) -> Any:
        if self.failed:
            self._then()
        return self._log.update(*given)

    def commit(self, transaction: Any, *given: Any) -> None:
        self.failed = True
        self._before()
        transaction.commit(*given)
        raise OSError("a hook failed after the commit")


class _Transaction:
    def __init__(self, transaction: Any, log: _Log) -> None:
        self._transaction = transaction
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self, *given: Any) -> None:
        self._log.commit(self._transaction, *given)


def losing_an_answer(
    sink: DeltaSink, before: Callable[[], object] = lambda: None, then: Callable[[], object] = lambda: None
) -> DeltaSink:
    """A sink whose next claim is made and fails after that.

    Args:
        sink: the sink.
        before: called before that commit.
        then: called before each look at the table after that commit.
    """
    table = sink._table
    log = table._log = _Log(table._log, before, then)
    vars(table)["_transaction"] = log.startTransaction
    return sink


@pytest.mark.exhaustive
def test_a_claim_whose_answer_is_lost_is_found(bench: Bench, rows: DataFrame) -> None:
    starts = starts_of(bench, rows)
    old = starts.begun(1)
    old.write_batch(rows, 0)
    covered = starts.position(old, 1, 0)
    old.write_batch(rows, 1)

    new = starts.attached()
    told = losing_an_answer(new).rollback_to(covered, bench.root, 2)
    assert "files of later batches removed" in told
    assert f"by version {version(bench)}" in told
    starts.begin(new, 2, covered)
    new.write_batch(rows.limit(1), 1)
    assert written(bench) == 3 + 1


@pytest.mark.exhaustive
def test_a_claim_of_another_run_with_the_same_epoch_is_not_ones_own(bench: Bench, rows: DataFrame) -> None:
    """Their storages do not know of one another; one claims while the other one is about to."""
    starts = starts_of(bench, rows)
    old = starts.begun(1)
    old.write_batch(rows, 0)
    covered = starts.position(old, 1, 0)
    other = starts_of(bench, rows, storage="another storage")

    late = losing_an_answer(starts.attached(), lambda: other.begun(2, covered))
    with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
        late.rollback_to(covered, bench.root, 2)


@pytest.mark.exhaustive
def test_a_claim_is_not_taken_for_a_batch(bench: Bench, rows: DataFrame) -> None:
    """The claim of another run of that epoch has the number of the batch, which is written by neither."""
    starts = starts_of(bench, rows)
    old = starts.begun(1)
    covered = []
    for batch in (0, 1):
        old.write_batch(rows, batch)
        covered.append(starts.position(old, 1, batch))
    one = starts.begun(2, covered[0])
    starts_of(bench, rows, storage="another storage").begun(2, covered[1])
    with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
        one.write_batch(rows, 1)


@pytest.mark.exhaustive
def test_a_position_of_an_earlier_release_can_be_restored(bench: Bench, rows: DataFrame) -> None:
    """It does not tell the newest mark."""
    starts = starts_of(bench, rows)
    sink = starts.begun(1)
    sink.write_batch(rows, 0)
    covered = dict(starts.position(sink, 1, 0))
    del covered["mark"]
    for epoch in (2, 3):
        sink.write_batch(rows, 1)
        sink = starts.begun(epoch, covered)
        assert written(bench) == 3
    again = starts.position(sink, 3, 0)
    sink.write_batch(rows, 1)
    starts.begun(4, again)
    assert written(bench) == 3


@pytest.mark.exhaustive
def test_what_an_earlier_rollback_took_back_stays_away_when_its_batch_has_left_the_log(
    bench: Bench, rows: DataFrame
) -> None:
    starts = starts_of(bench, rows)
    sink = starts.begun(1)
    sink.write_batch(rows, 0)
    covered = starts.position(sink, 1, 0)
    sink.write_batch(rows, 1)
    starts.begun(2, covered)
    without_old_log(bench)
    starts.begun(3, covered)
    assert written(bench) == 3


def test_what_is_said_of_a_commit_without_an_answer_is_true(bench: Bench, rows: DataFrame) -> None:
    """The storage has taken the commit, and is away then."""
    starts = starts_of(bench, rows)
    old = starts.begun(1)
    old.write_batch(rows, 0)
    covered, before = starts.position(old, 1, 0), version(bench)

    def away() -> None:
        raise OSError("the storage is away")

    with pytest.raises(CheckpointFailure) as failed:
        losing_an_answer(starts.attached(), then=away).rollback_to(covered, bench.root, 2)
    assert version(bench) == before + 1
    assert "Nothing was changed" not in failed.value.hint
    assert "the table may have it" in failed.value.hint
    starts.begun(3, covered).write_batch(rows, 1)
    assert written(bench) == 2 * 3
