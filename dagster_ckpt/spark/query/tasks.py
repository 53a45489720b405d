"""The end of a query: told to stop until the query has stopped, and waited for until no task of the query runs.

Spark's ``stop()`` interrupts the query once. An interrupt that comes while a batch is planned, or whose error the
job's own function catches, may be lost, and then the batch runs to its end, however long that takes.

Spark's ``stop()`` waits for the query, but not for its tasks: they are told to end, and may write for a moment longer.
In the same JVM they could still write during the next start, after the sink was rolled back. So a start of the job in
this process waits for the tasks of the queries before it, and fails while one of them still runs.

Spark reports running tasks by events, which arrive late: under load, a task that has just begun is not yet known. So
each look first waits for all events, and two looks in a row must find no task.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from dagster_ckpt.errors import QueryFailed

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["STOP_TIMEOUT_CONF", "await_tasks", "end_query", "flag_of_end", "refuse_running_tasks", "stop_query"]

_log = logging.getLogger(__name__)

#: How long Spark's ``stop()`` waits for the query; ``0``, Spark's default, is forever.
STOP_TIMEOUT_CONF = "spark.sql.streaming.stopTimeout"

#: How many of a query's last jobs are checked; all earlier jobs must be over for the query to have continued.
_JOBS = 3
_LOOK = 0.02
#: How many looks in a row must find nothing: the end of a job and the begin of its last task may arrive in any order.
_LOOKS = 2
#: Milliseconds that Spark has to deliver its pending events.
_DELIVERY = 5_000
_TIMEOUT = "java.util.concurrent.TimeoutException"
#: Seconds to wait for the tasks of an ended query.
_PATIENCE = 10.0

#: Queries of this process that are to end, and may have tasks that still write: of which job, and of which Spark.
_ending: dict[StreamingQuery, tuple[str, SparkContext]] = {}


def flag_of_end(query: StreamingQuery) -> threading.Event:
    """A flag that is set at the moment at which a query ends, or its JVM does: a hint, after which the query is asked.

    A thread waits for that in the JVM. It ends with the query.
    """
    over = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):  # the error of the query, or of a JVM that is gone
            query.awaitTermination()
        over.set()

    try:
        threading.Thread(target=wait, name="dagster-ckpt-end-of-query", daemon=True).start()
    except RuntimeError as error:  # there can be no more threads
        _log.warning("The end of query %s is noticed a moment later: %s", query.runId, error)
    return over


def stop_query(query: StreamingQuery) -> None:
    """Stop a query, and interrupt the query's batch again each time that ``STOP_TIMEOUT_CONF`` has passed.

    Returns at once if the query has ended. Tasks may still run afterwards: see :func:`await_tasks`.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - PySpark is loaded where it runs

    while True:
        try:
            return query.stop()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != _TIMEOUT:
                raise
            _log.warning("Query %s was told to stop and still runs its batch; it is interrupted again.", query.runId)


def end_query(spark: SparkSession, job: str, query: StreamingQuery) -> None:
    """Stop a query and wait for its tasks; those that go on keep later starts of the job in this process waiting.

    Args:
        spark: any session of the same Spark.
        job: tells the job from all others.
        query: the query.

    Raises:
        QueryFailed: as :func:`refuse_running_tasks`.
    """
    _ending[query] = job, spark.sparkContext
    refuse_running_tasks(spark, job)


def refuse_running_tasks(spark: SparkSession, job: str) -> None:
    """Wait until no task runs of the queries of a job that have ended in this process.

    Args:
        spark: any session of the Spark that is to run the job; the tasks of another Spark have ended with it.
        job: tells the job from all others.

    Raises:
        QueryFailed: a task still runs after some time.
    """
    for query, (of, context) in list(_ending.items()):
        if of != job:
            continue
        if context is spark.sparkContext:
            stop_query(query)
            if not await_tasks(spark, str(query.runId), _PATIENCE):
                raise QueryFailed(
                    f"Tasks of an earlier query of job {job} have not ended, and may still write.",
                    hint="The next start waits for them again. If they never end, end the process of the driver.",
                )
        _ending.pop(query, None)


def await_tasks(spark: SparkSession, group: str, patience: float = _PATIENCE) -> bool:
    """Wait until no task of an ended query runs; ``False`` when that took too long.

    Args:
        spark: any session of the same Spark.
        group: the group of the query's jobs, which is the query's ``runId``.
        patience: seconds to wait.
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
    except Py4JJavaError as error:  # so many events arrive that the queue never empties
        _log.info("Spark has not told all it knows of its tasks: %s", error)


def _active(tracker: StatusTracker, group: str) -> int:
    """How many tasks run, plus one for each job that is not known to have ended."""
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))[-_JOBS:]]
    known = [job for job in jobs if job is not None]
    stages = [tracker.getStageInfo(stage) for job in known for stage in job.stageIds]
    running = sum(job.status == "RUNNING" for job in known)
    return running + sum(stage.numActiveTasks for stage in stages if stage is not None)
