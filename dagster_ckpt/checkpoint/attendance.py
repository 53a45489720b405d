"""Whether somebody attends the driver of a job: a driver that was submitted outlives the Dagster run that reports."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.control import Claim, JobRecords, unchanged_for
from dagster_ckpt.clock import Clock

__all__ = ["Attendance", "attendance_of"]


@dataclass(frozen=True, slots=True)
class Attendance:
    """Who attends a submitted driver.

    Attributes:
        run_id: the Dagster run that attended it last.
        dead: why that run attends it no longer, ``None`` while the run may live.
        has_told: that run has stopped in order and without an interrupt: it has told Dagster how the driver ended.
    """

    run_id: str
    dead: str | None
    has_told: bool = False


def attendance_of(records: JobRecords, claim: Claim, clock: Clock) -> Attendance | None:
    """Who attends the driver of the newest claim; ``None`` for a driver that is the run's own process.

    For whoever looks again and again: how long a sign of life was seen unchanged is remembered from look to look.

    Args:
        records: of the job.
        claim: the newest.
        clock: of this host.

    Raises:
        CorruptCheckpoint: a record cannot be read.
        StorageError: the storage failed.
    """
    if records.submissions.of(claim.run_id) is None:
        return None
    asked = clock.monotonic()
    sign = records.attendant.read()
    if sign is None:
        return Attendance(claim.run_id, "it has left no sign of life")
    seen = unchanged_for((*records.attendant.key, "attendant"), (sign.run_id, sign.sequence), clock, asked)
    dead = sign.is_dead(clock, unchanged=seen, asked=asked)
    return Attendance(sign.run_id, dead, has_told=sign.stopped and not sign.interrupted)
