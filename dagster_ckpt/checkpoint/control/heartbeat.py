"""Liveness: is the run that holds a job still alive? Kept apart from safety, which is the epoch's business.

A live run rewrites ``control/heartbeat`` every few seconds. On its own host its processes can be asked
directly; elsewhere a heartbeat that stops changing for the length of the lease means death.

No two clocks are compared, for nobody knows which of them is wrong. On one host the time since its boot tells, which
cannot be set; of another host's heartbeat only counts for how long whoever looks has seen it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.checkpoint.clock import Clock
from dagster_ckpt.checkpoint.control.epochs import Choice, Epochs
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.records import (
    CheckpointName,
    Count,
    Epoch,
    RunId,
    Seconds,
    encode_record,
    read_record,
)
from dagster_ckpt.checkpoint.processes import ProcessIdentity, is_proven, this_host
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "INTERVAL",
    "LEASE",
    "PATIENCE",
    "SETTLED",
    "Completed",
    "Heartbeat",
    "HeartbeatFile",
    "beating_here",
    "free_job",
    "is_dead",
    "live_here",
    "silent_for",
    "unchanged_for",
    "watched",
]

#: Seconds between two heartbeats.
INTERVAL = 2.0
#: Seconds without a heartbeat after which a run counts as dead.
LEASE = 30.0
#: Seconds after which the next beat is tried beside one that has not come back.
PATIENCE = 5.0
#: A beat that comes late may lie over a newer one until whoever holds the job beats again: for so many seconds.
SETTLED = INTERVAL + PATIENCE
#: (storage, job) of the hearts that beat in this process: one process may be asked to run a job twice.
beating_here: set[tuple[str, str]] = set()
#: By what was looked at: what was seen last, and since when, in monotonic seconds.
_seen: dict[tuple[str, ...], tuple[object, float]] = {}


def live_here(choice: Choice) -> Path | None:
    """The live checkpointLocation that a start began with, if it is on this host and still there."""
    live = Path(choice.live)
    return live if choice.host == this_host() and live.is_dir() else None


@dataclass(frozen=True, slots=True)
class Completed:
    """A checkpoint that was complete.

    Attributes:
        checkpoint: ``{job id}/chk-N``.
        epoch: that completed it.
    """

    checkpoint: CheckpointName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The latest sign of life of the run that holds a job.

    Attributes:
        epoch: the epoch it holds.
        run_id: the Dagster run.
        processes: the driver first, then its JVM.
        sequence: rises with every beat.
        beat_at: seconds since the epoch, by the holder's clock: for people.
        stopped: the run ended in an orderly way and holds nothing any more.
        worker: the process of the Dagster run, where the driver is a step process of its own below it.
        uptime: seconds on the monotonic clock of the holder's host, which all its processes share; ``None`` in a record
            of a release that did not tell.
        completed: the newest checkpoint that is known to be complete, ``None`` before the first.
    """

    epoch: Epoch
    run_id: RunId
    processes: tuple[ProcessIdentity, ...]
    sequence: Count
    beat_at: Seconds
    stopped: bool = False
    worker: ProcessIdentity | None = None
    uptime: Seconds | None = None
    completed: Completed | None = None

    def __post_init__(self) -> None:
        """A heartbeat of no process says nothing."""
        if not self.processes:
            raise ValueError("a heartbeat without a process")


class HeartbeatFile:
    """``control/heartbeat`` of one job name."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self.key = (filesystem.url, job_name)
        self._filesystem = filesystem
        self._epochs = Epochs(filesystem, job_name)
        self._path = f"{job_name}/{CONTROL_DIR}/heartbeat"
        self.url = f"{filesystem.url}/{self._path}"

    def write(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat."""
        self._filesystem.replace(self._path, encode_record(heartbeat, self._path))

    def read(self) -> Heartbeat | None:
        """The heartbeat, ``None`` when there never was one.

        Raises:
            CorruptCheckpoint: it cannot be read.
        """
        return read_record(self._filesystem, self._path, Heartbeat)

    def read_by_holder(self, epoch: int) -> Heartbeat | None:
        """The heartbeat for a run that holds ``epoch``; one that cannot be read is for the holder to write over.

        Raises:
            Fenced: it cannot be read, and a newer run has taken the job over.
        """
        try:
            return self.read()
        except CorruptCheckpoint:
            self._epochs.check(epoch)
            return None


def is_dead(heartbeat: Heartbeat, clock: Clock, *, lease: float = LEASE, unchanged: float | None = None) -> str | None:
    """Why the holder of ``heartbeat`` counts as dead, ``None`` while it may live.

    Args:
        heartbeat: as read.
        clock: of this host.
        lease: seconds.
        unchanged: for how many seconds it has been seen as it is, where it was watched. Without, nobody can say of the
            holder on another host whether it still beats, and of one on this host whether what was read lay over a
            newer beat.
    """
    if heartbeat.stopped:
        return "it ended"
    driver = heartbeat.processes[0]
    if driver.is_here and not driver.is_alive():
        return f"its process {driver.pid} is gone"
    silent = silent_for(heartbeat, clock, unchanged)
    if silent is None or silent <= lease or (unchanged is not None and unchanged < SETTLED):
        return None
    return f"no heartbeat for {silent:.0f} s"


