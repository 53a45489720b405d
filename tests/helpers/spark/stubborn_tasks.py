"""Tasks that go on after the end of what they were started for."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_ckpt.spark.query.tasks import _active
from tests.jobs.harness import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds of arithmetic in one row: nothing between rows is there to notice an interruption.
_INNER = "aggregate(sequence(1, 10000), 0L, (sum, y) -> sum + hash(x, y, sum) % 7)"
_STUBBORN = f"aggregate(sequence(1, 3000), 0L, (sum, x) -> sum + {_INNER}) + id"


def begin_stubborn_task(spark: SparkSession, group: str) -> None:
    """Run a job of that group until it is cancelled, and return while a task of it still runs."""
    context, mark = spark.sparkContext, str(uuid.uuid4())

    def run() -> None:
        context.setJobGroup(group, "stubborn", interruptOnCancel=True)
        with suppress(Exception):
            told = f"java_method('java.lang.System', 'setProperty', '{mark}', 'begun')"
            spark.range(0, 1, 1, 1).selectExpr(told, _STUBBORN).write.format("noop").mode("overwrite").save()

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    eventually("its row is begun", lambda: spark._jvm.System.getProperty(mark) == "begun")  # type: ignore[union-attr]
    context.cancelJobGroup(group)
    worker.join(120)
    assert not worker.is_alive(), "the job is over"


def running_tasks(spark: SparkSession, group: str) -> int:
    """How many tasks of the group Spark knows to run."""
    return _active(spark.sparkContext.statusTracker(), group)
