"""Sinks of every kind, written by real queries, after crashes and rollbacks."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.dataset as ds
import pytest

from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import (
    InvalidConfiguration,
    RestoreWithLoss,
    SinkMismatch,
    SinkNotEmpty,
)
from dagster_ckpt.spark.batches import archiver
from dagster_ckpt.spark.events import Replaying, Started
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from dagster_ckpt.stored_json import Json
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation
from tests.jobs.harness import OFTEN, SCHEMA, Bench, Launch, Row, eventually, remove_tree, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def started(bench: Bench, writer: DataStreamWriter) -> DataStreamWriter:
    return writer.trigger(availableNow=True) if bench.until_done else writer


def distinct(bench: Bench, session: SparkSession) -> DataFrame:
    return bench.read(session).dropDuplicates(["id"]).select("id", "v")


# --- the transactional file sink --------------------------------------------------------------------------------------


def transactional(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return started(bench, sink_to(distinct(bench, session), TransactionalFileSink(bench.sink)))


def partitioned(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = distinct(bench, session).selectExpr("id", "v", "id % 2 AS half")
    return started(bench, sink_to(rows, TransactionalFileSink(bench.sink, partition_by=["half"])))


def counted(frame: Any) -> Counter[Row]:
    return Counter(zip(frame["id"].to_list(), frame["v"].to_list(), strict=True))


def seen_by_readers(bench: Bench) -> Counter[Row]:
    """What plain Spark, pandas and pyarrow see, which must be the same."""
    seen = bench.seen_by_spark()
    assert counted(pd.read_parquet(bench.sink)) == seen
    assert counted(ds.dataset(bench.sink, partitioning="hive").to_table().to_pandas()) == seen
    assert Counter((file.name, 1) for file in TransactionalFileSink(bench.sink).committed_files()) == Counter(
        (path.name, 1) for path in bench.sink.rglob("part-*.parquet") if "_transactions" not in path.parts
    )
    return seen


def run_without_checkpoint(bench: Bench, files: int) -> None:
    """Land files, let batches of them commit, and cancel."""
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    before = bench.landed
    bench.land(files)
    per = bench.files_per_trigger
    wanted = (before + files) // per - 1

    def committed() -> bool:
        commits = [int(path.name) for path in (bench.live() / "commits").glob("[0-9]*")]
        return max(commits, default=-1) >= wanted

    eventually(f"batch {wanted} commits", committed, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    bench.until_done = True


@pytest.mark.exhaustive
@pytest.mark.parametrize("query", [transactional, partitioned])
def test_readers_of_a_transactional_sink_see_what_checkpoints_cover(bench: Bench, query: Any) -> None:
    """Over a crash with the live location kept, one with it lost, and a rollback."""
    bench.query = query
    bench.tick(2)
    first = bench.expected()
    assert seen_by_readers(bench) == first
    run_without_checkpoint(bench, 2)
    assert seen_by_readers(bench) == first  # two more batches are pending
    kept = bench.tick()
    assert kept.started.restored is not None
    assert (kept.started.restored.kind, kept.started.restored.batch) == ("salvage", 3)
    assert "pending data files committed" in kept.started.sink
    assert seen_by_readers(bench) == bench.expected()

    run_without_checkpoint(bench, 2)
    remove_tree(bench.working)
    before = seen_by_readers(bench)
    lost = bench.tick(1)
    assert lost.started.restored is not None
    assert lost.started.restored.batch == 3
    assert seen_by_readers(bench) == bench.expected() != before

    bench.files_per_trigger = 3
    back = bench.tick(1, restore_from="chk-1")
    assert "data files" in back.started.sink
    assert seen_by_readers(bench) == bench.expected()
    late = next(item for item in bench.checkpoints() if item.batch > 3 and item.epoch < back.completed[0].epoch)
    assert str(bench.sink) in bench.refused(SinkMismatch, restore_from=late.reference).message
    assert not list(bench.sink.rglob("_transactions/pending/*/*"))


def test_no_row_of_a_transactional_sink_is_ever_taken_back(bench: Bench) -> None:
    """A reader that polls while checkpoints complete: what it has seen once it sees until the end."""
    bench.query = transactional
    bench.land(1)
    bench.until_done = False
    launch = bench.launch(bench.job(config=OFTEN))
    seen: Counter[Row] = Counter()
    vanished: list[Counter[Row]] = []
    polls: list[int] = []
    stop = threading.Event()

    def poll() -> None:
        nonlocal seen
        while not stop.is_set():
            listed = TransactionalFileSink(bench.sink).committed_files()
            now = counted(pd.concat([pd.read_parquet(file) for file in listed])) if listed else Counter()
            if seen - now:
                vanished.append(seen - now)
            seen = now
            polls.append(len(listed))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for _ in range(6):
            bench.land(1)
            eventually(
                "it is checkpointed",
                lambda: bool(launch.completed) and launch.completed[-1].batch == bench.landed - 1,
                unless=launch.check,
            )
        launch.run.cancel()
        launch.result()
    finally:
        stop.set()
        reader.join()
    assert not vanished
    assert len(set(polls)) > 2
    assert seen_by_readers(bench) == bench.expected()


def test_a_checkpoint_that_completes_while_the_job_is_canceled_counts_as_any_other(bench: Bench) -> None:
    """It is told of, as it is retained, and readers see what it covers."""
    bench.query = transactional
    bench.land(2)
    bench.until_done = False
    canceled: list[Launch] = []
    queries = bench.spark._jsparkSession.sharedState().activeStreamingQueries()

    def cancel_before_it_is_there(operation: Operation) -> None:
        if canceled and operation.name == "create" and operation.path.endswith("_metadata"):
            canceled[0].run.cancel()
            eventually("the query is stopped", lambda: not queries.size())

    launch = bench.launch(
        bench.job(config=OFTEN, filesystem=FaultInjectingFileSystem(bench.filesystem, cancel_before_it_is_there))
    )
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    canceled.append(launch)
    bench.land(1)
    assert launch.result().status is JobStatus.CANCELED
    assert bench.checkpoints()
    assert launch.completed == bench.checkpoints()
    log = TransactionalFileSink(bench.sink)._log
    assert max(file.batch for file in log.committed(log.line())) == launch.completed[-1].batch


def test_before_the_first_commit_readers_find_nothing(bench: Bench) -> None:
    bench.query = transactional
    run_without_checkpoint(bench, 1)
    assert pd.read_parquet(bench.sink).empty
    with pytest.raises(Exception, match="UNABLE_TO_INFER_SCHEMA"):
        bench.spark.read.parquet(str(bench.sink))
    assert bench.spark.read.schema("id int, v int").parquet(str(bench.sink)).count() == 0
    error = bench.refused(SinkNotEmpty, restore_from="none")
    assert "_transactions" in error.message
    bench.tick()
    assert seen_by_readers(bench) == bench.expected()


# --- sinks of the user's own ------------------------------------------------------------------------------------------


class Table:
    """A table of a database: every batch is appended, and a rollback deletes."""

    def __init__(self, bench: Bench) -> None:
        self.path = bench.root / "table.db"
        self.bench = bench
        bench.root.mkdir(parents=True, exist_ok=True)
        with self.connect() as database:
            database.execute("CREATE TABLE IF NOT EXISTS delays (batch INT, id INT, v INT)")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60)) as database, database:
            yield database

    def write(self, rows: DataFrame, batch: int) -> None:
        with self.connect() as database:
            database.executemany(
                "INSERT INTO delays VALUES (?, ?, ?)", [(batch, row["id"], row["v"]) for row in rows.collect()]
            )

    def replace(self, rows: DataFrame, batch: int) -> None:
        planned = PlanArchive(self.bench.filesystem, self.bench.name, self.job_id()).planned(batch)
        assert planned is not None, f"batch {batch} is written before its boundaries are durable"
        with self.connect() as database:
            database.execute("DELETE FROM delays WHERE batch = ?", (batch,))
        self.write(rows, batch)

    def job_id(self) -> str:
        chosen = self.bench.catalog.choice()
        assert chosen is not None
        return chosen[1].job_id

    def rollback_to(self, batch: int, value: Any) -> None:
        assert value == (None if batch < 0 else {"rows up to": batch})
        with self.connect() as database:
            database.execute("DELETE FROM delays WHERE batch > ?", (batch,))

    def newest_batch(self) -> int | None:
        with self.connect() as database:
            (newest,) = database.execute("SELECT max(batch) FROM delays").fetchone()
        return None if newest is None else int(newest)

    def rows(self) -> Counter[Row]:
        with self.connect() as database:
            return Counter((key, value) for key, value in database.execute("SELECT id, v FROM delays"))

    def appending(self) -> ForeachBatchSink:
        return ForeachBatchSink(
            "delays",
            self.write,
            rollback_to=self.rollback_to,
            position=lambda batch: {"rows up to": batch},
            newest_batch=self.newest_batch,
        )

    def replacing(self) -> ForeachBatchSink:
        return ForeachBatchSink("delays", self.replace)


def appending(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return started(bench, sink_to(distinct(bench, session), Table(bench).appending()))


def replacing(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return started(bench, sink_to(distinct(bench, session), Table(bench).replacing()))


@pytest.mark.parametrize("query", [pytest.param(appending, marks=pytest.mark.exhaustive), replacing])
def test_a_table_is_exact_after_crashes_and_rollbacks(bench: Bench, query: Any) -> None:
    bench.query = query
    table = Table(bench)
    run_without_checkpoint(bench, 2)
    remove_tree(bench.working)  # before the first checkpoint
    bench.files_per_trigger = 2
    bench.tick(1)
    assert table.rows() == bench.expected()
    bench.files_per_trigger = 1
    for _ in range(3):
        bench.tick(1)

    bench.files_per_trigger = 5
    for back in (-2, -4):
        target = bench.checkpoints()[back]
        launch = bench.tick(1, restore_from=target.reference)
        assert launch.started.restored == target
        assert table.rows() == bench.expected()
        bench.tick(1)
        assert table.rows() == bench.expected()
    if query is replacing:
        abandoned = [item for item in bench.checkpoints() if item.epoch < launch.completed[0].epoch][-1]
        refused = bench.refused(RestoreWithLoss, restore_from=abandoned.reference)
        assert "cannot go back and may have batches up to" in refused.message
    assert table.rows() == bench.expected()


def test_of_input_that_goes_a_batch_is_known_before_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark deletes the input of a batch when it plans the next one; a restore must know what is missing."""
    monkeypatch.setattr(archiver, "_EVERY", 3600.0)  # as where the process dies before the next look
    table = Table(bench)

    def deleting(bench: Bench, session: SparkSession) -> DataStreamWriter:
        stream = session.readStream.schema(SCHEMA).option("cleanSource", "delete").option("maxFilesPerTrigger", 1)
        rows = stream.json(str(bench.source)).dropDuplicates(["id"]).select("id", "v")
        return started(bench, sink_to(rows, ForeachBatchSink("delays", table.replace, rollback_to=table.rollback_to)))

    bench.query = deleting
    bench.tick(3)
    assert table.rows() == bench.expected()


