"""A directory for a disposable copy. One that a dead process has left is removed by whoever makes the next one.

A process that is killed removes nothing, so each directory has a lock, which its process holds for as long as it lives.
A lock that is free proves that the process is dead only where all processes see each other's locks: on a file system
that one kernel has for itself. A network file system may keep the locks of each host apart, or have none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import psutil

from dagster_ckpt.checkpoint import ProcessIdentity
from dagster_ckpt.errors import WorkingDirectoryFailed
from dagster_ckpt.filesystem import remove_entries

__all__ = ["scratch_directory"]

_PREFIX = "dagster-ckpt-scratch"
_LOCK = "lock"
#: File systems of one kernel.
_OF_ONE_KERNEL = frozenset({"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "overlay", "tmpfs", "xfs", "zfs"})
#: Seconds after which a directory is left over although nothing proves that its process is dead.
_LONG_AGO = 7 * 86_400.0


@contextmanager
def scratch_directory(place: Path) -> Iterator[Path]:
    """A new directory (0700), which is removed at the end; those of dead processes in ``place`` are removed now.

    Raises:
        WorkingDirectoryFailed: the directory cannot be made.
    """
    with ExitStack() as left:
        try:
            place.mkdir(parents=True, exist_ok=True)
            _remove_dead(place.resolve())  # first: their disk may be full
            prefix = f"{_own_prefix()}{ProcessIdentity.current().pid}-"
            directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            left.callback(shutil.rmtree, directory, ignore_errors=True)
            _lock(directory, left)
            _remove_old(place.resolve(), directory.stat().st_mtime)
        except OSError as error:
            raise WorkingDirectoryFailed(
                f"No copy of the checkpoint can be made in {place}: {error}.",
                hint="Name another directory as scratch_directory.",
            ) from error
        yield directory


def _own_prefix() -> str:
    """Names of this host, its boot and its container: there a pid means one process."""
    return f"{_PREFIX}-{sha256(ProcessIdentity.current().host.encode()).hexdigest()[:12]}-"


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


def _remove_dead(place: Path) -> None:
    """Remove the directories whose process is proven to be dead."""
    counts = _is_of_one_kernel(place)
    remove_entries(place, lambda name: _is_alive(place / name, free_counts=counts) is False)


def _remove_old(place: Path, now: float) -> None:
    """Remove the directories of long ago of which nothing is proven; ``now`` is by the clock of their file system."""

    def is_old(name: str) -> bool:
        if _is_alive(place / name, free_counts=False) is not None:
            return False
        with suppress(OSError):  # it is being removed
            return now - (place / name).stat(follow_symlinks=False).st_mtime > _LONG_AGO
        return False

    remove_entries(place, is_old)


def _is_alive(directory: Path, *, free_counts: bool) -> bool | None:
    """Whether the process of a directory lives; ``None`` where nothing tells. What is no scratch directory lives.

    Args:
        directory: in the place of scratch directories.
        free_counts: whether a lock that is free proves that its process is dead.
    """
    if not directory.name.startswith(f"{_PREFIX}-"):
        return True
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
