"""Disposable directories of this machine, and bounds on what transfers use of its disk and memory at once.

A process that is killed removes nothing, so each directory has a lock, which its process holds for as long as it lives.
Whoever makes the next directory removes those of dead processes. A lock that is free proves that the process is dead
only where all processes see each other's locks: on a file system that one kernel has for itself. A network file system
may keep the locks of each host apart, or have none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from dagster_ckpt.filesystem.private_directories import is_own, remove_entries
from dagster_ckpt.filesystem.values import Stopped
from dagster_ckpt.hosts import process_table

__all__ = ["MAX_SCRATCH_BYTES", "Budget", "Scratch", "remove_dead_scratch", "scratch_directory"]

#: Bytes in the temporary directory at once: a pod has little disk, and a job may have much state.
MAX_SCRATCH_BYTES = 1 << 30
_PREFIX = "dagster-ckpt-scratch-"
_LOCK = "lock"
#: File systems of one kernel.
_OF_ONE_KERNEL = frozenset({"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "overlay", "tmpfs", "xfs", "zfs"})
#: Seconds after which a directory is left over although nothing proves that its process is dead.
_LONG_AGO = 7 * 86_400.0


def _never() -> bool:
    return False


class Budget:
    """Bytes that transfers may hold at once. A transfer that needs more than the whole budget runs alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[None]:
        """Wait until ``size`` bytes are free, and hold them.

        Raises:
            Stopped: ``stop()`` became true first.
        """
        with self._changed:
            while self._taken and self._taken + size > self._most:
                if stop():
                    raise Stopped
                self._changed.wait(0.1)
            if stop():
                raise Stopped
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


class Scratch:
    """Files that pass through one scratch directory: :data:`MAX_SCRATCH_BYTES` together, or one larger file alone.

    Thread-safe. The directory is made with the first file, and removed at the end of the ``with`` block.
    """

    def __init__(self) -> None:
        self._room = Budget(MAX_SCRATCH_BYTES)
        self._left = ExitStack()
        self._lock = threading.Lock()
        self._directory: Path | None = None

    def __enter__(self) -> Self:
        """Begin; nothing is on the disk yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the directory."""
        self._left.close()

    @contextmanager
    def file(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[Path]:
        """Wait for room for a new file of ``size`` bytes and yield its path; the file is removed afterwards.

        Raises:
            Stopped: ``stop()`` became true first.
        """
        with self._room.taken(size, stop), tempfile.TemporaryDirectory(dir=self._made()) as directory:
            yield Path(directory) / "file"

    def _made(self) -> Path:
        with self._lock:
            if self._directory is None:
                self._directory = self._left.enter_context(scratch_directory())
            return self._directory


@contextmanager
def scratch_directory(place: Path | None = None) -> Iterator[Path]:
    """A new directory (0700), which is removed at the end; those of dead processes in ``place`` are removed now.

    Args:
        place: the directory to make the new one in; by default the temporary directory of this machine.

    Raises:
        OSError: the directory cannot be made.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    with ExitStack() as left:
        place.mkdir(parents=True, exist_ok=True)
        remove_dead_scratch(place)  # first: their disk may be full
        directory = Path(tempfile.mkdtemp(prefix=f"{_own_prefix()}{os.getpid()}-", dir=place))
        left.callback(shutil.rmtree, directory, ignore_errors=True)
        _lock(directory, left)
        _remove_old(place, directory.stat().st_mtime)
        yield directory


def _own_prefix() -> str:
    """Names of this host, its boot and its container: there a pid means one process."""
    return f"{_PREFIX}{sha256(process_table().encode()).hexdigest()[:12]}-"


def _lock(directory: Path, left: ExitStack) -> None:
    """Hold a lock in the directory until ``left`` is closed, which is before the directory is removed.

    The lock gets its name once it is held, so a lock that is free was held by a process that is dead. On a file system
    without locks no lock gets the name.
    """
    unheld = directory / f"{_LOCK}.new"
    file = left.enter_context(unheld.open("wb"))
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unheld.rename(directory / _LOCK)


def remove_dead_scratch(place: Path) -> None:
    """Remove the scratch directories in ``place`` whose process is proven to be dead, as far as that can be done."""
    with suppress(Exception):  # what is left harms nobody
        counts = _is_of_one_kernel(place.resolve())
        _remove(place, lambda directory: _is_alive(directory, free_counts=counts) is False)


def _remove_old(place: Path, now: float) -> None:
    """Remove the directories of long ago of which nothing is proven; ``now`` is by the clock of their file system."""

    def is_old(directory: Path) -> bool:
        if _is_alive(directory, free_counts=False) is not None:
            return False
        with suppress(OSError):  # it is being removed
            return now - directory.stat(follow_symlinks=False).st_mtime > _LONG_AGO
        return False

    with suppress(Exception):
        _remove(place, is_old)


def _remove(place: Path, is_left: Callable[[Path], bool]) -> None:
    """Remove those of this user; whatever others have put there, under whatever name, is no error."""

    def is_removed(name: str) -> bool:
        with suppress(Exception):
            return name.startswith(_PREFIX) and is_own(place / name) and is_left(place / name)
        return False

    remove_entries(place.resolve(), is_removed)


def _is_alive(directory: Path, *, free_counts: bool) -> bool | None:
    """Whether the process of a scratch directory lives; ``None`` where nothing tells.

    Args:
        directory: in the place of scratch directories.
        free_counts: whether a lock that is free proves that its process is dead.
    """
    pid = directory.name.removeprefix(_own_prefix()).partition("-")[0]
    is_here = directory.name.startswith(_own_prefix()) and pid.isdecimal()
    if is_here and not psutil.pid_exists(int(pid)):
        return False
    try:
        is_held = _is_held(directory)
    except OSError:  # it is being removed, is no directory, or is another user's
        return True
    if is_held is None:
        return True if is_here else None
    return True if is_held else (False if free_counts else None)


def _is_held(directory: Path) -> bool | None:
    """Whether the lock of a directory is held; ``None`` if there is no lock."""
    with ExitStack() as opened:
        inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, inside)
        try:
            lock = os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
        except FileNotFoundError:
            return None
        opened.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there are no locks here
            return None
        return False


def _is_of_one_kernel(place: Path) -> bool:
    # Of several mounts in one place the last one is seen.
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((kinds[above] for above in (place, *place.parents) if above in kinds), "") in _OF_ONE_KERNEL
