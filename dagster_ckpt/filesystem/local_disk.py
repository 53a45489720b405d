"""Errors of this machine's disks, told apart from errors of the checkpoints' storage."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from dagster_ckpt.errors import WorkingDirectoryFailed

__all__ = ["is_full", "local_failure", "make_durable", "refused_write"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})
_MIB = 1 << 20


def make_durable(path: Path) -> int:
    """Have the disk keep a file, or the names in a directory, through a power cut; returns the size in bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says, itself or by a cause, that a disk is full or a quota used up."""
    return any(cause.errno in (errno.ENOSPC, errno.EDQUOT) for cause in _causes(error))


def local_failure(error: Exception, directory: Path) -> WorkingDirectoryFailed | None:
    """This package's error for ``error``, if ``error`` concerns files below ``directory``; else ``None``.

    An error without a path (a write to an open file) counts when it is an error of a disk, not of a network.
    """
    if not isinstance(error, OSError):
        return None
    paths = _paths(error)
    is_here = any(Path(path).is_relative_to(directory) for path in paths)
    if not is_here and (paths or error.errno not in _FULL | _FORBIDDEN | _TOO_MANY | {errno.EIO}):
        return None
    return _failed(f"What a start needs could not be laid out in {directory}", error, directory)


def refused_write(error: OSError, target: Path, size: int) -> WorkingDirectoryFailed | None:
    """The error that the disk of ``target`` refused a file from the storage; ``None`` when the storage failed.

    Args:
        error: of the storage, or of the operating system; the error or one of its causes has the system's error number.
        target: the directory that a checkpoint is written to.
        size: bytes of the checkpoint.
    """
    for cause in _causes(error):
        if cause.errno in _FULL | {errno.EROFS} or any(Path(path).is_relative_to(target) for path in _paths(cause)):
            return _failed(f"A checkpoint of {size / _MIB:,.1f} MiB could not be unpacked to {target}", cause, target)
    return None


def _failed(what: str, error: OSError, directory: Path) -> WorkingDirectoryFailed:
    reason = error.strerror or str(error).partition("\n")[0]
    where = "".join(f" ({path})" for path in _paths(error)[-1:])
    if error.errno in _TOO_MANY:
        remedy = "Raise the limit of open files of this process (`ulimit -n`)"
    elif error.errno in _FORBIDDEN:
        remedy = "Make that directory writable for the user of the run, or set working_directory to one that is"
    else:
        remedy = (
            "Free space on that disk, or set working_directory of the checkpoint storage to a directory on one that "
            "has room for a checkpoint"
        )
    return WorkingDirectoryFailed(
        f"{what}: {reason}{where}{_free(directory)}.",
        hint=f"{remedy}. The job is started again by its restart strategy.",
    )


def _causes(error: BaseException | None) -> Iterator[OSError]:
    while error is not None:
        if isinstance(error, OSError):
            yield error
        error = error.__cause__


def _paths(error: OSError) -> Sequence[str]:
    if isinstance(error, shutil.Error):  # of `copytree`: source, target and reason of each failed copy
        return [str(item[1]) for item in error.args[0]][:1] if isinstance(error.args[0], list) else []
    return [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, (str, bytes, Path))]


def _free(directory: Path) -> str:
    """The free space on the disk of ``directory``, which may be gone."""
    known = next((path for path in (directory, *directory.parents) if path.is_dir()), None)
    if known is None:
        return ""
    with contextlib.suppress(OSError):
        disk = os.statvfs(known)
        return f"; {disk.f_bavail * disk.f_frsize / _MIB:,.1f} MiB and {disk.f_favail:,} files are free there"
    return ""
