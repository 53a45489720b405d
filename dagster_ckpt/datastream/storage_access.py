"""Access to a job's checkpoint storage under Flink's names: locations, pointers and references.

A *pointer* comes from a user: the path of a ``_metadata`` file or of its directory. A *reference* goes from the
coordinator to a writer: it is empty for an ordinary checkpoint, whose place follows from its id, and an encoded path
for a savepoint. (Flink: ``CheckpointStorageAccess``, ``AbstractFsCheckpointStorageAccess``.)
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint import (
    CompletedCheckpointStorageLocation,
    layout,
    new_savepoint_directory,
    resolve_checkpoint_pointer,
    savepoint_storage,
)
from dagster_ckpt.errors import InvalidConfiguration, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "REFERENCE_MAGIC_NUMBER",
    "CheckpointStorageAccess",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
    "CompletedCheckpointStorageLocation",
    "create_checkpoint_directory",
    "decode_path_from_reference",
    "encode_path_as_reference",
    "get_checkpoint_directory_for_job",
    "new_savepoint_directory",
    "resolve_checkpoint_pointer",
    "savepoint_storage",
]

REFERENCE_MAGIC_NUMBER = bytes((0x05, 0x5F, 0x3F, 0x18))


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocationReference:
    """A place, encoded in bytes. Without bytes, the default place: the place of a checkpoint follows from its id."""

    reference_bytes: bytes = b""

    @property
    def is_default_reference(self) -> bool:
        """Whether the place follows from the checkpoint's id."""
        return not self.reference_bytes

    def __str__(self) -> str:
        return self.reference_bytes.hex() or "(default)"


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocation:
    """The place for a new checkpoint or savepoint.

    Attributes:
        filesystem: the storage.
        checkpoint_directory: for files of this checkpoint alone, in ``filesystem``.
        shared_state_directory: for files that several checkpoints share; a savepoint has all files in one directory.
        task_owned_state_directory: for files that are never deleted with a checkpoint.
        reference: the place, encoded for writers.
    """

    filesystem: FileSystem
    checkpoint_directory: str
    shared_state_directory: str
    task_owned_state_directory: str
    reference: CheckpointStorageLocationReference

    @property
    def metadata_file(self) -> str:
        """Path, in ``filesystem``, of the ``_metadata`` that will complete the checkpoint."""
        return f"{self.checkpoint_directory}/{layout.METADATA_FILE_NAME}"


class CheckpointStorageAccess:
    """The places of one lineage of one job.

    Args:
        filesystem: the checkpoint storage.
        job_name: the job's stable name.
        job_id: the lineage, 32 hex digits.
        default_savepoint_directory: for savepoints that are asked for without a directory.
    """

    def __init__(
        self, filesystem: FileSystem, job_name: str, job_id: str, default_savepoint_directory: str | None = None
    ) -> None:
        if not layout.is_job_id(job_id):
            raise _no_job_id(job_id)
        self._filesystem = filesystem
        self._job_name = layout.validate_job_name(job_name)
        self._job_id = job_id
        self._default_savepoint_directory = default_savepoint_directory

    @property
    def supports_highly_available_storage(self) -> bool:
        """Whether checkpoints outlive the driver."""
        return self._filesystem.is_durable

    @property
    def has_default_savepoint_location(self) -> bool:
        """Whether a savepoint can be asked for without a directory."""
        return self._default_savepoint_directory is not None

    def get_default_savepoint_directory(self) -> str | None:
        """The directory for savepoints that are asked for without a directory; ``None`` when it is not configured."""
        return self._default_savepoint_directory

    def resolve_checkpoint(self, checkpoint_pointer: str) -> CompletedCheckpointStorageLocation:
        """The location that a pointer names; raises as :func:`resolve_checkpoint_pointer`."""
        return resolve_checkpoint_pointer(checkpoint_pointer, like=self._filesystem)

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """The place of the checkpoint with this id. The first file in a directory creates the directory.

        Raises:
            InvalidConfiguration: the id is less than 1.
            PublishConflict: a checkpoint with this id is already complete.
        """
        if checkpoint_id < 1:
            raise InvalidConfiguration(
                f"{checkpoint_id} is no checkpoint id: ids start at 1.", hint="Take the greatest issued id plus 1."
            )
        directory = layout.checkpoint_directory(self._job_name, self._job_id, checkpoint_id)
        if any(entry.name == layout.METADATA_FILE_NAME for entry in self._filesystem.list(directory)):
            raise PublishConflict(
                f"Target file {self._filesystem.url}/{directory}/{layout.METADATA_FILE_NAME} already exists."
            )
        base = f"{self._job_name}/{self._job_id}"
        return CheckpointStorageLocation(
            self._filesystem,
            directory,
            f"{base}/{layout.CHECKPOINT_SHARED_STATE_DIR}",
            f"{self._job_name}/{layout.CHECKPOINT_TASK_OWNED_STATE_DIR}",
            CheckpointStorageLocationReference(),
        )

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None = None
    ) -> CheckpointStorageLocation:
        """A new place for a savepoint, below the given directory or else the default directory.

        Args:
            checkpoint_id: of the savepoint; not part of its place.
            external_location_pointer: the directory, ``None`` for the default.

        Raises:
            InvalidConfiguration: there is neither.
            StorageError: no free name was found.
        """
        del checkpoint_id
        storage = savepoint_storage(external_location_pointer, self._default_savepoint_directory, like=self._filesystem)
        directory = new_savepoint_directory(storage, self._job_id)
        reference = encode_path_as_reference(f"{storage.url}/{directory}")
        return CheckpointStorageLocation(storage, directory, directory, directory, reference)