def test_a_recorded_position_survives_the_process(bench: Bench) -> None:
    bench.query = appending
    bench.tick(1)
    table = Table(bench)
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(2)
    eventually("they are written", lambda: table.rows() == bench.expected(), unless=launch.check)
    bench.await_committed(launch)
    launch.run.cancel()
    launch.result()
    bench.until_done = True
    restored = bench.tick(1).started.restored
    assert restored is not None
    assert restored.kind == "salvage"
    assert restored.sink == {"kind": "foreachBatch", "path": "delays", "batch": 2, "value": {"rows up to": 2}}
    assert table.rows() == bench.expected()
    refusal = bench.refused(SinkNotEmpty, restore_from="none")
    assert "batch 3" in refusal.message


@pytest.mark.exhaustive
def test_the_users_callables_may_raise(bench: Bench) -> None:
    """Each once: the run says which it was, and its restart strategy brings it back; the outcome is exact."""
    table = Table(bench)
    failing = {"write", "position", "newest_batch"}

    def once(name: str) -> None:
        if name in failing:
            failing.remove(name)
            raise ZeroDivisionError(f"no luck with {name}")

    class Unlucky(Table):
        def write(self, rows: DataFrame, batch: int) -> None:
            super().write(rows, batch)
            once("write")

        def rollback_to(self, batch: int, value: Any) -> None:
            once("rollback_to")
            super().rollback_to(batch, value)
            once("rollback_to, done")

        def newest_batch(self) -> int | None:
            once("newest_batch")
            return super().newest_batch()

    def position(batch: int) -> Json:
        once("position")
        return {"rows up to": batch}

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        unlucky = Unlucky(bench)
        sink = ForeachBatchSink(
            "delays",
            unlucky.write,
            rollback_to=unlucky.rollback_to,
            position=position,
            newest_batch=unlucky.newest_batch,
        )
        return started(bench, sink_to(distinct(bench, session), sink))

    bench.land(2)
    job = bench.job(query=query, restart=FixedDelayRestart(attempts=9, delay=timedelta(0)))
    launch = bench.launch(job)
    assert launch.result().status is JobStatus.FINISHED
    newest, *others = (event.error for event in launch.restarts)
    assert newest == "Sink 'delays' could not tell its newest batch: ZeroDivisionError: no luck with newest_batch"
    assert [f"no luck with {name}" in reason for name, reason in zip(["write", "position"], others, strict=True)] == [
        True,
        True,
    ]
    failing |= {"rollback_to", "rollback_to, done"}
    bench.land(1)
    launch = bench.launch(job, restore_from="chk-1")
    assert launch.result().status is JobStatus.FINISHED
    assert ["could not be set back to batch 1" in event.error for event in launch.restarts] == [True, True]
    assert table.rows() == bench.expected()


