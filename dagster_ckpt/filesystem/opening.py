"""Which storage a checkpoint path means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import buckets, hdfs
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.posix import CHUNK, PosixFileSystem
from dagster_ckpt.paths import Location, local_path, refuse_former_meaning, split_location

__all__ = ["REMOTE_SCHEMES", "open_filesystem"]

#: Characters that a bucket's client, or Spark's connector, takes for something else or refuses.
_NOT_IN_A_BUCKET = re.compile(r"[?#\x00-\x1f\x7f]")


def open_filesystem(
    location: str,
    *,
    write_buffer_size: int = CHUNK,
    storage_options: Mapping[str, Any] | None = None,
    like: FileSystem | None = None,
) -> FileSystem:
    """The file system for a checkpoint path: an absolute or relative path, ``~``, a ``file://`` URL or another URL.

    Args:
        location: the path.
        write_buffer_size: bytes that are copied at a time when a data file is written to a disk.
        storage_options: how to connect to a storage that is not a directory, see
            :class:`~dagster_ckpt.filesystem.GcsFileSystem`, :class:`~dagster_ckpt.filesystem.S3FileSystem`,
            :class:`~dagster_ckpt.filesystem.AzureBlobFileSystem` and
            :class:`~dagster_ckpt.filesystem.HdfsFileSystem`.
        like: the storage in whose records or requests the path was found. Such a path is not trusted: it gets the
            options of ``like`` where it is at the same endpoint, and a host that only the path names gets no
            credentials. ``None`` where the user gave the path.

    Raises:
        InvalidConfiguration: ``location`` is not a path or URL, its scheme is not supported, the library for the scheme
            is not installed, an option is unknown, the path is the root directory, or the credentials are not for the
            host.
    """
    if not location:
        raise InvalidConfiguration("The checkpoint path is empty.", hint="Set checkpoint_path, for example to ~/ckpt.")
    place = split_location(location)
    if not place.is_local and "::" in location:
        raise InvalidConfiguration(
            f"Checkpoint path {place.shown!r} is a chain of file systems: a cache between a job and "
            "its storage shows old checkpoints, and publishes half-written ones.",
            hint="Name the storage itself.",
        )
    if remote := _REMOTE.get(place.scheme):
        return _open_remote(remote, place, storage_options, like)
    if not place.is_local:
        raise InvalidConfiguration(
            f"Checkpoint path {place.shown!r} has the scheme {place.scheme!r}; this release "
            "stores checkpoints on local and POSIX network file systems, and in "
            f"{', '.join(kind.name for kind in _KINDS)}.",
            hint=f"Use an absolute path, a file:// URL, or one like {', '.join(kind.form for kind in _KINDS)}.",
        )
    if storage_options:
        raise InvalidConfiguration(
            f"Checkpoint path {location!r} is a directory, and storage_options are for object stores.",
            hint="Leave storage_options out.",
        )
    path = local_path(location)
    if path == path.parent:
        raise InvalidConfiguration("Cannot use the root directory for checkpoints.", hint="Name a directory below it.")
    refuse_former_meaning(location, path)
    return PosixFileSystem(path, write_buffer_size)


# The libraries of each kind take half a second to import. `buckets` and `hdfs` import them only when a class is asked
# for, so users of other storages do not wait.


def _gcs(authority: str, path: str, options: Mapping[str, Any] | None) -> FileSystem:
    return buckets.GcsFileSystem(authority, path, options)


def _s3(authority: str, path: str, options: Mapping[str, Any] | None) -> FileSystem:
    return buckets.S3FileSystem(authority, path, options)


def _azure(authority: str, path: str, options: Mapping[str, Any] | None) -> FileSystem:
    container, _, host = authority.partition("@")
    return buckets.AzureBlobFileSystem(container, path, options, host)


def _hdfs(authority: str, path: str, options: Mapping[str, Any] | None) -> FileSystem:
    return hdfs.HdfsFileSystem(authority, f"/{path}", options)


# Whether the credentials of a storage may go to an authority that was read from a record. ``own`` is the storage's
# authority, ``None`` when the storage is of another kind.


def _is_same_kind(authority: str, own: str | None, options: Mapping[str, Any]) -> bool:
    """A URL of this kind names only a bucket; the options name the server."""
    del authority, options
    return own is not None


def _is_azure(authority: str, own: str | None, options: Mapping[str, Any]) -> bool:
    host = authority.partition("@")[2]
    return buckets.is_entrusted(host, None if own is None else own.partition("@")[2], options) and own is not None


def _is_same_cluster(authority: str, own: str | None, options: Mapping[str, Any]) -> bool:
    """Another cluster gets no options; it learns only a user's name, or a Kerberos ticket made for that cluster."""
    if own is None:
        return False
    default = str(options.get("fs.defaultFS", "")).removeprefix("hdfs://").rstrip("/")
    known = {"", own, default, *str(options.get("dfs.nameservices", "")).replace(" ", "").split(",")}
    return authority.lower() in {name.lower() for name in known}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of storage, chosen by the scheme of a URL.

    Attributes:
        name: what people call it.
        form: how its URLs are written.
        schemes: of its URLs.
        open: makes the file system from the authority, the path and the options.
        is_entrusted: whether the credentials of a storage may go to an authority that was read from a record.
        extra: the extra of this distribution that brings its libraries; ``None`` when they are always installed.
        place: what a URL names beside a directory.
        user: whether the text before an ``@`` is a part of the place, not a credential.
        ambiguous: components of a path that may be taken for others.
        why: what is wrong with them, for people.
    """

    name: str
    form: str
    schemes: tuple[str, ...]
    open: Callable[[str, str, Mapping[str, Any] | None], FileSystem]
    is_entrusted: Callable[[str, str | None, Mapping[str, Any]], bool]
    extra: str | None = None
    place: str = "a bucket"
    user: bool = False
    ambiguous: re.Pattern[str] = re.compile(r"^\.\.?$")
    why: str = ". or .. in it, which the storage takes for names"


_KINDS = (
    _Kind("Google Cloud Storage", "gs://bucket/directory", ("gs", "gcs"), _gcs, _is_same_kind),
    _Kind("Amazon S3", "s3://bucket/directory", ("s3", "s3a"), _s3, _is_same_kind, extra="s3"),
    _Kind(
        "Azure Blob Storage",
        "abfs://container@account.dfs.core.windows.net/directory",
        ("abfs", "abfss", "az"),
        _azure,
        _is_azure,
        extra="azure",
        user=True,
        # https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
        ambiguous=re.compile(r"\.$|\\"),
        why="a backslash in it or a dot at the end of a name, which Azure takes for other names",
    ),
    _Kind("HDFS", "hdfs://namenode:8020/directory", ("hdfs",), _hdfs, _is_same_cluster, place="a NameNode"),
)
_REMOTE = {scheme: kind for kind in _KINDS for scheme in kind.schemes}
#: The schemes of URLs that name no directory of this machine.
REMOTE_SCHEMES = frozenset(_REMOTE)


def _open_remote(
    kind: _Kind, place: Location, storage_options: Mapping[str, Any] | None, like: FileSystem | None
) -> FileSystem:
    user, at, _ = place.authority.rpartition("@")
    if _NOT_IN_A_BUCKET.search(place.authority + place.path) or (at and (not kind.user or ":" in user or "@" in user)):
        raise InvalidConfiguration(
            f"Checkpoint path {place.shown!r} has more in it than {kind.place} and a directory, whose names have no ?, "
            "no # and no control character here.",
            hint=f"Write it as {kind.form}; credentials belong in storage_options or the environment.",
        )
    names = [name for name in place.path.split("/") if name]
    if any(kind.ambiguous.search(name) for name in names):
        raise InvalidConfiguration(
            f"Checkpoint path {place.shown!r} has {kind.why}.",
            hint="Write the path as it is meant.",
        )
    try:
        if storage_options is None and like is not None:
            storage_options = _entrusted(kind, place.authority, like)
        return kind.open(place.authority, "/".join(names), storage_options)
    except ModuleNotFoundError as error:
        if kind.extra is None:
            raise
        raise InvalidConfiguration(
            f"Checkpoints in {kind.name} need the module {error.name!r}, which is not installed.",
            hint=f'Run `pip install "dagster-ckpt[{kind.extra}]"`.',
        ) from error


def _entrusted(kind: _Kind, authority: str, like: FileSystem) -> Mapping[str, Any] | None:
    """The options of ``like``, if its credentials may go to ``authority``, which was read from a record; else ``None``.

    Only this function decides that. A storage that was opened without options uses its libraries' environment.
    """
    own = split_location(like.url)
    is_of_kind = _REMOTE.get(own.scheme) is kind
    options = like.storage_options if is_of_kind else {}
    return options if kind.is_entrusted(authority, own.authority if is_of_kind else None, options) else None
