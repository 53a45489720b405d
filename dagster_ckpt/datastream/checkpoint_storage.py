"""Checkpoint storages in PyFlink's spelling, each around a Dagster resource."""

from __future__ import annotations

from dagster_ckpt import orchestration
from dagster_ckpt.checkpoint import MAX_INLINE_BYTES
from dagster_ckpt.config import Configuration

__all__ = [
    "CheckpointStorage",
    "CustomCheckpointStorage",
    "FileSystemCheckpointStorage",
    "JobManagerCheckpointStorage",
    "configured_storage",
]


class CheckpointStorage:
    """Where checkpoints are kept: configuration only, which can be pickled and used by several threads.

    Args:
        resource: the storage as a Dagster resource.
    """

    def __init__(self, resource: orchestration.CheckpointStorage) -> None:
        self._resource = resource

    @property
    def resource(self) -> orchestration.CheckpointStorage:
        """The same storage as a Dagster resource, for ``build_checkpoint_definitions(resources=...)``."""
        return self._resource

    def get_savepoint_path(self) -> str | None:
        """The directory for savepoints that are asked for without a directory."""
        return self._resource.savepoint_path

    def configured(self, configuration: Configuration) -> orchestration.CheckpointStorage:
        """The resource, with its unset values filled in from Flink's string keys."""
        return self._filled(savepoint_path=configuration.savepoints_directory)

    def _filled(self, **values: object) -> orchestration.CheckpointStorage:
        """The resource, with ``values`` for its unset values (``None`` and -1 mean unset)."""
        own = {name: getattr(self._resource, name) for name in type(self._resource).model_fields}
        missing = {name: value for name, value in values.items() if value is not None and own[name] in (None, -1)}
        return type(self._resource)(**{**own, **missing}) if missing else self._resource

    def __str__(self) -> str:
        return f"{type(self).__name__} ({type(self._resource).__name__})"


class JobManagerCheckpointStorage(CheckpointStorage):
    """Small checkpoints, whole in one ``_metadata`` each: in the driver's memory, or below a directory.

    Args:
        checkpoint_path: a path or a ``file://`` URL; ``None`` keeps checkpoints in memory only.
        max_state_size: bytes that one file of Spark's state may have; 5 MiB by default.
        savepoint_path: for savepoints that are asked for without a directory.
    """

    DEFAULT_MAX_STATE_SIZE = orchestration.DEFAULT_MAX_STATE_SIZE

    _resource: orchestration.JobManagerCheckpointStorage

    def __init__(
        self,
        checkpoint_path: str | None = None,
        max_state_size: int | None = None,
        *,
        savepoint_path: str | None = None,
    ) -> None:
        super().__init__(
            orchestration.JobManagerCheckpointStorage(
                checkpoint_path=_normalised(checkpoint_path),
                max_state_size=self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size,
                savepoint_path=_normalised(savepoint_path),
            )
        )

    def get_checkpoint_path(self) -> str | None:
        """The directory of all jobs' directories; ``None`` for the driver's memory."""
        return self._resource.checkpoint_path

    def get_max_state_size(self) -> int:
        """Bytes that one file of Spark's state may have."""
        return self._resource.max_state_size

    def configured(self, configuration: Configuration) -> orchestration.CheckpointStorage:
        return self._filled(
            checkpoint_path=configuration.checkpoints_directory, savepoint_path=configuration.savepoints_directory
        )

    def __str__(self) -> str:
        where = f", metadata in {self.get_checkpoint_path()}" if self.get_checkpoint_path() else ""
        return (
            f"JobManagerCheckpointStorage (checkpoints to JobManager{where}) ( maxStateSize: "
            f"{self.get_max_state_size()})"
        )


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints as files below one directory, a subdirectory per job.

    Args:
        checkpoint_path: a path, a ``file://`` URL or a bucket's URL. Unlike in Flink a path needs no scheme.
        file_state_size_threshold: bytes up to which a file is kept in ``_metadata``; 20 KiB by default or for -1.
        write_buffer_size: bytes copied at a time; 4 KiB for -1, and never less than the threshold.
        savepoint_path: for savepoints that are asked for without a directory.

    Raises:
        ValueError: the path is missing, or a size is out of range.
    """

    MAX_FILE_STATE_THRESHOLD = MAX_INLINE_BYTES

    _resource: orchestration.FileSystemCheckpointStorage

    def __init__(
        self,
        checkpoint_path: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
        *,
        savepoint_path: str | None = None,
    ) -> None:
        path = _normalised(checkpoint_path)
        if path is None:
            raise ValueError("checkpoint_path must not be None")
        super().__init__(
            orchestration.FileSystemCheckpointStorage(
                checkpoint_path=path,
                file_state_size_threshold=-1 if file_state_size_threshold is None else file_state_size_threshold,
                write_buffer_size=write_buffer_size,
                savepoint_path=_normalised(savepoint_path),
            )
        )

    def get_checkpoint_path(self) -> str:
        """The directory of all jobs' directories."""
        return self._resource.checkpoint_path

    def get_min_file_size_threshold(self) -> int:
        """Bytes up to which a file is kept in ``_metadata``."""
        return self._resource.inline_threshold

    def get_write_buffer_size(self) -> int:
        """Bytes copied at a time, as configured."""
        configured = self._resource.write_buffer_size
        return orchestration.DEFAULT_WRITE_BUFFER_SIZE if configured == -1 else configured

    def configured(self, configuration: Configuration) -> orchestration.CheckpointStorage:
        return self._filled(
            file_state_size_threshold=configuration.inline_threshold,
            write_buffer_size=configuration.write_buffer_size,
            savepoint_path=configuration.savepoints_directory,
        )

    def __str__(self) -> str:
        return f"FileSystemCheckpointStorage (checkpoints: {self.get_checkpoint_path()})"


class CustomCheckpointStorage(CheckpointStorage):
    """Any storage resource: the user's own, or a resource with options that PyFlink has no argument for.

    .. code-block:: python

        CustomCheckpointStorage(dagster_ckpt.CustomCheckpointStorage(factory="my_company.storage:VaultFileSystem"))
        CustomCheckpointStorage(dagster_ckpt.FileSystemCheckpointStorage(checkpoint_path=..., working_directory=...))

    Raises:
        TypeError: ``resource`` is not a storage resource.
    """

    def __init__(self, resource: orchestration.CheckpointStorage) -> None:
        if not isinstance(resource, orchestration.CheckpointStorage):
            raise TypeError(
                f"{resource!r} is no storage resource: CustomCheckpointStorage wraps dagster_ckpt's "
                "CustomCheckpointStorage, or any other storage of dagster_ckpt.orchestration."
            )
        super().__init__(resource)


def configured_storage(configuration: Configuration) -> CheckpointStorage:
    """The storage that Flink's string keys describe, by the rule of ``orchestration.configured_storage``.

    Raises:
        InvalidConfiguration: ``filesystem`` is named without a directory.
    """
    match orchestration.configured_storage(configuration):
        case orchestration.JobManagerCheckpointStorage() as found:
            return JobManagerCheckpointStorage(found.checkpoint_path)
        case orchestration.FileSystemCheckpointStorage() as found:
            return FileSystemCheckpointStorage(found.checkpoint_path)
        case found:
            return CustomCheckpointStorage(found)


def _normalised(path: str | None) -> str | None:
    """A path as Flink writes it: without a slash at its end, except for the root."""
    stripped = None if path is None else path.rstrip("/")
    return path if not stripped or stripped.endswith(":") else stripped
