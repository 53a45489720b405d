"""Where checkpoints are kept: the port the protocol needs, and the storages that implement it.

* :class:`FileSystem`: the port, and what a storage does with its files by itself (:class:`ServerSide`).
* :func:`open_filesystem`: the storage that a path means.
* :class:`PosixFileSystem`: directories of local and POSIX network file systems.
* :class:`GcsFileSystem`: Google Cloud Storage, through gcsfs.
* :class:`S3FileSystem`: Amazon S3 and what speaks its protocol, through s3fs.
* :class:`AzureBlobFileSystem`: Azure Blob Storage and Data Lake Storage, through adlfs.
* :class:`HdfsFileSystem`: HDFS, through Spark's own Hadoop client.
* :class:`MemoryFileSystem`, :class:`DriverMemory`: the memory of this process.

The rest is for the disks of this machine: private directories, bounded use of scratch space, names of files.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from dagster_ckpt import paths
from dagster_ckpt.filesystem.driver_memory import DriverMemory
from dagster_ckpt.filesystem.local_disk import is_full, local_failure, make_durable, refused_write
from dagster_ckpt.filesystem.memory import MemoryFileSystem
from dagster_ckpt.filesystem.names import inside
from dagster_ckpt.filesystem.opening import REMOTE_SCHEMES, open_filesystem
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.posix import PosixFileSystem
from dagster_ckpt.filesystem.private_directories import (
    default_root,
    is_own,
    make_working_directory,
    remove_entries,
    share_start,
)
from dagster_ckpt.filesystem.reserve import Reserve
from dagster_ckpt.filesystem.scratch import Scratch, remove_dead_scratch, scratch_directory
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored, crc32c_of, md5_of
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written, unheard
from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.filesystem.buckets import AzureBlobFileSystem, GcsFileSystem, ObjectFileSystem, S3FileSystem
    from dagster_ckpt.filesystem.hdfs import HdfsFileSystem
else:  # hidden from type checkers, which would take every name for one that is there
    _find, __dir__ = lazy_names(__name__)

    def __getattr__(name: str) -> Any:
        """What is imported when it is asked for, and what release 0.1.0 had here."""
        if name not in {"local_path", "split_location"}:
            return _find(name)
        warnings.warn(f"{__name__}.{name} has moved to {paths.__name__}.{name}.", DeprecationWarning, stacklevel=2)
        return getattr(paths, name)


__all__ = [
    "REMOTE_SCHEMES",
    "AzureBlobFileSystem",
    "Copy",
    "DriverMemory",
    "Entry",
    "FileSystem",
    "GcsFileSystem",
    "HdfsFileSystem",
    "MemoryFileSystem",
    "ObjectFileSystem",
    "Part",
    "PosixFileSystem",
    "Reserve",
    "S3FileSystem",
    "Scratch",
    "ServerSide",
    "Stopped",
    "Stored",
    "Written",
    "crc32c_of",
    "default_root",
    "inside",
    "is_full",
    "is_own",
    "local_failure",
    "make_durable",
    "make_working_directory",
    "md5_of",
    "open_filesystem",
    "refused_write",
    "remove_dead_scratch",
    "remove_entries",
    "scratch_directory",
    "share_start",
    "unheard",
]