def get_checkpoint_directory_for_job(base_checkpoint_path: str | None, job_name: str, job_id: str) -> str:
    """The directory of the ``chk-N`` of a lineage; unlike in Flink it contains the job's name.

    Raises:
        InvalidConfiguration: no base directory is set, or a name is not a possible directory name.
    """
    if base_checkpoint_path is None:
        raise InvalidConfiguration(
            "The checkpoint storage has no base directory for checkpoints.",
            hint="Set checkpoint_path of the storage.",
        )
    if not layout.is_job_id(job_id):
        raise _no_job_id(job_id)
    return f"{base_checkpoint_path.rstrip('/')}/{layout.validate_job_name(job_name)}/{job_id}"


def create_checkpoint_directory(base_directory: str, checkpoint_id: int) -> str:
    """The path for files of one checkpoint alone, below the directory of its lineage."""
    return f"{base_directory.rstrip('/')}/{layout.CHECKPOINT_DIR_PREFIX}{checkpoint_id}"


def encode_path_as_reference(path: str) -> CheckpointStorageLocationReference:
    """A path as bytes: a magic number, then the path in UTF-8.

    Raises:
        InvalidConfiguration: the path is empty, or is not text.
    """
    hint = "Name the directory of a savepoint."
    if not path:
        raise InvalidConfiguration("An empty path cannot be a reference.", hint=hint)
    try:
        return CheckpointStorageLocationReference(REFERENCE_MAGIC_NUMBER + path.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidConfiguration(f"{path!r} cannot be a reference: it is not valid UTF-8.", hint=hint) from error


def decode_path_from_reference(reference: CheckpointStorageLocationReference) -> str:
    """The path that :func:`encode_path_as_reference` encoded.

    Raises:
        InvalidConfiguration: the bytes are not an encoded path.
    """
    data = reference.reference_bytes
    hint = "Give it what encode_path_as_reference made of a path."
    if reference.is_default_reference:
        raise InvalidConfiguration(
            "Cannot decode default reference",
            hint="It stands for the place that follows from a checkpoint's id: ask initialize_location_for_checkpoint.",
        )
    if len(data) <= len(REFERENCE_MAGIC_NUMBER):
        raise InvalidConfiguration("Reference too short.", hint=hint)
    if not data.startswith(REFERENCE_MAGIC_NUMBER):
        raise InvalidConfiguration("Reference starts with the wrong magic number", hint=hint)
    try:
        return data.removeprefix(REFERENCE_MAGIC_NUMBER).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidConfiguration("Reference cannot be decoded to a path", hint=hint) from error


def _no_job_id(job_id: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{job_id!r} is no job id: 32 hex digits.",
        hint="It is the id, without dashes, of the run that began the lineage; `dagster-ckpt list` shows it.",
    )
