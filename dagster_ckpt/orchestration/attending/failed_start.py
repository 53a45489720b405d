"""Why a run that should resume a job has no driver, on record for the sensor and for people."""

from __future__ import annotations

from contextlib import suppress

from dagster_ckpt.checkpoint import LONGEST_REASON, Failure, JobRecords, belongs_to_another
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint

__all__ = ["record_failed_start"]


def record_failed_start(
    records: JobRecords, run_id: str, series: int | None, error: CheckpointError, clock: Clock
) -> None:
    """Record why a run has no driver. Without a record the run counts as failed all the same, and nobody knows why.

    None is made when another run or deployment has the job.

    Args:
        records: of the job.
        run_id: the run that the driver was, or was to be, submitted for.
        series: the series that the run continues, ``None`` for a run of a user or a schedule, which nothing resumes.
        error: why.
        clock: wall time.
    """
    if series is None or belongs_to_another(error):
        return
    reason = error.message.partition("\n")[0][:LONGEST_REASON]
    failure = Failure(run_id, 1, clock.time(), None, reason, recoverable=error.recoverable, kind=type(error).__name__)
    with suppress(OSError, CorruptCheckpoint):  # the error itself must be raised, and counts
        records.failures.record(series, failure)