@pytest.mark.quick
def test_a_custom_sink_goes_back_by_its_callables(bench: Bench) -> None:
    """A writer that remembers no batch; its position is asked when a checkpoint is taken."""
    table = Table(bench)

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = CustomSink("flights", position=lambda batch: {"rows up to": batch}, rollback_to=table.rollback_to)
        writer = distinct(bench, session).writeStream.foreachBatch(table.write)
        return started(bench, sink_to(writer, sink))

    bench.query = query
    for _ in range(3):
        bench.tick(1)
    assert bench.checkpoints()[-1].sink == {"kind": "custom", "path": "flights", "batch": 2, "value": {"rows up to": 2}}
    run_without_checkpoint(bench, 2)
    bench.files_per_trigger = 3
    bench.tick(1)
    assert table.rows() == bench.expected()
    launch = bench.tick(1, restore_from="chk-1")
    assert launch.started.sink == "flights was told to go back to batch 0"
    assert table.rows() == bench.expected()


def test_what_sink_to_refuses(bench: Bench, spark: SparkSession) -> None:
    bench.land(1)
    rows = bench.read(spark)
    table = Table(bench)
    with pytest.raises(InvalidConfiguration, match="is given the rows, not a writer"):
        sink_to(rows.writeStream, table.appending())
    with pytest.raises(InvalidConfiguration, match="does not write rows itself"):
        sink_to(rows, SparkFileSink(bench.sink))
    for sink in (table.appending(), TransactionalFileSink(bench.sink)):
        by_hand = sink_to(rows, sink).trigger(availableNow=True)
        query = by_hand.option("checkpointLocation", str(bench.root / "by hand" / sink.kind)).start()
        with pytest.raises(Exception, match="started by hand"):
            query.awaitTermination()
    assert not table.rows()
    assert not tree(bench.sink)