def silent_for(heartbeat: Heartbeat, clock: Clock, unchanged: float | None = None) -> float | None:
    """Seconds since a beat, ``None`` where nobody can say; arguments as above."""
    if heartbeat.processes[0].is_here and heartbeat.uptime is not None:
        return clock.monotonic() - heartbeat.uptime
    return unchanged


def unchanged_for(what: tuple[str, ...], state: object, clock: Clock) -> float:
    """For how many seconds this process, each time it looked, has seen the same state of something; 0 at first.

    Args:
        what: names it.
        state: what was seen now.
        clock: of this host.
    """
    now = clock.monotonic()
    before, since = _seen.get(what, (None, now))
    if before != state:
        since = now
    _seen[what] = (state, since)
    return now - since


def watched(
    file: HeartbeatFile, clock: Clock, wait: Callable[[float], object], *, lease: float = LEASE
) -> tuple[Heartbeat | None, str | None]:
    """The heartbeat of a job, and why its holder is dead, ``None`` if it lives.

    One of which this host cannot tell is watched until it changes, or for a lease; one that is silent on this host, for
    as long as what was read may lie over a newer beat.

    Args:
        file: the job's heartbeat.
        clock: of this host.
        wait: sleeps for so many seconds.
        lease: seconds.
    """
    heartbeat = file.read()
    if heartbeat is None:
        return None, None
    dead = is_dead(heartbeat, clock, lease=lease, unchanged=0.0)
    silent = silent_for(heartbeat, clock)
    if dead is not None or (silent is not None and silent <= lease):
        return heartbeat, dead
    since = clock.monotonic()
    longest = lease if silent is None else SETTLED
    while (unchanged := clock.monotonic() - since) < longest:
        wait(min(INTERVAL, longest))
        now = file.read()
        if now is None:
            return None, None
        if now.stopped or (now.epoch, now.sequence) != (heartbeat.epoch, heartbeat.sequence):
            return now, is_dead(now, clock, lease=lease, unchanged=0.0)
    return heartbeat, f"no heartbeat for {silent_for(heartbeat, clock, unchanged):.0f} s"


def free_job(
    file: HeartbeatFile,
    job_name: str,
    clock: Clock,
    wait: Callable[[float], object],
    *,
    lease: float = LEASE,
) -> Sequence[ProcessIdentity]:
    """Make sure that nobody else drives the job: refuse if somebody does, kill what is left of the dead.

    A heartbeat alone kills nobody: a process is killed only if it proves itself
    (:func:`~dagster_ckpt.checkpoint.processes.is_proven`). If one is alive and not proven, none is killed.

    Args:
        file: the job's heartbeat.
        job_name: for the error.
        clock: wall and monotonic time.
        wait: sleeps for so many seconds.
        lease: seconds.

    Returns:
        the processes that had to be killed.

    Raises:
        JobAlreadyRunning: another run of the job is alive, or what is left of a dead one can neither be proven to be
            of this job nor be ruled out.
        CorruptCheckpoint: the heartbeat cannot be read.
    """
    heartbeat = file.read()
    if heartbeat is None or heartbeat.stopped:
        return ()
    if heartbeat.processes[0].is_this_one:
        if file.key in beating_here:
            raise _already_running(job_name, heartbeat)
        return ()  # an earlier run of this process, which could not write its last beat
    heartbeat, dead = watched(file, clock, wait, lease=lease)
    if heartbeat is None or heartbeat.stopped:
        return ()
    if dead is None:
        raise _already_running(job_name, heartbeat)
    driver = heartbeat.processes[0]
    left = [process for process in heartbeat.processes if process.is_here and process.is_alive()]
    for process in left:
        if not is_proven(process, driver, file.key):
            raise _unproven(job_name, heartbeat, dead, process, file.url)
    killed = []
    for process in left:
        try:
            if process.kill():
                killed.append(process)
        except OSError as error:
            raise _cannot_kill(job_name, heartbeat, process) from error
    return tuple(killed)


def _already_running(job_name: str, heartbeat: Heartbeat) -> JobAlreadyRunning:
    driver = heartbeat.processes[0]
    return JobAlreadyRunning(
        f"Job {job_name!r} is already being run by run {heartbeat.run_id} "
        f"(process {driver.pid} on {driver.host.partition('/')[0]}, epoch {heartbeat.epoch}).",
        hint=f"Terminate run {heartbeat.run_id} first, or wait until it has ended. This run changed nothing.",
    )


def _unproven(
    job_name: str, heartbeat: Heartbeat, dead: str, process: ProcessIdentity, heartbeat_url: str
) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Run {heartbeat.run_id} of job {job_name!r} is dead ({dead}), but process {process.pid}, which its heartbeat "
        "names, is alive and may still write. Nothing proves that the process is of this job, so it was not killed.",
        hint=f"Look at it with `ps -f -p {process.pid}`. If it is of job {job_name!r}, end it with `kill -9 "
        f"{process.pid}`; if it is not, delete {heartbeat_url}. Then launch the job again. This run changed nothing.",
    )


def _cannot_kill(job_name: str, heartbeat: Heartbeat, process: ProcessIdentity) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Process {process.pid} is left of the dead run {heartbeat.run_id} of job {job_name!r}, may still write, and "
        "could not be killed.",
        hint=f"End process {process.pid}, or restart the host, and launch the job again.",
    )
