"""Directories for the live state of a job. Only the job's user can reach them, swap them or prepare them in advance.

These directories often lie in a directory that all users of a host share. So each directory that this library makes
is for its user alone (0700), and an existing directory is used only if it is a real directory of that user. Files in
these directories, such as those of Spark's state stores, keep the mode that the umask of the process gives them: the
0700 above keeps other users out.

Where Spark's executors run as another user, they need access. Then name a working directory, make the job's
directory in it yourself, and let the group write to it: an existing directory keeps its mode, and the directories of
starts get the same mode.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dagster_ckpt.errors import StorageUnusable

__all__ = ["default_root", "is_own", "make_working_directory", "remove_entries", "share_start"]

_PRIVATE = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def default_root() -> Path:
    """The directory of this user in the temporary directory."""
    return Path(tempfile.gettempdir()) / f"dagster_ckpt-{os.geteuid()}"


def make_working_directory(directory: Path, first: Path | None = None) -> None:
    """Make sure that a directory exists and belongs to this user.

    Below :func:`default_root` every directory is for this user alone. Elsewhere the user has named the place: the place
    is checked, and an existing directory below the place may let its group write.

    Args:
        directory: the job's.
        first: the first directory on the way to ``directory`` that the library makes, by default ``directory`` itself.
            The path above ``first`` may contain symbolic links.

    Raises:
        StorageUnusable: a directory belongs to another user, is not a real directory, or others can write to it.
        OSError: the directory cannot be made.
    """
    first = directory if first is None else first
    above, named = first.parent, first != default_root()
    if not above.exists():
        _make_above(above, private=named and first != directory)
    if named and first != directory:
        _check_named(above)
    place = os.open(above, _OPEN)
    try:
        at = above
        for name in directory.relative_to(above).parts:
            at /= name
            inner = _enter(place, name, at, named=named)
            os.close(place)
            place = inner
    finally:
        os.close(place)


def share_start(directory: Path) -> None:
    """Give the new directory of a start the group access that the user has set on the job's directory."""
    mode = stat.S_IMODE(directory.parent.lstat().st_mode)
    if mode & stat.S_IWGRP:
        directory.chmod(mode)


def is_own(directory: Path) -> bool:
    """Whether ``directory`` is a real directory of this user that not everybody may write to."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH


def remove_entries(directory: Path, is_old: Callable[[str], bool]) -> None:
    """Remove the directories in ``directory`` whose name is old; no symbolic link is followed.

    Raises:
        OSError: ``directory`` is not a directory, or is a symbolic link.
    """
    with _opened(directory) as place:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries]
        for name in filter(is_old, names):
            shutil.rmtree(name, ignore_errors=True, dir_fd=place)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    place = os.open(directory, _OPEN | os.O_NOFOLLOW)
    try:
        yield place
    finally:
        os.close(place)


def _make_above(directory: Path, *, private: bool) -> None:
    """Make a directory that the user has named, and its parents."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=_PRIVATE if private else 0o777, exist_ok=True)


def _check_named(directory: Path) -> None:
    found = directory.stat()  # a place that the user has named may belong to anybody
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise _refusal(
            directory,
            "can be written to by everybody, who could replace what the job keeps in it",
            f"Set working_directory to a directory in it, {directory / 'dagster_ckpt'} for example, which is then made "
            f"for this user alone; or run `chmod +t {directory}`.",
        )


def _enter(place: int, name: str, at: Path, *, named: bool) -> int:
    """Open the directory ``name`` in ``place``; make the directory if it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=place)
    _check_own(os.stat(name, dir_fd=place, follow_symlinks=False), at, named=named)
    inner = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=place)
    try:
        found = os.fstat(inner)
        _check_own(found, at, named=named)  # the directory may have been swapped since the first check
        if not named:
            os.fchmod(inner, _PRIVATE)
    except BaseException:
        os.close(inner)
        raise
    return inner


def _check_own(found: os.stat_result, at: Path, *, named: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(at, "is a symbolic link", f"Look at where {at} leads, and remove the link. {_name_another(at)}")
    if not stat.S_ISDIR(found.st_mode):
        raise _refusal(at, "is no directory", f"Move {at} elsewhere. {_name_another(at)}")
    if found.st_uid != os.geteuid():
        raise _refusal(at, _belongs(found), _name_another(at))
    if found.st_mode & (stat.S_IWOTH if named else _WRITABLE_BY_OTHERS):
        raise _refusal(
            at,
            "can be written to by other users, so nobody knows what is in it",
            f"Move what is in {at} elsewhere and remove the directory. {_name_another(at)}",
        )


def _refusal(directory: Path, what: str, hint: str) -> StorageUnusable:
    return StorageUnusable(f"Live checkpointLocations are not written to {directory}: the directory {what}.", hint=hint)


def _name_another(directory: Path) -> str:
    return (
        f"Let the user of the job own {directory}, or set working_directory of the checkpoint storage to a directory "
        "that the user of the job owns."
    )


def _belongs(found: os.stat_result) -> str:
    return f"belongs to user {found.st_uid}, and the job runs as user {os.geteuid()}"
