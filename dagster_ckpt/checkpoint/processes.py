"""Processes of this host: which process a record means, whether the process lives, and whether it may be killed.

A record can be wrong, damaged or forged, and can be read from a copy of its storage. So no record is enough to kill a
process. A process is killed only when the process itself proves that it drives the job, by a mark that this library has
set and that no other process can hold:

* A driver holds an open file in memory whose name is made of the storage and the job (:func:`mark_driver`).
* A JVM has in its environment the mark of the driver that started it (:data:`DRIVER_VARIABLE`). A JVM that a driver has
  adopted reads from a pipe whose other end the driver holds.
* A JVM of ``spark-submit`` is the parent of the driver that it has started (:data:`SUBMITTED`). When that driver is
  gone, the JVM can do nothing for any job.

Only the user of a process, and root, can read these marks. Where the system does not show them, as on macOS for a
driver, nothing is proven and nothing is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from dagster_ckpt.checkpoint.format import Seconds
from dagster_ckpt.hosts import process_table

__all__ = ["DRIVER_VARIABLE", "SUBMITTED", "ProcessIdentity", "is_proven", "mark_children", "mark_driver"]

#: The environment variable with :attr:`ProcessIdentity.mark` of the driver, for every process that the driver starts.
DRIVER_VARIABLE = "DAGSTER_CKPT_DRIVER"
#: The module that a submitted driver runs, on the command line of that driver and of the JVM above it.
SUBMITTED = "dagster_ckpt.standalone.submitted"
#: Parts of the command line of every JVM that PySpark starts.
_SPARK = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
#: On the command line of a JVM that YARN has started for a driver; there each argument of the driver is an option's.
_ON_YARN = "org.apache.spark.deploy.yarn.ApplicationMaster"
#: Seconds until a killed process must be gone.
_LAST_BREATH = 10.0
_TURN = 0.02
#: Seconds by which the start of a process may differ from a record of an earlier release, which has no ticks.
_ROUNDING = 1.0
_GREATEST_PID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process for good: a pid alone may be used again by another process.

    Attributes:
        host: :func:`this_host` of the process; in a container also which container, because pids mean nothing outside.
        pid: its process id.
        created: when the process started, in seconds since 1970 as the operating system tells it. Linux computes this
            time from the wall clock and moves it with the clock, so on Linux it only counts in a record without
            ``ticks``. macOS records the time when the process starts, and never changes it.
        ticks: when the process started, in clock ticks since the host booted, which no clock moves. ``None`` where the
            operating system does not tell, and in a record of a release without ticks.

    Raises:
        ValueError: no process can have these values.
    """

    host: str
    pid: int
    created: Seconds
    ticks: int | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values, because they decide which process is killed."""
        if type(self.pid) is not int or not 0 < self.pid <= _GREATEST_PID:
            raise ValueError(f"{self.pid!r} is no process id")
        if type(self.created) not in {float, int} or not math.isfinite(self.created):
            raise ValueError(f"process {self.pid} cannot have started at {self.created!r}")
        if self.ticks is not None and (type(self.ticks) is not int or self.ticks < 0):
            raise ValueError(f"process {self.pid} cannot have started {self.ticks!r} ticks after the boot")

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a live process of this host."""
        created, seen = psutil.Process(pid).create_time(), _look(pid)
        return cls(process_table(), pid, created, None if seen is None else seen.ticks)

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of this process."""
        return cls.of(os.getpid())

    @property
    def mark(self) -> str:
        """Text that identifies the process within one boot, and never changes."""
        return f"{self.pid}-{self.created!r}" if self.ticks is None else f"{self.pid}-{self.ticks}"

    def age(self, now: float) -> float:
        """Seconds since the process began; only meaningful when :attr:`is_here`.

        Args:
            now: seconds since 1970, for a system that tells no ticks.
        """
        if self.ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
            return now - self.created
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.ticks / os.sysconf("SC_CLK_TCK")

    @property
    def is_here(self) -> bool:
        """Whether the process runs, or ran, on this host since its last boot, and not in a container apart."""
        return self.host == process_table()

    @property
    def is_this_one(self) -> bool:
        """Whether this is the calling process."""
        return self.is_here and self.pid == os.getpid() and self.is_alive()

    def is_alive(self) -> bool:
        """Whether the process exists (stopped counts, a zombie does not); only meaningful when :attr:`is_here`."""
        seen = _look(self.pid)
        if seen is None or seen.has_ended:
            return False
        if seen.is_hidden:
            return True  # nothing shows that another process has the pid
        if self.ticks is not None and seen.ticks is not None:
            return self.ticks == seen.ticks
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) <= _ROUNDING
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> bool:
        """Kill the process with SIGKILL, and wait until it is gone; call :func:`is_proven` before.

        Returns:
            ``False`` when the process was gone already.

        Raises:
            OSError: the process could not be killed.
        """
        with _handle(self.pid) as handle:
            # From here on the handle means one process, even if the pid is used again: check that it is the right one.
            if not self.is_alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                _send_kill(self.pid, handle)
        until = time.monotonic() + _LAST_BREATH
        while self.is_alive():
            if time.monotonic() > until:
                raise TimeoutError(f"process {self.pid} was killed and is still there after {_LAST_BREATH:.0f} s")
            time.sleep(_TURN)
        return True


def mark_children() -> None:
    """Have the processes that this process starts from now on carry its mark."""
    os.environ[DRIVER_VARIABLE] = ProcessIdentity.current().mark


def mark_driver(job: tuple[str, str]) -> int | None:
    """Mark this process as the driver of a job, for as long as the returned file is open.

    Processes that this process starts from now on carry its mark.

    Args:
        job: URL of the storage, and name of the job.

    Returns:
        the file descriptor, to be closed when the process no longer drives the job; ``None`` where there are no files
        in memory.
    """
    mark_children()
    if sys.platform != "linux":
        return None
    try:
        return os.memfd_create(_name_of(job))
    except OSError:  # no more files may be open: if this driver hangs, a later run refuses to start and names it
        return None


def is_proven(process: ProcessIdentity, driver: ProcessIdentity, job: tuple[str, str]) -> bool:
    """Whether a live process of this host is proven to be the driver of a job, or its JVM; a record proves nothing.

    The JVM of a driver of an earlier release has no mark. Such a JVM is killed only when it is useless: the driver is
    gone, and so is every process that could still talk to the JVM.

    Args:
        process: the live process of a record.
        driver: the driver of the same record, alive or gone.
        job: URL of the storage, and name of the job.
    """
    if not driver.is_here or process.pid in _never_killed() or not _is_of_this_user(process.pid):
        return False
    if process == driver:
        return _is_marked(process.pid, job)
    driver_lives = driver.is_alive()
    if driver_lives and not is_proven(driver, driver, job):
        return False
    if _is_submitted(process.pid, job[1]):
        return _parent_of(driver.pid) == process.pid if driver_lives else not _is_with_driver(process.pid, job[1])
    started_by = _jvm_started_by(process.pid)
    if started_by is None:
        return False
    if started_by == driver.mark:
        return True  # any other mark may be inherited from a process above the driver
    if driver_lives:
        return _parent_of(process.pid) == driver.pid or _holds_input_of(driver.pid, process.pid)
    return _is_input_closed(process.pid)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the operating system tells about a pid; ``ticks`` and ``parent`` only on Linux."""

    has_ended: bool
    ticks: int | None = None
    parent: int | None = None
    is_hidden: bool = False


