"""Whether a query has run a batch, or has skipped it: asked of what Spark keeps about its SQL executions.

Spark plans every batch as one SQL execution, and describes that by the run of the query and the batch. A batch that the
sink skips is such an execution, too, but one that starts no job.
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
#: How long Spark may take to deliver what has happened so far.
_PATIENCE_MS = 2000
#: The web UI is given HTML.
_LINE_END = re.compile(r"<br/>|\n")


def has_run(session: SparkSession, runs: Collection[str], batch: int) -> bool | None:
    """Whether a batch was run with a job, ``None`` while that is not known (yet, or any more).

    Spark tells its executions a moment later than it ends them, which is waited for, and keeps the newest thousand.

    Args:
        session: any session of the JVM that the query runs in.
        runs: the run ids of the query that count.
        batch: its number.
    """
    try:
        if (found := _look_up(session, runs, batch)) is None:
            session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)  # noqa: SLF001
            found = _look_up(session, runs, batch)
    except Exception as error:  # whatever the JVM raises: it is not known
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
