"""Liveness: is the run that holds a job still alive? Kept apart from safety, which is the epoch's business.

A live run rewrites ``control/heartbeat`` every few seconds. On its own host its processes can be asked
directly; elsewhere a heartbeat that stops changing for the length of the lease means death.

No two clocks are compared, for nobody knows which of them is wrong. On one host the time since its boot tells, which
cannot be set; of another host's heartbeat only counts for how long whoever looks has seen it unchanged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dagster_ckpt.checkpoint.clock import Clock
from dagster_ckpt.checkpoint.control.epochs import Choice, Epochs
from dagster_ckpt.checkpoint.control.processes import ProcessIdentity, is_proven, mark_driver, this_host
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
from dagster_ckpt.errors import CorruptCheckpoint, Fenced, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "LEASE",
    "SETTLED",
    "Completed",
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
#: Seconds after which the next beat is tried beside one that has not come back.
_PATIENCE = 5.0
#: A beat that comes late may lie over a newer one until whoever holds the job beats again: for so many seconds.
SETTLED = INTERVAL + _PATIENCE
#: Beats that may be under way at once: as many as fit into a lease.
_AT_ONCE = 6
#: (storage, job) of the hearts that beat in this process: one process may be asked to run a job twice.
_beating_here: set[tuple[str, str]] = set()
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


class Heart:
    """Beats in a thread of its own until stopped.

    A beat that cannot be written is skipped: the storage may be full, and the job must outlive that. Others may
    then take this run for dead, which is what the epoch is for.

    One request may hang for longer than the lease. So each beat is made on a thread of its own, and when it has not
    come back after a few seconds the next one is tried beside it, until as many hang as fit into a lease. What hangs
    ends with the process, and nobody waits for it. A beat that comes late does no harm:

    * What it says is put together after what is there has been read, and it gives up if one that was begun later has
      been written by then. So late is only what hangs while it is written.
    * Such a one may lie over a newer sign of life, of this run or of one that has taken the job over, until the next
      beat of whoever holds it: no longer than :data:`SETTLED`. Those who read it do not go by silence, nor by an older
      epoch, before they have seen it for so long; a sequence that goes back is a change like any other.
    * After the last beat, which says that the run has ended, none is begun. One that comes back later looks whether the
      record says so still, when a new holder would have beaten, and says it again if not. If the process is gone by
      then, its own host knows that, and another one has seen the last of it after a lease. Until it is put right
      :func:`free_job` refuses for at most a lease after that beat was made, and then holds this process for a dead one,
      as it does with any run that could not say that it had ended.
    """

    def __init__(
        self, file: HeartbeatFile, clock: Clock, *, epoch: int, run_id: str, worker: int | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._beat = Heartbeat(epoch, run_id, (ProcessIdentity.current(),), 0, clock.time(), uptime=clock.monotonic())
        if worker is not None:
            self._beat = replace(self._beat, worker=ProcessIdentity.of(worker))
        #: Beats are numbered as they are begun.
        self._begun = 0
        self._written = 0
        self._under_way: list[Future[None]] = []
        #: What proves that this process drives the job.
        self._mark: int | None = None
        #: Called with each beat that is due: this process lives, whatever the storage does. It must return at once.
        self.on_beat: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dagster-ckpt-heart", daemon=True)

    def start(self) -> None:
        """Beat once, then every :data:`INTERVAL` seconds."""
        self._mark = mark_driver(self._file.key)
        _beating_here.add(self._file.key)
        self._once()
        self._thread.start()

    def add_process(self, pid: int) -> None:
        """Add a process that must be gone before anybody else may start, the JVM for example."""
        with self._lock:
            identity = ProcessIdentity.of(pid)
            if identity.mark not in {process.mark for process in self._beat.processes}:
                self._beat = replace(self._beat, processes=(*self._beat.processes, identity))
        self._once()

    def completed(self, checkpoint: str, epoch: int) -> None:
        """Beat now, and say that ``{job id}/chk-N`` is complete, so that its loss would be noticed; returns at once."""
        with self._lock:
            self._beat = replace(self._beat, completed=Completed(checkpoint, epoch))
        self._due.set()

    def hold(self, epoch: int) -> None:
        """Go on beating for a newer epoch of the same run."""
        with self._lock:
            self._beat = replace(self._beat, epoch=epoch)
        self._once()

    def stop(self) -> None:
        """Stop, and say that it was in order; a storage that hangs is waited for a few seconds only."""
        self._stop.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._beat = replace(self._beat, stopped=True)
        self._once(last=True)
        _beating_here.discard(self._file.key)

    def _run(self) -> None:
        while True:
            self._due.wait(INTERVAL)
            self._due.clear()
            if self._stop.is_set():
                return
            with contextlib.suppress(Exception):  # whatever it is, the heart goes on
                self.on_beat()
            self._once()

    def _once(self, *, last: bool = False) -> None:
        """Begin a beat, and wait for it a little; the last one is begun however many hang."""
        with self._turn:
            self._under_way = [beat for beat in self._under_way if not beat.done()]
            if len(self._under_way) >= _AT_ONCE and not last:
                return
            self._begun += 1
            beat: Future[None] = Future()
            self._under_way.append(beat)
            work = partial(self._carry_out, beat, self._begun)
            try:
                threading.Thread(target=work, name="dagster-ckpt-beat", daemon=True).start()
            except RuntimeError:  # there are no more threads
                work()
            with contextlib.suppress(Exception):  # whatever a storage raises, the heart goes on
                beat.result(timeout=_PATIENCE)

    def _carry_out(self, beat: Future[None], number: int) -> None:
        try:
            self._make(number)
        except BaseException as error:
            beat.set_exception(error)
        else:
            beat.set_result(None)

    def _make(self, number: int) -> None:
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            self._let_go()
            return
        if current is not None and current.epoch > self._beat.epoch:
            self._let_go()
            return  # somebody took over: their sign of life must not be overwritten
        with self._lock:
            if self._written > number:
                return
            beat = self._beat = replace(
                self._beat,
                sequence=self._beat.sequence + 1,
                beat_at=self._clock.time(),
                uptime=self._clock.monotonic(),
                # What the run before knew to be complete stays known until this run completes something.
                completed=self._beat.completed or (None if current is None else current.completed),
            )
        try:
            self._file.write(beat)
            with self._lock:
                self._written = max(self._written, number)
            if beat.stopped:
                self._let_go()
        finally:
            if self._beat.stopped and not beat.stopped:
                self._say_again()

    def _say_again(self) -> None:
        """What may lie over the last beat is not to stay there; but a run that has taken over beats by itself."""
        time.sleep(SETTLED)
        try:
            current = self._file.read_by_holder(self._beat.epoch)
        except Fenced:
            return
        if current is None or (current.epoch <= self._beat.epoch and not current.stopped):
            self._file.write(self._beat)

    def _let_go(self) -> None:
        """A run that has ended, and could say so, drives the job no more; until then, it is what may be killed."""
        with self._lock:
            if self._beat.stopped and self._mark is not None:
                os.close(self._mark)
                self._mark = None


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
    (:func:`~dagster_ckpt.checkpoint.control.processes.is_proven`). If one is alive and not proven, none is killed.

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
        if file.key in _beating_here:
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
