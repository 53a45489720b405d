"""Processes of this host: which one a record means, whether it lives, and whether it may be killed.

A record can be wrong, damaged or forged, and lie in a copy of the storage that it was written to. So no record is
enough to kill a process. A process is killed only when the process itself proves that it drives the job, by what this
library has put there and nothing but that process can hold:

* A driver holds an open file in memory whose name is made of the storage and the job (:func:`mark_driver`).
* A JVM has in its environment which driver started it (:data:`DRIVER_VARIABLE`).

Only the user of a process, and root, can look at either. Where the system tells neither, as on macOS for a driver,
nothing is proven and nothing is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from dagster_ckpt.checkpoint.format.records import Seconds

__all__ = ["DRIVER_VARIABLE", "ProcessIdentity", "is_proven", "mark_driver", "this_host"]

#: In the environment of what a driver starts: :attr:`ProcessIdentity.mark` of the driver.
DRIVER_VARIABLE = "DAGSTER_CKPT_DRIVER"
#: What the command line of each JVM has that PySpark starts.
_SPARK = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
#: Seconds that a process which was killed may take to be gone.
_LAST_BREATH = 10.0
_TURN = 0.02
#: Seconds by which the start of a process may differ from a record of an earlier release, which tells no ticks.
_ROUNDING = 1.0
_GREATEST_PID = 2**31 - 1


@cache
def this_host() -> str:
    """This host and boot: process ids mean nothing across either."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    # The boot time is derived from the wall clock and moves with it; Linux has something better.
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else round(psutil.boot_time())}"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for good: a pid alone is used again by others.

    Attributes:
        host: :func:`this_host` where it runs.
        pid: its process id.
        created: when it started, seconds since the epoch as the operating system tells it. On Linux that is computed
            from the wall clock and moves with it, so there it only counts in a record without ``ticks``. macOS writes
            it down when the process starts, and it stays.
        ticks: when it started, in clock ticks since the host booted, which no clock moves. ``None`` where the
            operating system does not tell, and in a record of a release that did not.

    Raises:
        ValueError: no process can be meant.
    """

    host: str
    pid: int
    created: Seconds
    ticks: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be: these numbers decide what is killed."""
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
        return cls(this_host(), pid, created, None if seen is None else seen.ticks)

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of this process."""
        return cls.of(os.getpid())

    @property
    def mark(self) -> str:
        """The same for one process at all times, and for no two processes of a boot."""
        return f"{self.pid}-{self.created!r}" if self.ticks is None else f"{self.pid}-{self.ticks}"

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this host since its last boot."""
        return self.host == this_host()

    @property
    def is_this_one(self) -> bool:
        """Whether it is the process that asks."""
        return self.is_here and self.pid == os.getpid() and self.is_alive()

    def is_alive(self) -> bool:
        """Whether it exists (stopped counts, a zombie entry does not); only meaningful when :attr:`is_here`."""
        seen = _look(self.pid)
        if seen is None or seen.has_ended:
            return False
        if seen.is_hidden:
            return True  # nobody can say that it is another one
        if self.ticks is not None and seen.ticks is not None:
            return self.ticks == seen.ticks
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) <= _ROUNDING
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> bool:
        """SIGKILL it and wait until it is gone; :func:`is_proven` must be asked before.

        Returns:
            ``False`` when it was gone already.

        Raises:
            OSError: it could not be killed.
        """
        with _handle(self.pid) as handle:
            # From here on the handle means one process, whoever uses the pid again: is it the right one?
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


def mark_driver(job: tuple[str, str]) -> int | None:
    """Make this process provable as the driver of a job, for as long as a file is open.

    What this process starts from now on can be proven to be of this process.

    Args:
        job: URL of the storage, and name of the job.

    Returns:
        the file descriptor, to be closed when the job is not driven any more; ``None`` where there is no such thing.
    """
    os.environ[DRIVER_VARIABLE] = ProcessIdentity.current().mark
    if sys.platform != "linux":
        return None
    try:
        return os.memfd_create(_name_of(job))
    except OSError:  # no more files may be open: then this driver is refused by name when it hangs
        return None


def is_proven(process: ProcessIdentity, driver: ProcessIdentity, job: tuple[str, str]) -> bool:
    """Whether a live process of this host is the driver of a job, or its JVM, beyond what a record says.

    The JVM of a driver of an earlier release has no mark. It is killed only when it is of no use to anybody: the
    driver is gone, and so is every process that could still talk to the JVM.

    Args:
        process: that of a record, alive.
        driver: the driver by the same record, alive or gone.
        job: URL of the storage, and name of the job.
    """
    if not driver.is_here or process.pid in _never_killed() or not _is_of_this_user(process.pid):
        return False
    if process == driver:
        return _is_marked(process.pid, job)
    driver_lives = driver.is_alive()
    if driver_lives and not is_proven(driver, driver, job):
        return False
    started_by = _jvm_started_by(process.pid)
    if started_by is None:
        return False
    if started_by == driver.mark:
        return True  # another mark may be inherited of a process above the driver
    seen = _look(process.pid)
    if driver_lives:
        return seen is not None and seen.parent == driver.pid
    return _is_input_closed(process.pid)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the operating system says of a pid; ``ticks`` and ``parent`` only where Linux tells."""

    has_ended: bool
    ticks: int | None = None
    parent: int | None = None
    is_hidden: bool = False


def _look(pid: int) -> _Seen | None:
    """What is at a pid, ``None`` for nothing."""
    if sys.platform != "linux":
        try:
            return _Seen(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return None
    try:
        # The name of the program, in parentheses, may have spaces and parentheses in it.
        state, parent, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _Seen(has_ended=False, is_hidden=True) if _is_of_another_user(pid) else None
    except PermissionError:
        return _Seen(has_ended=False, is_hidden=True)
    return _Seen(state in {b"Z", b"X"}, int(others[17]), int(parent))


def _is_of_another_user(pid: int) -> bool:
    """Whether a process is there that /proc hides (``hidepid``)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _never_killed() -> set[int]:
    """Pids that no proof can be enough for: the first process, this one, and those above it."""
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
    wanted = f"/memfd:{_name_of(job)} (deleted)"
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
    """The mark of the driver that started a JVM of PySpark, empty if it has none; ``None`` if it is no such JVM."""
    try:
        process = psutil.Process(pid)
        if not set(_SPARK) <= set(process.cmdline()):
            return None
        return process.environ().get(DRIVER_VARIABLE, "")
    except (psutil.Error, OSError):
        return None


def _is_input_closed(pid: int) -> bool:
    """Whether standard input is a pipe whose other end nobody holds: by that a JVM of PySpark ends."""
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
    """A handle of the process that has a pid now, ``None`` where there is no such thing."""
    handle = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it is gone, or the kernel is older than 5.3
            handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _send_kill(pid: int, handle: int | None) -> None:
    """The one place where a signal is sent to what a record names."""
    if handle is None or sys.platform != "linux":
        os.kill(pid, signal.SIGKILL)
    else:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
