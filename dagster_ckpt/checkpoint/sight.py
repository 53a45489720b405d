"""Looks at a job again and again, and asks the storage only for what may have changed since the last look.

The records of an epoch are created once and never change until a sweep deletes them, so the newest claim, its choice
and its end are read once. What shows that they are still the newest is looked at each time: the heartbeat of a run
that lives, or the listing of the epochs. After a sweep has deleted all records of a job, the epochs begin with 1 again,
so a claim of the same epoch may be another claim. A heartbeat names the run of the claim, a record that is no longer
listed tells of a sweep, and the claim of a job that is over is read again now and then. A look is enough to see that
nothing is to be done; whoever is to act reads everything anew.

A bucket is asked no more often than the run beats: in between, a look only checks whether the run's process, if it is
of this host, lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from dagster_ckpt.checkpoint.attendance import Attendance, attendance_of
from dagster_ckpt.checkpoint.control import Choice, Claim, End, Heartbeat, JobRecords
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import Clock

__all__ = ["Sight", "look"]

#: After two timeouts of the lease, and at least so many seconds, the epochs are listed also for a job whose run beats:
#: a newer run may have died before its first beat, while the older run still beats. After this time the claim of a job
#: that is over is read again, too. Each job has its own share of this time, so that not all jobs are asked for at once.
_ANEW = 10.0
#: In a bucket the next claim is asked for instead, and the epochs are listed after so many seconds, of which each job
#: has its own share, too.
_LISTED = 3600.0
#: Seconds between two ticks of a sensor: a run that beats as often is looked at by each tick.
_TICK = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at a job that has been started has shown.

    Attributes:
        claim: of the highest epoch.
        choice: of this epoch, ``None`` before it has chosen.
        end: of this epoch, ``None`` while it is open.
        dead: why the run that made the claim is dead, ``None`` while it may live.
        heartbeat: that the look has read, ``None`` for none.
        asked: on the monotonic clock, when the heartbeat was asked for.
        attendance: who attends the driver of a run that lives; ``None`` for a driver that is the run's own process.
        anew_at: on the monotonic clock; from then on the next claim is asked for, whatever the heartbeat says, and the
            claim of a job that is over is read again.
        list_at: on the monotonic clock; from then on the epochs are listed again, whatever the heartbeat says.
    """

    claim: Claim
    choice: Choice | None
    end: End | None
    dead: str | None
    anew_at: float
    heartbeat: Heartbeat | None
    asked: float
    attendance: Attendance | None = None
    list_at: float = 0.0

    @property
    def is_attended(self) -> bool:
        """Whether a living run reports of the driver: the run of the driver itself, or one that attends the driver."""
        return self.attendance is None or self.attendance.dead is None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and no restart is wanted. Only a new claim changes that."""
        return self.dead is not None and self.end is not None and self.end.is_final

    @property
    def kinds(self) -> set[str]:
        """The records of the epoch that the look has read: all are listed until a sweep deletes them."""
        read = {"claim": self.claim, "choice": self.choice, "end": self.end}
        return {kind for kind, record in read.items() if record is not None}


def look(records: JobRecords, clock: Clock, before: Sight | None, turn: float = _TICK) -> Sight | None:
    """Look at a job; ``None`` for a job that has never been started.

    Args:
        records: of the job.
        clock: of this host.
        before: what the last look has shown, ``None`` for a first look.
        turn: seconds between two looks of the caller.

    Raises:
        CorruptCheckpoint: a record cannot be read.
        StorageError: the storage failed.
    """
    if before is not None and _rests(before, records, clock, turn):
        return before
    if before is not None and before.dead is None and before.choice is not None:
        before = _still_newest(before, records, clock)
        asked = clock.monotonic()
        heartbeat = records.heartbeat.read() if asked < before.anew_at else None
        if heartbeat is not None and _is_of(heartbeat, before.claim) and not heartbeat.stopped:
            dead, _ = records.heartbeat.judge(heartbeat, before.claim, before.end, clock, asked)
            if dead is None:
                attendance = before.attendance and attendance_of(records, before.claim, clock, before.attendance)
                return replace(before, heartbeat=heartbeat, asked=asked, attendance=attendance)
    names = records.epochs.names()
    if not names:
        return None
    epoch = max(names)
    known = before if before is not None and before.claim.epoch == epoch and before.kinds <= names[epoch] else None
    if known is not None and known.is_over:
        if clock.monotonic() < known.anew_at:
            return known
        if records.epochs.read_claim(epoch) == known.claim:
            return replace(known, anew_at=_anew_at(known.claim, clock, known.heartbeat))
        known = None
    asked = clock.monotonic()
    heartbeat = records.heartbeat.read()
    if known is not None and (heartbeat is None or not _is_of(heartbeat, known.claim)):
        known = None
    claim = records.epochs.read_claim(epoch) if known is None else known.claim
    if claim is None:
        return None
    choice, end = (None, None) if known is None else (known.choice, known.end)
    if choice is None and "choice" in names[epoch]:
        choice = records.epochs.read_choice(epoch)
    if end is None and "end" in names[epoch]:
        end = records.epochs.read_end(epoch)
    dead, _ = records.heartbeat.judge(heartbeat, claim, end, clock, asked)
    # A driver is submitted before its claim, so what was no such driver at an earlier look never becomes one.
    submitted = dead is None and (known is None or known.dead is not None or known.attendance is not None)
    attendance = attendance_of(records, claim, clock) if submitted else None
    anew_at = _anew_at(claim, clock, heartbeat)
    list_at = clock.monotonic() + _LISTED * _share(claim) if records.filesystem.is_distant else anew_at
    return Sight(claim, choice, end, dead, anew_at, heartbeat, asked, attendance, list_at)


def _still_newest(before: Sight, records: JobRecords, clock: Clock) -> Sight:
    """The last look, for longer if the epochs need not be listed to see that its claim is still the newest."""
    if not before.anew_at <= clock.monotonic() < before.list_at:
        return before
    if records.epochs.read_claim(before.claim.epoch + 1) is not None:
        return before
    return replace(before, anew_at=min(before.list_at, _anew_at(before.claim, clock, before.heartbeat)))


def _is_of(heartbeat: Heartbeat, claim: Claim) -> bool:
    """Whether the run that made the claim wrote the heartbeat: after a sweep, two runs have claimed the same epoch."""
    return (heartbeat.epoch, heartbeat.run_id) == (claim.epoch, claim.run_id)


def _rests(before: Sight, records: JobRecords, clock: Clock, turn: float) -> bool:
    """Whether the storage need not be asked yet: the run was seen to live within the time between two beats."""
    heartbeat = before.heartbeat
    if heartbeat is None or heartbeat.stopped or before.dead is not None or before.choice is None:
        return False
    if not _is_of(heartbeat, before.claim) or clock.monotonic() - before.asked >= _rest(heartbeat, records, turn):
        return False
    return records.heartbeat.judge(heartbeat, before.claim, before.end, clock, before.asked)[0] is None


def _rest(heartbeat: Heartbeat, records: JobRecords, turn: float) -> float:
    rest = heartbeat.lease.look(0.0, records.filesystem)
    return rest if rest > turn else 0.0


def _anew_at(claim: Claim, clock: Clock, heartbeat: Heartbeat | None) -> float:
    lease = Lease() if heartbeat is None else heartbeat.lease
    return clock.monotonic() + max(_ANEW, 2 * lease.timeout) * _share(claim)


def _share(claim: Claim) -> float:
    """The job's own part of a time, from a half to the whole."""
    return (1 + crc32(claim.token.encode()) / 2**32) / 2
