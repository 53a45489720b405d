"""Whether somebody attends the driver of a job: a driver that was submitted outlives the Dagster run that reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_ckpt.checkpoint.control import Claim, Heartbeat, JobRecords
from dagster_ckpt.checkpoint.seen import unchanged_for
from dagster_ckpt.clock import Clock

__all__ = ["Attendance", "attendance_of", "run_that_waits"]


@dataclass(frozen=True, slots=True)
class Attendance:
    """Who attends a submitted driver.

    Attributes:
        run_id: the Dagster run that attended it last.
        dead: why that run attends it no longer, ``None`` while the run may live.
        has_told: that run has stopped in order and without an interrupt: it has told Dagster how the driver ended.
        sign: of that run, ``None`` for a run that has left none.
        asked: on the monotonic clock, when the sign was asked for.
    """

    run_id: str
    dead: str | None
    has_told: bool = False
    sign: Heartbeat | None = field(default=None, compare=False)
    asked: float = field(default=0.0, compare=False)

    def stands(self, records: JobRecords, clock: Clock) -> bool:
        """Whether a bucket need not be asked yet: the run lives, and its next sign of life is not due."""
        sign = self.sign
        if sign is None or self.dead is not None or not records.filesystem.is_distant:
            return False
        is_due = clock.monotonic() - self.asked >= sign.lease.interval
        return not is_due and sign.is_dead(clock, asked=self.asked) is None


def attendance_of(
    records: JobRecords,
    claim: Claim,
    clock: Clock,
    before: Attendance | None = None,
    *,
    is_driver_dead: bool = False,
) -> Attendance | None:
    """Who attends the driver of the newest claim; ``None`` for a driver that is the run's own process.

    For whoever looks again and again: how long a sign of life was seen unchanged is remembered from look to look.

    Args:
        records: of the job.
        claim: the newest.
        clock: of this host.
        before: what the last look at the same claim has shown, if it is to be believed for as long as it stands.
        is_driver_dead: then the job waits for the run, which ends by itself where it lives. So in a bucket, where signs
            are rare, the run counts as dead when a sign is overdue, and not when three are.

    Raises:
        CorruptCheckpoint: a record cannot be read.
        StorageError: the storage failed.
    """
    if before is not None and before.stands(records, clock):
        return before
    # A driver is submitted before its claim, so what the last look has shown of that stays true.
    if before is None and records.submissions.of(claim.run_id) is None:
        return None
    asked = clock.monotonic()
    sign, dead, seen = _last_sign(records, clock)
    if sign is None:
        return Attendance(claim.run_id, "it has left no sign of life")
    if is_driver_dead and dead is None and records.filesystem.is_distant and seen > sign.lease.settled:
        dead = f"its sign of life is overdue: the last one is {seen:.0f} s old"
    return Attendance(sign.run_id, dead, has_told=sign.stopped and not sign.interrupted, sign=sign, asked=asked)


def run_that_waits(records: JobRecords, claim: Claim, clock: Clock) -> str | None:
    """The living run that has submitted a driver after the newest claim, and waits for it to take the job over.

    For whoever looks again and again, as :func:`attendance_of`.

    Args:
        records: of the job.
        claim: the newest.
        clock: of this host.

    Raises:
        CorruptCheckpoint: a record cannot be read.
        StorageError: the storage failed.
    """
    submission = records.submissions.latest().standing
    if submission is None or submission.run_id == claim.run_id or submission.after != claim.epoch:
        return None
    sign, dead, _ = _last_sign(records, clock)
    return submission.run_id if sign is not None and sign.run_id == submission.run_id and dead is None else None


def _last_sign(records: JobRecords, clock: Clock) -> tuple[Heartbeat | None, str | None, float]:
    """The last sign of life of a run that attends a driver or waits for one, why that run is dead, and the sign's age.

    The age is for how many seconds this process has seen the sign unchanged.
    """
    asked = clock.monotonic()
    sign = records.attendant.read()
    if sign is None:
        return None, None, 0.0
    seen = unchanged_for((*records.attendant.key, "attendant"), (sign.run_id, sign.sequence), clock, asked)
    return sign, sign.is_dead(clock, unchanged=seen, asked=asked), seen
