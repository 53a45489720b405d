"""Waiting for the tasks of a query that has ended.

Spark's ``stop()`` waits for the query and not for its tasks: they are told to end and may write for a moment longer. In
the same JVM that moment can reach into the next attempt, behind the back of the sink that was just set back.

Which tasks run Spark tells by events that it delivers later: under load a task that has just begun is not known yet. So
all events are awaited before each look, and two looks in a row must find nothing.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["await_tasks"]

_log = logging.getLogger(__name__)

#: The last jobs of a query; those before them are over, or it could not have gone on.
_JOBS = 3
_LOOK = 0.02
#: So many looks in a row find nothing: the end of a job and the begin of its last task may be told in either order.
_LOOKS = 2
#: Milliseconds in which Spark must have told what it knows.
_DELIVERY = 5_000


def await_tasks(spark: SparkSession, group: str, patience: float = 10.0) -> bool:
    """Wait until none of the tasks of a query that has ended runs any more; ``False`` when that took too long.

    Args:
        spark: any session of the same Spark.
        group: of its jobs, which is the query's ``runId``.
        patience: seconds.
    """
    context = spark.sparkContext
    until, quiet = time.monotonic() + patience, 0
    while True:
        _deliver(context)
        active = _active(context.statusTracker(), group)
        quiet = 0 if active else quiet + 1
        if quiet == _LOOKS:
            return True
        if active and time.monotonic() > until:
            _log.warning("%d tasks of a query still run %.0f s after its end; they may still write.", active, patience)
            return False
        time.sleep(_LOOK)


def _deliver(context: SparkContext) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - PySpark is loaded where it runs

    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(_DELIVERY)  # noqa: SLF001
    except Py4JJavaError as error:  # so many events come in that there is no end of them
        _log.info("Spark has not told all it knows of its tasks: %s", error)


def _active(tracker: StatusTracker, group: str) -> int:
    """How many tasks run, and one for each job whose end is not known yet."""
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))[-_JOBS:]]
    known = [job for job in jobs if job is not None]
    stages = [tracker.getStageInfo(stage) for job in known for stage in job.stageIds]
    running = sum(job.status == "RUNNING" for job in known)
    return running + sum(stage.numActiveTasks for stage in stages if stage is not None)
