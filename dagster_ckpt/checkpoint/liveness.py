"""Liveness: is the run that holds a job still alive? Kept apart from safety, which is the epoch's business.

A live run rewrites ``control/heartbeat`` every few seconds. On its own host its processes can be asked
directly; elsewhere a heartbeat that stops changing for the length of the lease means death.

No two clocks are compared, for nobody knows which of them is wrong. On one host the time since its boot tells, which
cannot be set; of another host's heartbeat only counts for how long whoever looks has seen it unchanged.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dagster_ckpt.checkpoint.clock import Clock
from dagster_ckpt.checkpoint.epochs import Choice
from dagster_ckpt.checkpoint.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.records import encode_record, read_record
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "LEASE",
    "Heart",
    "Heartbeat",
    "HeartbeatFile",
    "ProcessIdentity",
    "free_job",
    "is_dead",
    "live_here",
    "silent_for",
    "this_host",
    "unchanged_for",
    "watched",
]

#: Seconds between two heartbeats.
INTERVAL = 2.0
#: Seconds without a heartbeat after which a run counts as dead.
LEASE = 30.0
#: (storage, job) of the hearts that beat in this process: one process may be asked to run a job twice.
_beating_here: set[tuple[str, str]] = set()
#: By what was looked at: what was seen last, and since when, in monotonic seconds.
_seen: dict[tuple[str, ...], tuple[object, float]] = {}


@cache
def this_host() -> str:
    """This host and boot: process ids mean nothing across either."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    # The boot time is derived from the wall clock and moves with it; Linux has something better.
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else round(psutil.boot_time())}"


