"""Liveness: is the run that holds a job still alive? Safety does not depend on the answer: epochs provide safety.

A live run rewrites ``control/heartbeat`` every few seconds. On the run's own host its processes can be checked
directly; on another host, a heartbeat that does not change for the length of the lease means that the run is dead. The
lease is the one that the heartbeat announces, whatever the reader's own settings are.

No two clocks are compared, because nobody knows which of them is wrong. On one host the time since boot decides, which
nobody can set. For a heartbeat of another host, only the time counts for which the reader has seen it unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dagster_ckpt.checkpoint.control.epochs import Claim, End, Epochs
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    CheckpointName,
    Count,
    Epoch,
    RunId,
    Seconds,
    Text,
    encode_record,
    read_record,
)
from dagster_ckpt.checkpoint.lease import UNSAID, Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity, is_proven, this_host
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "INTERRUPTED",
    "Completed",
    "FailedCheckpoints",
    "Heartbeat",
    "HeartbeatFile",
    "beating_here",
    "unchanged_for",
]

#: Why a run is dead that was told to stop, though nobody had canceled the job (docs/adr/0015).
INTERRUPTED = "it was interrupted"
#: Seconds: less may not move a clock of floating point at all.
_SHORTEST_WAIT = 0.001
#: (storage, job) of each heart that beats in this process: one process may be asked to run a job twice.
beating_here: set[tuple[str, str]] = set()
#: The state seen last, since when and when last in monotonic seconds, by the name of what was looked at.
_seen: dict[tuple[str, ...], tuple[object, float, float]] = {}


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
    at: Seconds
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
    beat_at: Seconds
    stopped: bool = False
    worker: ProcessIdentity | None = None
    uptime: Seconds | None = None
    completed: Completed | None = None
    interrupted: bool = False
    failed_checkpoints: FailedCheckpoints | None = None
    due_since: Seconds | None = None
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


class HeartbeatFile:
    """``control/heartbeat`` of one job name; or ``control/attendant``, of the run that reports of the job's driver."""

    def __init__(self, filesystem: FileSystem, job_name: str, name: str = "heartbeat") -> None:
        self.key = (filesystem.url, job_name)
        self._filesystem = filesystem
        self._epochs = Epochs(filesystem, job_name)
        self._path = f"{job_name}/{CONTROL_DIR}/{name}"
        self.url = f"{filesystem.url}/{self._path}"

    def write(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat."""
        self._filesystem.replace(self._path, encode_record(heartbeat, self._path))

    def read(self) -> Heartbeat | None:
        """The heartbeat, ``None`` when none was ever written.

        Raises:
            CorruptCheckpoint: the heartbeat cannot be read.
        """
        return read_record(self._filesystem, self._path, Heartbeat)

    def read_by_holder(self, epoch: int) -> Heartbeat | None:
        """The heartbeat for the run that holds ``epoch``; ``None`` also for an unreadable one, which it may overwrite.

        Raises:
            Fenced: the heartbeat cannot be read, and a newer run has taken the job over.
        """
        try:
            return self.read()
        except CorruptCheckpoint:
            self._epochs.check(epoch)
            return None

    def watched(self, clock: Clock, wait: Callable[[float], object]) -> tuple[Heartbeat | None, str | None]:
        """The heartbeat of a job, and why its holder is dead, ``None`` if the holder lives.

        A heartbeat that does not show by itself how its holder is doing is watched until it changes, or for a lease.
        Only the time between the answer to the first look and the question of the last look counts: a look that hangs
        shows an old heartbeat. Where this process has looked again and again until now, as a standby does, the time
        counts from the first of these looks; after a gap, in which the storage was away, the watch begins anew.

        Args:
            clock: of this host.
            wait: sleeps for so many seconds.
        """
        asked = clock.monotonic()
        heartbeat = self.read()
        if heartbeat is None:
            return None, None
        lease, silent = heartbeat.lease, heartbeat.silent_for(clock, asked=asked)
        unchanged = self._watched_for(heartbeat, clock, asked, within=lease.settled)
        dead = heartbeat.is_dead(clock, unchanged=unchanged, asked=asked)
        if dead is not None or (silent is not None and silent <= lease.timeout):
            return heartbeat, dead
        while unchanged < lease.timeout:
            wait(min(lease.interval, max(lease.timeout - unchanged, _SHORTEST_WAIT)))
            asked = clock.monotonic()
            now = self.read()
            if now is None:
                return None, None
            unchanged = self._watched_for(now, clock, asked)
            if now.stopped or now.name != heartbeat.name:
                return now, now.is_dead(clock, unchanged=0.0, asked=asked)
            if (dead := now.is_dead(clock, unchanged=unchanged, asked=asked)) is not None:
                return now, dead
        return heartbeat, f"no heartbeat for {heartbeat.silent_for(clock, unchanged):.0f} s"

    def judged(self, claim: Claim, end: End | None, clock: Clock) -> tuple[str | None, float]:
        """Why the run that made the newest claim is dead, ``None`` while it may live; and its last sign of life.

        For whoever looks again and again: how long something was seen unchanged is remembered from look to look.

        Args:
            claim: the newest.
            end: of its epoch, ``None`` where none is on record.
            clock: of this host. The last sign of life is in its seconds since the epoch.

        Raises:
            CorruptCheckpoint: the heartbeat, or the time of the claim, cannot be read.
        """
        asked = clock.monotonic()
        return self.judge(self.read(), claim, end, clock, asked)

    def judge(
        self, heartbeat: Heartbeat | None, claim: Claim, end: End | None, clock: Clock, asked: float
    ) -> tuple[str | None, float]:
        """As :meth:`judged`, by a heartbeat that was just read, and was asked for at ``asked`` (monotonic)."""
        now, claimed_at = clock.time(), seconds_of(claim.claimed_at)
        unchanged = math.inf
        if heartbeat is not None:
            unchanged = unchanged_for((self.url,), heartbeat.name, clock, asked)
            self._watched_for(heartbeat, clock, asked, within=heartbeat.lease.settled)
        if heartbeat is None or heartbeat.epoch != claim.epoch:
            if end is not None and end.is_final:
                return "it ended", claimed_at  # by whoever ended it for a dead run
            # Claimed, and not one beat since: it has just begun, or it died at once.
            silent = unchanged_for((*self.key, "claim"), claim.token, clock, asked)
            if claim.host == this_host():
                silent = max(silent, now - claimed_at)
            timeout = max(UNSAID.timeout, claim.lease.timeout)  # a first beat may take longer than the next ones
            # A late beat of an earlier epoch may have replaced a newer beat.
            if silent <= timeout or unchanged < timeout:
                return None, claimed_at
            return f"no heartbeat since it took the job over {silent:.0f} s ago", claimed_at
        # While the run's own process lives, Dagster hears from it how the run ended; it may also have more steps.
        worker = heartbeat.worker or heartbeat.processes[0]
        # By this host's clock: a holder's clock that is ahead would put the restart into the future.
        silent = heartbeat.silent_for(clock, unchanged, asked) or 0.0
        recent, last_sign = silent <= heartbeat.lease.timeout, now - silent
        ended = heartbeat.stopped or (heartbeat.worker is not None and recent)
        if ended and (worker.is_alive() if worker.is_here else recent):
            return None, last_sign
        if heartbeat.stopped and end is None:
            return INTERRUPTED if heartbeat.interrupted else "it stopped and recorded no end", last_sign
        return heartbeat.is_dead(clock, unchanged=unchanged, asked=asked), last_sign

    def _watched_for(self, heartbeat: Heartbeat, clock: Clock, asked: float, *, within: float = math.inf) -> float:
        return unchanged_for((self.url, "without a gap"), heartbeat.name, clock, asked, within=within)

    def free_job(self, clock: Clock, wait: Callable[[float], object]) -> Sequence[ProcessIdentity]:
        """Make sure that nobody else drives the job: refuse if somebody does, kill what is left of the dead.

        A heartbeat alone kills nobody: a process is killed only if it proves itself
        (:func:`~dagster_ckpt.checkpoint.processes.is_proven`). If one is alive and not proven, none is killed.

        Args:
            clock: wall and monotonic time.
            wait: sleeps for so many seconds.

        Returns:
            the processes that had to be killed.

        Raises:
            JobAlreadyRunning: another run of the job is alive, or nothing tells whether a process that a dead run left
                is of this job.
            CorruptCheckpoint: the heartbeat cannot be read.
        """
        heartbeat = self.read()
        if heartbeat is None or heartbeat.stopped:
            return ()
        if heartbeat.processes[0].is_this_one:
            if self.key in beating_here:
                raise _already_running(self.key[1], heartbeat)
            return ()  # an earlier run of this process, which could not write its last beat
        heartbeat, dead = self.watched(clock, wait)
        if heartbeat is None or heartbeat.stopped:
            return ()
        if dead is None:
            raise _already_running(self.key[1], heartbeat)
        driver = heartbeat.processes[0]
        left = [process for process in heartbeat.processes if process.is_here and process.is_alive()]
        for process in left:
            if not is_proven(process, driver, self.key):
                raise _unproven(self.key[1], heartbeat, dead, process, self.url)
        killed = []
        for process in left:
            try:
                if process.kill():
                    killed.append(process)
            except OSError as error:
                raise _cannot_kill(self.key[1], heartbeat, process) from error
        return tuple(killed)


def unchanged_for(
    what: tuple[str, ...], state: object, clock: Clock, asked: float | None = None, *, within: float = math.inf
) -> float:
    """For how many seconds this process has seen the same state of something at each look; 0 at the first look.

    Args:
        what: names the thing.
        state: the state that the last look has shown.
        clock: of this host.
        asked: when that look began, on the monotonic clock: the answer may have been long on its way. By default now.
        within: a look that follows the look before it after more seconds is a first look.
    """
    asked = clock.monotonic() if asked is None else asked
    before, since, last = _seen.get(what, (None, asked, asked))
    if before != state or asked - last > within:
        asked = since = clock.monotonic()
    _seen[what] = (state, since, asked)
    return max(asked - since, 0.0)


def _already_running(job_name: str, heartbeat: Heartbeat) -> JobAlreadyRunning:
    driver = heartbeat.processes[0]
    error = JobAlreadyRunning(
        f"Job {job_name!r} is already being run by run {heartbeat.run_id} "
        f"(process {driver.pid} on {driver.host.partition('/')[0]}, epoch {heartbeat.epoch}).",
        hint=f"Terminate run {heartbeat.run_id} first, or wait until it has ended. This run changed nothing.",
    )
    error.by = heartbeat.run_id
    return error


def _unproven(
    job_name: str, heartbeat: Heartbeat, dead: str, process: ProcessIdentity, heartbeat_url: str
) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Run {heartbeat.run_id} of job {job_name!r} is dead ({dead}), but process {process.pid}, which its heartbeat "
        "names, is alive and may still write. Nothing proves that the process is of this job, so it was not killed.",
        hint=f"Look at the process with `ps -f -p {process.pid}`. If it is of job {job_name!r}, end it with `kill -9 "
        f"{process.pid}`; if it is not, delete {heartbeat_url}. Then launch the job again. This run changed nothing.",
    )


def _cannot_kill(job_name: str, heartbeat: Heartbeat, process: ProcessIdentity) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Process {process.pid} of the dead run {heartbeat.run_id} of job {job_name!r} is still alive, may still "
        "write, and could not be killed.",
        hint=f"End process {process.pid}, or restart the host, and launch the job again.",
    )