def _look(pid: int) -> _Seen | None:
    """The process with a pid, ``None`` if there is none."""
    if sys.platform != "linux":
        try:
            return _Seen(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return None
    try:
        # The name of the program, in parentheses, may itself contain spaces and parentheses.
        state, parent, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _Seen(has_ended=False, is_hidden=True) if _is_of_another_user(pid) else None
    except PermissionError:
        return _Seen(has_ended=False, is_hidden=True)
    return _Seen(state in {b"Z", b"X"}, int(others[17]), int(parent))


def _is_of_another_user(pid: int) -> bool:
    """Whether there is a process that /proc hides (``hidepid``)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _never_killed() -> set[int]:
    """Pids that are never killed: the first process, this process, and the processes above it."""
    found, pid = {1}, os.getpid()
    with contextlib.suppress(psutil.Error):
        found |= {parent.pid for parent in psutil.Process(pid).parents()}
    return found | {pid, os.getppid()}


def _is_of_this_user(pid: int) -> bool:
    try:
        return set(psutil.Process(pid).uids()) == {os.geteuid()}
    except psutil.Error:
        return False


def _name_of(job: tuple[str, str]) -> str:
    return f"dagster_ckpt-{hashlib.sha256(repr(job).encode()).hexdigest()[:32]}"


def _is_marked(pid: int, job: tuple[str, str]) -> bool:
    return _has_open(pid, f"/memfd:{_name_of(job)} (deleted)")


def _holds_input_of(driver: int, pid: int) -> bool:
    """Whether a driver holds the other end of a process's standard input."""
    try:
        read = str(Path(f"/proc/{pid}/fd/0").readlink())
    except OSError:
        return False
    return read.startswith("pipe:") and _has_open(driver, read)


def _has_open(pid: int, wanted: str) -> bool:
    """Whether a process has a file open, by the name in ``/proc``."""
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for file in files:
        with contextlib.suppress(OSError):
            if str(file.readlink()) == wanted:
                return True
    return False


def _jvm_started_by(pid: int) -> str | None:
    """The driver's mark in a JVM of PySpark, empty if the JVM has none; ``None`` for any other process."""
    try:
        process = psutil.Process(pid)
        if not set(_SPARK) <= set(process.cmdline()):
            return None
        return process.environ().get(DRIVER_VARIABLE, "")
    except (psutil.Error, OSError):
        return None


def _parent_of(pid: int) -> int | None:
    seen = _look(pid)
    return None if seen is None else seen.parent


def _is_submitted(pid: int, job_name: str) -> bool:
    """Whether a process drives a submitted job, or is the JVM above such a driver: the command line ends alike."""
    try:
        told = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    if _ON_YARN in told:
        told = [value for option, value in pairwise(told) if option == "--arg"]
    told = told[-4:]
    return told[:1] + told[2:3] == [SUBMITTED, job_name]


def _is_with_driver(pid: int, job_name: str) -> bool:
    """Whether a JVM of ``spark-submit`` still has a driver below it, or the process is itself the driver below one."""
    try:
        process = psutil.Process(pid)
        beside = [child.pid for child in process.children()] + [process.ppid()]
        return any(_is_submitted(other, job_name) for other in beside)
    except psutil.Error:
        return True


def _is_input_closed(pid: int) -> bool:
    """Whether standard input is a pipe whose other end no process holds, at which a JVM of PySpark ends."""
    if sys.platform != "linux":
        return False
    try:
        standard_input = Path(f"/proc/{pid}/fd/0")
        if not str(standard_input.readlink()).startswith("pipe:"):
            return False
        descriptor = os.open(standard_input, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        waiting = select.poll()
        waiting.register(descriptor, 0)
        return any(event & select.POLLHUP for _, event in waiting.poll(0))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int | None]:
    """A handle of the process that has a pid now, ``None`` where the system offers no handles."""
    handle = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the process is gone, or the kernel is older than 5.3
            handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _send_kill(pid: int, handle: int | None) -> None:
    """Send SIGKILL: the only place that signals a process which a record names."""
    if handle is None or sys.platform != "linux":
        os.kill(pid, signal.SIGKILL)
    else:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