def live_here(choice: Choice) -> Path | None:
    """The live checkpointLocation that a start began with, if it is on this host and still there."""
    live = Path(choice.live)
    return live if choice.host == this_host() and live.is_dir() else None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for good: a pid alone is used again by others.

    Attributes:
        host: :func:`this_host` where it runs.
        pid: its process id.
        created: when it started, seconds since the epoch as the operating system tells it.
    """

    host: str
    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a live process of this host."""
        return cls(this_host(), pid, psutil.Process(pid).create_time())

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of this process."""
        return cls.of(os.getpid())

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this host since its last boot."""
        return self.host == this_host()

    def is_alive(self) -> bool:
        """Whether it exists (stopped counts, a zombie entry does not); only meaningful when :attr:`is_here`."""
        return self._process() is not None

    def kill(self) -> bool:
        """SIGKILL it and wait until it is gone; ``False`` when it was gone already."""
        process = self._process()
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            process.wait(timeout=10)
        return True

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) > 1 or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        return process


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
    """

    epoch: int
    run_id: str
    processes: tuple[ProcessIdentity, ...]
    sequence: int
    beat_at: float
    stopped: bool = False
    worker: ProcessIdentity | None = None
    uptime: float | None = None

    def __post_init__(self) -> None:
        """Make processes of what JSON has for them."""
        object.__setattr__(self, "processes", tuple(_process(process) for process in self.processes))
        object.__setattr__(self, "worker", None if self.worker is None else _process(self.worker))


def _process(value: ProcessIdentity | dict[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(**value) if isinstance(value, dict) else value


class HeartbeatFile:
    """``control/heartbeat`` of one job name."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self.key = (filesystem.url, job_name)
        self._filesystem = filesystem
        self._path = f"{job_name}/{CONTROL_DIR}/heartbeat"

    def write(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat."""
        self._filesystem.replace(self._path, encode_record(asdict(heartbeat)))

    def read(self) -> Heartbeat | None:
        """The heartbeat, ``None`` when there never was one."""
        return read_record(self._filesystem, self._path, Heartbeat)


class Heart:
    """Beats in a thread of its own until stopped.

    A beat that cannot be written is skipped: the storage may be full, and the job must outlive that. Others may
    then take this run for dead, which is what the epoch is for.
    """

    def __init__(
        self, file: HeartbeatFile, clock: Clock, *, epoch: int, run_id: str, worker: int | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._beat = Heartbeat(epoch, run_id, (ProcessIdentity.current(),), 0, clock.time(), uptime=clock.monotonic())
        if worker is not None:
            self._beat = replace(self._beat, worker=ProcessIdentity.of(worker))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dagster-ckpt-heart", daemon=True)

    def start(self) -> None:
        """Beat once, then every :data:`INTERVAL` seconds."""
        _beating_here.add(self._file.key)
        self._once()
        self._thread.start()

    def add_process(self, pid: int) -> None:
        """Add a process that must be gone before anybody else may start, the JVM for example."""
        with self._lock:
            identity = ProcessIdentity.of(pid)
            if identity not in self._beat.processes:
                self._beat = replace(self._beat, processes=(*self._beat.processes, identity))
        self._once()

    def hold(self, epoch: int) -> None:
        """Go on beating for a newer epoch of the same run."""
        with self._lock:
            self._beat = replace(self._beat, epoch=epoch)
        self._once()

    def stop(self) -> None:
        """Stop, and say that it was in order."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._beat = replace(self._beat, stopped=True)
        self._once()
        _beating_here.discard(self._file.key)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._once()

    def _once(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            current = self._file.read()
            if current is not None and current.epoch > self._beat.epoch:
                return  # somebody took over: their sign of life must not be overwritten
            self._beat = replace(
                self._beat,
                sequence=self._beat.sequence + 1,
                beat_at=self._clock.time(),
                uptime=self._clock.monotonic(),
            )
            self._file.write(self._beat)


def is_dead(heartbeat: Heartbeat, clock: Clock, *, lease: float = LEASE, unchanged: float | None = None) -> str | None:
    """Why the holder of ``heartbeat`` counts as dead, ``None`` while it may live.

    Args:
        heartbeat: as read.
        clock: of this host.
        lease: seconds.
        unchanged: for how many seconds it has been seen as it is, where it was watched. Without, nobody can say of the
            holder on another host whether it still beats.
    """
    if heartbeat.stopped:
        return "it ended"
    driver = heartbeat.processes[0]
    if driver.is_here and not driver.is_alive():
        return f"its process {driver.pid} is gone"
    silent = silent_for(heartbeat, clock, unchanged)
    return f"no heartbeat for {silent:.0f} s" if silent is not None and silent > lease else None


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

    One of which this host cannot tell is watched until it changes, or for a lease.

    Args:
        file: the job's heartbeat.
        clock: of this host.
        wait: sleeps for so many seconds.
        lease: seconds.
    """
    heartbeat = file.read()
    if heartbeat is None:
        return None, None
    dead = is_dead(heartbeat, clock, lease=lease)
    if dead is not None or (heartbeat.processes[0].is_here and heartbeat.uptime is not None):
        return heartbeat, dead
    since = clock.monotonic()
    while clock.monotonic() - since < lease:
        wait(min(INTERVAL, lease))
        now = file.read()
        if now is None:
            return None, None
        if now.stopped or (now.epoch, now.sequence) != (heartbeat.epoch, heartbeat.sequence):
            return now, is_dead(now, clock, lease=lease)
    return heartbeat, f"no heartbeat for {clock.monotonic() - since:.0f} s"


def free_job(
    file: HeartbeatFile,
    job_name: str,
    clock: Clock,
    wait: Callable[[float], object],
    *,
    lease: float = LEASE,
) -> Sequence[ProcessIdentity]:
    """Make sure that nobody else drives the job: refuse if somebody does, kill what is left of the dead.

    Args:
        file: the job's heartbeat.
        job_name: for the error.
        clock: wall and monotonic time.
        wait: sleeps for so many seconds.
        lease: seconds.

    Returns:
        the processes that had to be killed.

    Raises:
        JobAlreadyRunning: another run of the job is alive.
    """
    heartbeat = file.read()
    if heartbeat is None or heartbeat.stopped:
        return ()
    if heartbeat.processes[0] == ProcessIdentity.current():
        if file.key in _beating_here:
            raise _already_running(job_name, heartbeat)
        return ()  # an earlier run of this process, which could not write its last beat
    heartbeat, dead = watched(file, clock, wait, lease=lease)
    if heartbeat is None or heartbeat.stopped:
        return ()
    if dead is None:
        raise _already_running(job_name, heartbeat)
    return tuple(process for process in heartbeat.processes if process.is_here and process.kill())


def _already_running(job_name: str, heartbeat: Heartbeat) -> JobAlreadyRunning:
    driver = heartbeat.processes[0]
    return JobAlreadyRunning(
        f"Job {job_name!r} is already being run by run {heartbeat.run_id} "
        f"(process {driver.pid} on {driver.host.partition('/')[0]}, epoch {heartbeat.epoch}).",
        hint=f"Terminate run {heartbeat.run_id} first, or wait until it has ended. This run changed nothing.",
    )
