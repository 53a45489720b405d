"""Tasks that go on after the end of what they were started for."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.query.tasks import _active, await_tasks
from tests.jobs.harness import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds of arithmetic in one row: nothing between rows is there to notice an interruption.
_INNER = "aggregate(sequence(1, 10000), 0L, (sum, y) -> sum + hash(x, y, sum) % 7)"
_STUBBORN = f"aggregate(sequence(1, 3000), 0L, (sum, x) -> sum + {_INNER}) + id"


@pytest.fixture
def group() -> str:
    return str(uuid.uuid4())


def begin(spark: SparkSession, group: str) -> None:
    """Run a job of that group until it is cancelled, and return while a task of it still runs."""
    context = spark.sparkContext

    def run() -> None:
        context.setJobGroup(group, "stubborn", interruptOnCancel=True)
        with suppress(Exception):
            told = f"java_method('java.lang.System', 'setProperty', '{group}', 'begun')"
            spark.range(0, 1, 1, 1).selectExpr(told, _STUBBORN).write.format("noop").mode("overwrite").save()

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    eventually("its row is begun", lambda: spark._jvm.System.getProperty(group) == "begun")  # type: ignore[union-attr]
    context.cancelJobGroup(group)
    worker.join(120)
    assert not worker.is_alive(), "the job is over"


def running(spark: SparkSession, group: str) -> int:
    return _active(spark.sparkContext.statusTracker(), group)


def test_it_waits_for_tasks_that_outlive_their_job(spark: SparkSession, group: str) -> None:
    begin(spark, group)
    assert running(spark, group) > 0, "the job ended before its tasks"
    assert not await_tasks(spark, group, patience=0.0)
    assert await_tasks(spark, group, patience=240.0)
    assert running(spark, group) == 0


def test_of_nothing_there_is_nothing_to_wait_for(spark: SparkSession, group: str) -> None:
    assert await_tasks(spark, group, patience=0.0)