@pytest.mark.exhaustive
def test_a_new_lineage_replays_its_own_batches_before_its_first_checkpoint(bench: Bench) -> None:
    """It began from another lineage's checkpoint, and that lineage's later batches are not its own."""
    bench.query = replacing
    bench.tick(1)
    bench.tick(1)
    bench.files_per_trigger = 2
    bench.until_done = False
    launch = bench.launch(restore_from="chk-2", claim_mode=RecoveryClaimMode.NO_CLAIM)
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    table = Table(bench)
    for _ in range(2):
        bench.land(2)
        eventually("they are written", lambda: table.rows() == bench.expected(), unless=launch.check)
    committed = bench.await_committed(launch)
    launch.run.cancel()
    launch.result()
    bench.until_done = True
    remove_tree(bench.working)
    bench.files_per_trigger = 100
    again = bench.tick(1)
    assert again.started.restored is not None
    assert again.started.restored.batch == 1
    # A batch of one file where the query looked between two that landed.
    assert committed >= 3
    assert again.of(Replaying)[0].last == committed
    assert table.rows() == bench.expected()


def test_a_sink_that_is_renamed_before_the_first_checkpoint_goes_back_to_nothing(bench: Bench) -> None:
    held: dict[str, list[tuple[int, Row]]] = {"first": [], "second": []}

    def into(name: str) -> Any:
        def write(rows: DataFrame, batch: int) -> None:
            held[name] += [(batch, tuple(row)) for row in rows.collect()]

        def rollback_to(batch: int, _: Json) -> None:
            held[name] = [kept for kept in held[name] if kept[0] <= batch]

        def newest_batch() -> int | None:
            return max((batch for batch, _ in held[name]), default=None)

        sink = ForeachBatchSink(name, write, rollback_to=rollback_to, newest_batch=newest_batch)
        return lambda bench, session: started(bench, sink_to(distinct(bench, session), sink))

    for name in held:
        bench.query = into(name)
        run_without_checkpoint(bench, 1)
        remove_tree(bench.working)
    assert not bench.checkpoints()
    launch = bench.tick(1)
    assert launch.started.sink == "second was told to go back to nothing"
    assert Counter(row for _, row in held["second"]) == bench.expected()
