"""State backends in PyFlink's spelling: a state backend of this package; the older names include a storage.

Up to Flink 1.12 a state backend also set where checkpoints go. The older names (``MemoryStateBackend``,
``FsStateBackend``, ``RocksDBStateBackend``) still do, and win over a storage that is set elsewhere.
"""

from __future__ import annotations

from dagster_ckpt import config
from dagster_ckpt.config import Configuration
from dagster_ckpt.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from dagster_ckpt.datastream.enums import warn

__all__ = ["CustomStateBackend", "FsStateBackend", "HashMapStateBackend", "MemoryStateBackend", "StateBackend"]

_ALWAYS_ASYNCHRONOUS = (
    "using_asynchronous_snapshots=False changes nothing: a checkpoint is captured beside the query, which never waits "
    "for it."
)


class StateBackend:
    """How a query keeps its state: configuration only, which can be pickled and used by several threads."""

    def __init__(self, backend: config.StateBackend, storage: CheckpointStorage | None = None) -> None:
        self._backend = backend
        self._storage = storage

    def to_config(self) -> config.StateBackend:
        """The state backend that a job takes."""
        return self._backend

    @property
    def checkpoint_storage(self) -> CheckpointStorage | None:
        """Where checkpoints go, if this backend sets that; ``None`` for the names since Flink 1.13."""
        return self._storage

    def configured(self, configuration: Configuration) -> config.StateBackend:
        """The state backend that a job takes, with unset values filled in from Flink's string keys."""
        del configuration
        return self.to_config()


class HashMapStateBackend(StateBackend):
    """State in the heap of the executors: Spark's ``HDFSBackedStateStoreProvider``."""

    def __init__(self) -> None:
        super().__init__(config.HashMapStateBackend())


class MemoryStateBackend(StateBackend):
    """State in the heap of the executors, small checkpoints in the driver's memory.

    Args:
        checkpoint_path: a directory that keeps ``_metadata``, and with it the whole checkpoint, as well.
        savepoint_path: for savepoints that are asked for without a directory.
        max_state_size: bytes that one file of Spark's state may have; 5 MiB by default.
        using_asynchronous_snapshots: ``False`` is warned about, and changes nothing.
    """

    DEFAULT_MAX_STATE_SIZE = JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE

    _storage: JobManagerCheckpointStorage

    def __init__(
        self,
        checkpoint_path: str | None = None,
        savepoint_path: str | None = None,
        max_state_size: int | None = None,
        using_asynchronous_snapshots: bool | None = None,
    ) -> None:
        super().__init__(
            config.HashMapStateBackend(),
            JobManagerCheckpointStorage(checkpoint_path, max_state_size, savepoint_path=savepoint_path),
        )
        self._asynchronous = using_asynchronous_snapshots is not False
        if not self._asynchronous:
            warn(_ALWAYS_ASYNCHRONOUS)

    def get_max_state_size(self) -> int:
        """Bytes that one file of Spark's state may have."""
        return self._storage.get_max_state_size()

    def is_using_asynchronous_snapshots(self) -> bool:
        """What the constructor was given, ``True`` by default."""
        return self._asynchronous

    def __str__(self) -> str:
        return f"MemoryStateBackend (data in heap memory / {self._storage})"


class FsStateBackend(StateBackend):
    """State in the heap of the executors, checkpoints as files below a directory.

    Args:
        checkpoint_directory_uri: a path or a ``file://`` URL.
        default_savepoint_directory_uri: for savepoints that are asked for without a directory.
        file_state_size_threshold: bytes up to which a file is kept in ``_metadata``; 20 KiB by default or for -1.
        write_buffer_size: bytes copied at a time; 4 KiB by default or for -1, and never less than the threshold.
        using_asynchronous_snapshots: ``False`` is warned about, and changes nothing.

    Raises:
        ValueError: the directory is missing, or a size is out of range.
    """

    _storage: FileSystemCheckpointStorage

    def __init__(
        self,
        checkpoint_directory_uri: str | None = None,
        default_savepoint_directory_uri: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int | None = None,
        using_asynchronous_snapshots: bool | None = None,
    ) -> None:
        if checkpoint_directory_uri is None:
            raise ValueError("checkpoint_directory_uri must not be None")
        super().__init__(
            config.HashMapStateBackend(),
            FileSystemCheckpointStorage(
                checkpoint_directory_uri,
                file_state_size_threshold,
                -1 if write_buffer_size is None else write_buffer_size,
                savepoint_path=default_savepoint_directory_uri,
            ),
        )
        self._asynchronous = using_asynchronous_snapshots is not False
        if not self._asynchronous:
            warn(_ALWAYS_ASYNCHRONOUS)

    def get_checkpoint_path(self) -> str:
        """The directory of all jobs' directories."""
        return self._storage.get_checkpoint_path()

    def get_min_file_size_threshold(self) -> int:
        """Bytes up to which a file is kept in ``_metadata``."""
        return self._storage.get_min_file_size_threshold()

    def get_write_buffer_size(self) -> int:
        """Bytes copied at a time, as configured."""
        return self._storage.get_write_buffer_size()

    def is_using_asynchronous_snapshots(self) -> bool:
        """What the constructor was given, ``True`` by default."""
        return self._asynchronous

    def __str__(self) -> str:
        return f"FsStateBackend (data in heap memory / {self._storage})"


class CustomStateBackend(StateBackend):
    """Any state backend of this package, such as the user's own state store provider.

    .. code-block:: python

        CustomStateBackend(dagster_ckpt.CustomStateBackend("com.example.MyStateStoreProvider", layout="rocksdb"))

    Raises:
        TypeError: ``backend`` is not a state backend of this package.
    """

    def __init__(self, backend: config.StateBackend) -> None:
        if not isinstance(backend, config.StateBackend):
            raise TypeError(
                f"{backend!r} is no state backend: CustomStateBackend wraps dagster_ckpt.CustomStateBackend, or any "
                "other of dagster_ckpt.config."
            )
        super().__init__(backend)
