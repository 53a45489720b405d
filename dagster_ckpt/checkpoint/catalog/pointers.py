"""Pointers: what a user has of a checkpoint, the path of its ``_metadata`` file or of its directory.

Also where savepoints go, and their names. (Flink: ``AbstractFsCheckpointStorageAccess``.)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    METADATA_FILE_NAME,
    SAVEPOINT_DIR_PREFIX,
    CheckpointMetadata,
    is_job_name,
)
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration, StorageError
from dagster_ckpt.filesystem import REMOTE_SCHEMES, Entry, FileSystem, open_filesystem
from dagster_ckpt.paths import local_path, refuse_former_meaning, split_location

__all__ = [
    "SAVEPOINT_POINTER",
    "CompletedCheckpointStorageLocation",
    "is_job",
    "job_directories",
    "job_names",
    "new_savepoint_directory",
    "resolve_checkpoint_pointer",
    "savepoint_storage",
    "savepoint_token",
]

#: Before the name of a savepoint, wherever a checkpoint or savepoint is named: ``savepoint:before-upgrade``.
SAVEPOINT_POINTER = "savepoint:"
_ATTEMPTS = 10
#: What a directory of a job has.
_HAS_RECORDS = Entry(CONTROL_DIR, is_directory=True)
_NAME_ANOTHER = "Name the directory of a checkpoint or savepoint, or its _metadata."


@dataclass(frozen=True, slots=True)
class CompletedCheckpointStorageLocation:
    """The place of a checkpoint or savepoint that a user pointed to. Its manifest has not been read.

    Attributes:
        storage: its directory.
        manifest: the name of the manifest there; a pointer may name a file of any name as the manifest.
    """

    storage: FileSystem
    manifest: str

    @property
    def external_pointer(self) -> str:
        """The directory, without a trailing slash."""
        return self.storage.url

    @property
    def metadata_file(self) -> str:
        """Path of the manifest."""
        return f"{self.storage.url}/{self.manifest}"

    def metadata(self) -> CheckpointMetadata:
        """Read the manifest.

        Raises:
            CheckpointNotFound: the checkpoint or savepoint was deleted meanwhile.
            CorruptMetadata: the file is not a manifest, or was changed.
            UnknownMetadataVersion: a newer release wrote the manifest.
        """
        data = self.storage.read_if_there(self.manifest)
        if data is None:
            raise CheckpointNotFound(f"{self.metadata_file} was deleted at this moment.", hint=_NAME_ANOTHER)
        return CheckpointMetadata.decode(data, self.metadata_file)


def job_directories(filesystem: FileSystem) -> list[str]:
    """The directories that may be of jobs: others may keep their own directories beside them."""
    return sorted(entry.name for entry in filesystem.list("") if entry.is_directory and is_job_name(entry.name))


def job_names(filesystem: FileSystem) -> list[str]:
    """The directories of jobs; one that is closed to this user counts as a job's."""
    names = job_directories(filesystem)
    try:
        return [name for name, inside in zip(names, filesystem.list_many(names), strict=True) if _HAS_RECORDS in inside]
    except StorageError as error:
        if not error.is_denied:
            raise
    return [name for name in names if _may_be_job(filesystem, name)]


def _may_be_job(filesystem: FileSystem, name: str) -> bool:
    try:
        return _HAS_RECORDS in filesystem.list(name)
    except StorageError as error:
        if not error.is_denied:
            raise
        return True


def is_job(filesystem: FileSystem, name: str) -> bool:
    """Whether a job has this name: one request, where :func:`job_names` takes one for each job."""
    return is_job_name(name) and _HAS_RECORDS in filesystem.list(name)


def savepoint_storage(asked: str | None, default: str | None, *, like: FileSystem) -> FileSystem:
    """The storage for savepoints: at the requested location, else at the configured one.

    Args:
        asked: the requested location.
        default: the configured location.
        like: the storage of checkpoints, whose options are used for a location of the same kind.

    Raises:
        InvalidConfiguration: there is neither location, or it cannot be used.
    """
    location = asked or default
    if location is None:
        raise InvalidConfiguration(
            "No savepoint location given and no default location configured.",
            hint="Name a directory (`--to DIR`, or `to` in the asset's configuration), or set savepoint_path of the "
            "checkpoint storage.",
        )
    return open_filesystem(location, like=like)


def savepoint_token() -> str:
    """The random part of a savepoint's name, 12 hex digits."""
    return uuid.uuid4().hex[:12]


