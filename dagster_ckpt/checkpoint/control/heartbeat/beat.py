"""One sign of life of the run that holds a job, and what the sign alone tells of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dagster_ckpt.checkpoint.format import CheckpointName, Count, Epoch, Moment, RunId, Seconds, Text
from dagster_ckpt.checkpoint.lease import UNSAID, Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import Clock

__all__ = ["ENDED_ELSEWHERE", "INTERRUPTED", "Completed", "FailedCheckpoints", "Heartbeat"]

#: Why a run is dead that was told to stop, though nobody had canceled the job (docs/adr/0015).
INTERRUPTED = "it was interrupted"
#: Of a run on another host that has ended its job in order: nobody here can tell whether its process goes on.
ENDED_ELSEWHERE = "it ended, on another host"


@dataclass(frozen=True, slots=True)
class Completed:
    """A checkpoint that was complete.

    Attributes:
        checkpoint: ``{job id}/chk-N``.
        epoch: the epoch that completed the checkpoint.
    """

    checkpoint: CheckpointName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FailedCheckpoints:
    """The checkpoint attempts that failed since one completed.

    Attributes:
        in_a_row: how many.
        reason: of the last one, for people.
        at: when it failed, seconds since 1970.
        number: of the last one.
    """

    in_a_row: Count
    reason: Text
    at: Moment
    number: Count


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The latest sign of life of the run that holds a job.

    Attributes:
        epoch: the epoch that the run holds.
        run_id: the Dagster run.
        processes: the driver first, then its JVM.
        sequence: rises with every beat.
        beat_at: seconds since 1970, by the run's clock: for people.
        stopped: the run ended in an orderly way and no longer holds the job.
        worker: the process of the Dagster run, where the driver is a separate step process below it.
        uptime: seconds on the monotonic clock of the run's host, which all processes of the host share; ``None`` in a
            record of a release that did not record it.
        completed: the newest checkpoint known to be complete, ``None`` before the first.
        interrupted: the run stopped because its process was told to end, while nobody had canceled the job.
        failed_checkpoints: the attempts that failed since a checkpoint completed, ``None`` for none.
        due_since: seconds since 1970, by the run's clock: since when a checkpoint is due that has not completed;
            ``None`` where none is due, as in an idle stream.
        lease: the run's own. A release that does not know this member judges by the default, so a heartbeat with
            another lease is of version 3, which such a release refuses to read.
    """

    VERSIONS: ClassVar = (2, 3)

    epoch: Epoch
    run_id: RunId
    processes: tuple[ProcessIdentity, ...]
    sequence: Count
    beat_at: Moment
    stopped: bool = False
    worker: ProcessIdentity | None = None
    uptime: Seconds | None = None
    completed: Completed | None = None
    interrupted: bool = False
    failed_checkpoints: FailedCheckpoints | None = None
    due_since: Moment | None = None
    lease: Lease = UNSAID

    @classmethod
    def following(cls, last: Heartbeat | None, epoch: int, run_id: str, lease: Lease, clock: Clock) -> Heartbeat:
        """The sign of life of this process that follows ``last``, ``None`` for its first one."""
        return cls(
            epoch=epoch,
            run_id=run_id,
            processes=(ProcessIdentity.current(),),
            sequence=0 if last is None else last.sequence + 1,
            beat_at=clock.time(),
            uptime=clock.monotonic(),
            lease=lease,
        )

    @property
    def version(self) -> int:
        """Of the record."""
        return self.VERSIONS[self.lease != UNSAID]

    def __post_init__(self) -> None:
        """Refuse a heartbeat without a process: nobody could check whether its run lives."""
        if not self.processes:
            raise ValueError("a heartbeat without a process")

    @property
    def name(self) -> tuple[str, int, int]:
        """No other beat has the same run, epoch and sequence."""
        return self.run_id, self.epoch, self.sequence

    def is_dead(self, clock: Clock, *, unchanged: float | None = None, asked: float | None = None) -> str | None:
        """Why the holder counts as dead, ``None`` while the holder may live.

        Args:
            clock: of this host.
            unchanged: the seconds for which this process has seen the heartbeat unchanged, ``None`` when it did not
                watch. Without watching, nobody can tell whether a holder on another host still beats, or whether a late
                beat of a holder on this host hides a newer one.
            asked: when the look that has shown this heartbeat began, on the monotonic clock; by default now.
        """
        if self.stopped:
            return "it ended"
        driver = self.processes[0]
        if driver.is_here and not driver.is_alive():
            return f"its process {driver.pid} is gone"
        silent = self.silent_for(clock, unchanged, asked)
        if silent is None or silent <= self.lease.timeout or (unchanged is not None and unchanged < self.lease.timeout):
            return None
        told = f"no heartbeat for {silent:.0f} s"
        if not driver.is_here:
            return told
        return (
            f"{told}, although its process {driver.pid} lives: it hangs, or the storage takes no files (a full disk?)"
        )

    def silent_for(self, clock: Clock, unchanged: float | None = None, asked: float | None = None) -> float | None:
        """Seconds since a beat, ``None`` where nobody can say; arguments as above."""
        if self.processes[0].is_here and self.uptime is not None:
            return (clock.monotonic() if asked is None else asked) - self.uptime
        return unchanged
