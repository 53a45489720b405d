"""Where checkpoints are kept: the port the protocol needs, and the storages that implement it.

* :mod:`~dagster_ckpt.filesystem.port`: the port.
* :mod:`~dagster_ckpt.filesystem.posix`: directories of local and POSIX network file systems.
* :mod:`~dagster_ckpt.filesystem.buckets.bucket`: buckets, through an asynchronous fsspec file system.
* :mod:`~dagster_ckpt.filesystem.buckets.gcs`: Google Cloud Storage, through gcsfs.
* :mod:`~dagster_ckpt.filesystem.buckets.s3`: Amazon S3 and what speaks its protocol, through s3fs.
* :mod:`~dagster_ckpt.filesystem.buckets.azure`: Azure Blob Storage and Data Lake Storage, through adlfs.
* :mod:`~dagster_ckpt.filesystem.hdfs.hdfs`: HDFS, through Spark's own Hadoop client.
* :mod:`~dagster_ckpt.filesystem.server_side`: what a store does with its objects by itself.
* :mod:`~dagster_ckpt.filesystem.opening`: which of them a path means.
"""

from __future__ import annotations

from dagster_ckpt.filesystem.opening import open_filesystem
from dagster_ckpt.filesystem.port import Entry, FileSystem, Part, Stopped, Written
from dagster_ckpt.filesystem.posix import PosixFileSystem
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored

__all__ = [
    "Copy",
    "Entry",
    "FileSystem",
    "Part",
    "PosixFileSystem",
    "ServerSide",
    "Stopped",
    "Stored",
    "Written",
    "open_filesystem",
]
