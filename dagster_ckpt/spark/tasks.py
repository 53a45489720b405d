"""Waiting for the tasks of a query that has ended.

Spark's ``stop()`` waits for the query and not for its tasks: they are told to end and may write for a moment longer. In
the same JVM that moment can reach into the next attempt, behind the back of the sink that was just set back.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["await_tasks"]

_log = logging.getLogger(__name__)

#: The last jobs of a query; those before them are over, or it could not have gone on.
_JOBS = 3
_LOOK = 0.02


def await_tasks(spark: SparkSession, group: str, patience: float = 10.0) -> bool:
    """Wait until none of the tasks of a query that has ended runs any more; ``False`` when that took too long.

    Args:
        spark: any session of the same Spark.
        group: of its jobs, which is the query's ``runId``.
        patience: seconds.
    """
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + patience
    while active := _active(tracker, group):
        if time.monotonic() > until:
            _log.warning("%d tasks of a query still run %.0f s after its end; they may still write.", active, patience)
            return False
        time.sleep(_LOOK)
    return True


def _active(tracker: StatusTracker, group: str) -> int:
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))[-_JOBS:]]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)
