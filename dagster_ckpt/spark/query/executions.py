"""Whether a query has run a batch or skipped the batch, according to Spark's records of its SQL executions.

Spark plans every batch as one SQL execution, whose description names the query's run and the batch. A batch that the
sink skips also has an execution, but the execution starts no job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["has_run"]

_log = logging.getLogger(__name__)

_RUN = "runId = "
_BATCH = "batch = "
#: How long Spark may take to deliver its pending events.
_PATIENCE_MS = 2000
#: Spark writes descriptions as HTML for its web UI.
_LINE_END = re.compile(r"<br/>|\n")


def has_run(session: SparkSession, runs: Collection[str], batch: int) -> bool | None:
    """Whether a batch was run with a job, ``None`` while that is unknown (not yet known, or forgotten).

    Spark records an execution a moment late, so this function waits. Spark keeps the newest thousand executions.

    Args:
        session: any session of the JVM that the query runs in.
        runs: the run ids of the query to consider.
        batch: the batch's number.
    """
    try:
        if (found := _look_up(session, runs, batch)) is None:
            session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)  # noqa: SLF001
            found = _look_up(session, runs, batch)
    except Exception as error:  # whatever the JVM raises: unknown
        _log.debug("Whether batch %d was run is not known: %s", batch, error)
        return None
    else:
        return found


def _look_up(session: SparkSession, runs: Collection[str], batch: int) -> bool | None:
    executions: Any = session._jsparkSession.sharedState().statusStore().executionsList()  # noqa: SLF001
    found: bool | None = None
    for number in reversed(range(executions.size())):
        execution = executions.apply(number)
        told = _LINE_END.split(str(execution.description()))
        if f"{_BATCH}{batch}" in told and any(f"{_RUN}{run}" in told for run in runs):
            if execution.jobs().size() > 0:
                return True
            if execution.completionTime().isDefined():
                found = False
    return found