def new_savepoint_directory(storage: FileSystem, job_id: str, new_token: Callable[[], str] = savepoint_token) -> str:
    """A name that no savepoint below ``storage`` has: ``savepoint-{6 hex of the job id}-{12 random hex}``.

    Args:
        storage: the directory of savepoints.
        job_id: the lineage.
        new_token: makes the random part.

    Raises:
        StorageError: ten names in a row were taken.
    """
    for _ in range(_ATTEMPTS):
        directory = f"{SAVEPOINT_DIR_PREFIX}{job_id[:6]}-{new_token()}"
        if not storage.list(directory):
            return directory
    raise StorageError(
        f"Failed to create savepoint directory at {storage.url}: {_ATTEMPTS} random names were taken.",
        hint="Name another directory for the savepoint.",
    )


def resolve_checkpoint_pointer(
    checkpoint_pointer: str,
    hint: str = _NAME_ANOTHER,
    *,
    like: FileSystem | None = None,
) -> CompletedCheckpointStorageLocation:
    """The place that a pointer names: a manifest, its directory, or either with a trailing slash.

    The directory of a lineage is not a pointer, because it does not tell which checkpoint is meant.

    Args:
        checkpoint_pointer: a path, or a URL: ``file://``, of a bucket, or of HDFS.
        hint: what to do when the pointer names nothing.
        like: a storage whose options are used for a location of the same kind.

    Raises:
        InvalidConfiguration: the pointer is empty.
        CheckpointNotFound: the pointer names nothing, a directory without a manifest, or a file system that cannot be
            read here.
    """
    if not checkpoint_pointer:
        raise InvalidConfiguration("empty checkpoint pointer", hint=hint)
    try:
        place = split_location(checkpoint_pointer)
    except InvalidConfiguration as error:
        raise CheckpointNotFound(
            f"The checkpoint/savepoint path is not a valid file URI. {error.message}", hint=f"{error.hint} {hint}"
        ) from None
    if place.scheme in REMOTE_SCHEMES:
        return _in_object_store(checkpoint_pointer, hint, like)
    if not place.is_local:
        raise CheckpointNotFound(
            f"Cannot access file system for checkpoint/savepoint path '{checkpoint_pointer}': its scheme is "
            f"{place.scheme!r}.",
            hint=f"Copy it to a local or POSIX network file system, and name the copy. {hint}",
        )
    try:
        path = local_path(checkpoint_pointer)
    except InvalidConfiguration as error:
        raise _nothing(checkpoint_pointer, "file", hint) from error
    try:
        is_there = path.exists()
        file = path / METADATA_FILE_NAME if path.is_dir() else path
        is_manifest = file.is_file()
    except OSError as error:
        raise CheckpointNotFound(
            f"Cannot access checkpoint/savepoint path '{checkpoint_pointer}': {error.strerror}.",
            hint=f"Let this user enter every directory above it. {hint}",
        ) from error
    if not is_there:
        try:
            refuse_former_meaning(checkpoint_pointer, path)
        except InvalidConfiguration as error:
            raise CheckpointNotFound(error.message, hint=error.hint) from None
        raise _nothing(checkpoint_pointer, "file", hint)
    if not is_manifest:
        raise _no_manifest(checkpoint_pointer, hint)
    return CompletedCheckpointStorageLocation(open_filesystem(str(file.parent.absolute())), file.name)


def _in_object_store(pointer: str, hint: str, like: FileSystem | None) -> CompletedCheckpointStorageLocation:
    directory = open_filesystem(pointer, like=like)
    names = {entry.name for entry in directory.list("") if not entry.is_directory}
    if METADATA_FILE_NAME in names:
        return CompletedCheckpointStorageLocation(directory, METADATA_FILE_NAME)
    parent, _, name = directory.url.rpartition("/")
    # A bucket can be a directory of checkpoints; the root of an HDFS cluster cannot.
    if "://" in parent and not parent.endswith("/") and (split_location(parent).path or not parent.startswith("hdfs:")):
        above = open_filesystem(parent, like=like)
        found = [entry for entry in above.list("") if entry.name == name]
        if any(not entry.is_directory for entry in found):
            return CompletedCheckpointStorageLocation(above, name)
        if found:
            raise _no_manifest(pointer, hint)
    raise _nothing(pointer, split_location(directory.url).scheme, hint)


def _nothing(pointer: str, filesystem: str, hint: str) -> CheckpointNotFound:
    # The pointer may contain characters that cannot be printed.
    pointer = pointer.encode(errors="backslashreplace").decode()
    return CheckpointNotFound(
        f"Cannot find checkpoint or savepoint file/directory '{pointer}' on file system '{filesystem}'.", hint=hint
    )


def _no_manifest(pointer: str, hint: str) -> CheckpointNotFound:
    return CheckpointNotFound(
        f"Cannot find meta data file '_metadata' in directory '{pointer}'. Please try to load the "
        "checkpoint/savepoint directly from the metadata file instead of the directory.",
        hint=hint,
    )
