"""Which storage a checkpoint path means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.posix import CHUNK, PosixFileSystem

__all__ = ["GCS_SCHEMES", "HDFS_SCHEME", "open_filesystem"]

GCS_SCHEMES = frozenset({"gs", "gcs"})
HDFS_SCHEME = "hdfs"


def open_filesystem(
    location: str,
    *,
    write_buffer_size: int = CHUNK,
    storage_options: Mapping[str, Any] | None = None,
    like: FileSystem | None = None,
) -> FileSystem:
    """The file system for a checkpoint path: an absolute or relative path, ``~``, or a URL.

    Args:
        location: the path.
        write_buffer_size: bytes that are copied at a time when a data file is written to a disk.
        storage_options: how to connect to an object store, see :class:`~dagster_ckpt.filesystem.gcs.GcsFileSystem`, or
            to HDFS, see :class:`~dagster_ckpt.filesystem.hdfs.HdfsFileSystem`.
        like: a storage whose options are taken if it is of the same kind and none are given.

    Raises:
        InvalidConfiguration: the scheme is not supported, an option is unknown, or the path is the root directory.
    """
    if not location:
        raise InvalidConfiguration("The checkpoint path is empty.", hint="Set checkpoint_path, for example to ~/ckpt.")
    parts = urlsplit(location)
    if "::" in location and "://" in location:
        raise InvalidConfiguration(
            f"Checkpoint path {without_credentials(location)!r} is a chain of file systems: a cache between a job and "
            "its storage shows old checkpoints, and publishes half-written ones.",
            hint="Name the storage itself.",
        )
    if parts.scheme in GCS_SCHEMES:
        inherited = like.storage_options if like is not None and urlsplit(like.url).scheme in GCS_SCHEMES else None
        return _gcs(location, inherited if storage_options is None else storage_options)
    if parts.scheme == HDFS_SCHEME:
        inherited = like.storage_options if like is not None and urlsplit(like.url).scheme == HDFS_SCHEME else None
        return _hdfs(location, inherited if storage_options is None else storage_options)
    if parts.scheme and parts.scheme != "file":
        raise InvalidConfiguration(
            f"Checkpoint path {without_credentials(location)!r} has the scheme {parts.scheme!r}; this release "
            "stores checkpoints on local and POSIX network file systems, in Google Cloud Storage and in HDFS.",
            hint="Use an absolute path, a file://, gs:// or hdfs:// URL.",
        )
    if storage_options:
        raise InvalidConfiguration(
            f"Checkpoint path {location!r} is a directory, and storage_options are for object stores.",
            hint="Leave storage_options out.",
        )
    path = Path(unquote(parts.netloc + parts.path) if parts.scheme else location).expanduser().absolute()
    if path == Path(path.anchor):
        raise InvalidConfiguration("Cannot use the root directory for checkpoints.", hint="Name a directory below it.")
    return PosixFileSystem(path, write_buffer_size)


def _gcs(location: str, storage_options: Mapping[str, Any] | None) -> FileSystem:
    shown = without_credentials(location)
    parts = urlsplit(location)
    if "?" in location or "#" in location or "@" in parts.netloc:
        raise InvalidConfiguration(
            f"Checkpoint path {shown!r} has more in it than a bucket and a directory.",
            hint="Write it as gs://bucket/directory; credentials belong into storage_options or the environment.",
        )
    names = [name for name in parts.path.split("/") if name]
    if any(name in {".", ".."} for name in names):
        raise InvalidConfiguration(
            f"Checkpoint path {shown!r} has . or .. in it, which an object store takes for names.",
            hint="Write the path as it is meant.",
        )
    # Its libraries take half a second to import, which nobody pays for who keeps checkpoints on a disk.
    from dagster_ckpt.filesystem.gcs import GcsFileSystem  # noqa: PLC0415

    return GcsFileSystem(parts.netloc, "/".join(names), storage_options)


def _hdfs(location: str, storage_options: Mapping[str, Any] | None) -> FileSystem:
    shown = without_credentials(location)
    parts = urlsplit(location)
    if "?" in location or "#" in location or "@" in parts.netloc:
        raise InvalidConfiguration(
            f"Checkpoint path {shown!r} has more in it than a NameNode and a directory.",
            hint="Write it as hdfs://namenode:8020/directory; who reads it is told by `kinit` or HADOOP_USER_NAME.",
        )
    names = [name for name in parts.path.split("/") if name]
    if any(name in {".", ".."} for name in names):
        raise InvalidConfiguration(
            f"Checkpoint path {shown!r} has . or .. in it, which HDFS does not take for what they mean.",
            hint="Write the path as it is meant.",
        )
    from dagster_ckpt.filesystem.hdfs import HdfsFileSystem  # noqa: PLC0415 - as above

    return HdfsFileSystem(parts.netloc, "/" + "/".join(names), storage_options)


def without_credentials(location: str) -> str:
    """A URL without the user, the query and the fragment that it may have."""
    parts = urlsplit(location)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
