"""A query stops although its batch does not heed the first interrupt; its tasks are waited for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.spark.events import Replaying
from dagster_ckpt.spark.query import await_tasks, stop_query, streaming_session, tasks
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.helpers.spark.stubborn_tasks import begin_stubborn_task, running_tasks
from tests.jobs.harness import Bench, Row, eventually, remove_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Spark's ``stop()`` ends one of these attempts by canceling its job, and one by interrupting its thread.
_ATTEMPTS = 4


def test_a_function_that_tries_again_after_its_interrupt_is_interrupted_again(bench: Bench) -> None:
    """Spark's own ``stop()`` waits for such a batch as long as the batch takes."""
    bench.land(1)
    attempts: list[int] = []
    released = bench.root / "released"
    path = str(released)

    def held(rows: object) -> object:
        import os  # noqa: PLC0415 - in Spark's worker

        while not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.05)
        return rows

    def stubborn(batch: DataFrame, _number: int) -> None:
        for attempt in range(_ATTEMPTS):
            attempts.append(attempt)
            try:
                batch.rdd.map(held).count()
            except Exception as error:
                last = error
            else:
                return
        raise last

    session = streaming_session(bench.spark, None)
    session.conf.set("spark.sql.streaming.stopTimeout", "500ms")
    writer = bench.read(session).writeStream.foreachBatch(stubborn)
    query = writer.option("checkpointLocation", str(bench.root / "location")).start()
    stop = threading.Thread(target=stop_query, args=(query,), daemon=True)
    try:
        eventually("the batch runs", lambda: bool(attempts))
        stop.start()
        eventually("the query has stopped", lambda: not stop.is_alive())
        assert not query.isActive
        assert await_tasks(bench.spark, str(query.runId))
        assert attempts == list(range(_ATTEMPTS)), "each attempt needed an interrupt of its own"
    finally:
        released.touch()


def test_a_session_of_a_query_lets_stop_return_unless_the_user_says_otherwise(bench: Bench) -> None:
    assert streaming_session(bench.spark, None).conf.get("spark.sql.streaming.stopTimeout") == "5s"


@pytest.mark.parametrize("replays", [False, True])
def test_a_restart_writes_nothing_while_a_task_of_the_query_before_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, replays: bool
) -> None:
    """The task has got the batch, too: what it writes late would be there beside what the restart writes."""
    monkeypatch.setattr(tasks, "_PATIENCE", 0.2)
    held: dict[int, list[Row]] = {}
    ended: list[str] = []
    still_running: list[int] = []
    fails = not replays

    def write(rows: DataFrame, batch: int) -> None:
        nonlocal fails
        context = rows.sparkSession.sparkContext
        still_running.extend(running_tasks(bench.spark, group) for group in ended)
        held[batch] = [tuple(row) for row in rows.collect()]
        if fails:
            fails = False
            group = context.getLocalProperty("spark.jobGroup.id")
            assert group is not None
            ended.append(group)
            begin_stubborn_task(bench.spark, group)
            raise ValueError("the batch fails")

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).dropDuplicates(["id"]).select("id", "v")
        writer = sink_to(rows, ForeachBatchSink("batches", write))
        return writer.trigger(availableNow=True) if bench.until_done else writer

    bench.query = query
    bench.land(3)
    if replays:
        bench.until_done = False
        launch = bench.launch()
        eventually("the batches are written", lambda: len(held) == 3, unless=launch.check)
        bench.await_committed(launch)
        launch.run.cancel()
        launch.result()
        remove_tree(bench.working)
        bench.until_done = fails = True
    launch = bench.launch(bench.job(restart=FixedDelayRestart(500, timedelta(seconds=0.1))))
    assert launch.result().status is JobStatus.FINISHED
    assert still_running
    assert not any(still_running)
    first, *later = launch.restarts
    assert "the batch fails" in first.error
    assert later
    assert all("Tasks of an earlier query of job" in event.error for event in later)
    assert bool(launch.of(Replaying)) is replays
    assert Counter(row for rows in held.values() for row in rows) == bench.expected()
