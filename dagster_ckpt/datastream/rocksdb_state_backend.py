"""RocksDB in PyFlink's spelling: settings made step by step here become one value for the job."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt import config
from dagster_ckpt.config import Configuration, PredefinedOptions
from dagster_ckpt.datastream.checkpoint_storage import CheckpointStorage
from dagster_ckpt.datastream.enums import member, warn
from dagster_ckpt.datastream.state_backend import (
    CustomStateBackend,
    FsStateBackend,
    HashMapStateBackend,
    StateBackend,
)

__all__ = ["EmbeddedRocksDBStateBackend", "RocksDBStateBackend", "configured_backend"]

_NO_FILTER = (
    "A compaction filter cannot be switched in Spark: state with a time to live is that of transformWithState, which "
    "removes what is over by itself."
)


class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on the executors' disks: Spark's ``RocksDBStateStoreProvider``.

    Args:
        enable_incremental_checkpointing: each batch stores its changes instead of a snapshot. As in Flink the
            configuration decides by default, and the last default is off. Checkpoints share unchanged files either way.
    """

    _backend: config.EmbeddedRocksDBStateBackend

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        incremental = bool(enable_incremental_checkpointing)
        super().__init__(config.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=incremental))
        self._is_open = enable_incremental_checkpointing is None

    def configured(self, configuration: Configuration) -> config.StateBackend:
        if not self._is_open or configuration.incremental is None:
            return self._backend
        return replace(self._backend, enable_incremental_checkpointing=configuration.incremental)

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether a batch stores only its changes, as set on this backend."""
        return self._backend.enable_incremental_checkpointing

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Set a profile of RocksDB options. A run warns of the options that Spark cannot set."""
        self._backend = replace(self._backend, predefined_options=member(PredefinedOptions, options))

    def get_predefined_options(self) -> PredefinedOptions:
        """The profile."""
        return self._backend.predefined_options

    def set_options(self, options_factory_class_name: str) -> None:
        """Set the factory of further options, which are applied on top of the profile.

        Args:
            options_factory_class_name: the import path, ``module:name``, of a Python callable that returns Spark's
                RocksDB options by name. Flink's factory is a Java class, which Spark cannot use.

        Raises:
            InvalidConfiguration: the name is not an import path.
        """
        self._backend = replace(self._backend, options=options_factory_class_name)

    def get_options(self) -> str | None:
        """The import path of the factory of further options."""
        options = self._backend.options
        return options if isinstance(options, str) else None

    def set_db_storage_paths(self, *paths: str | None) -> None:
        """Set the local directories of RocksDB's working files; ``None`` for Spark's own.

        The directories become ``spark.local.dir``, which is fixed when Spark starts.
        """
        given = [path for path in paths if path is not None]
        self._backend = replace(self._backend, db_storage_paths=given or None)

    def get_db_storage_paths(self) -> list[str] | None:
        """The directories, ``None`` if none were set."""
        paths = self._backend.db_storage_paths
        return None if paths is None else list(paths)

    def set_number_of_transfering_threads(self, number_of_transfering_threads: int) -> None:
        """Has no effect: a run warns that Spark has no such setting."""
        self._backend = replace(self._backend, number_of_transfer_threads=number_of_transfering_threads)

    def get_number_of_transfering_threads(self) -> int:
        """The set value; by default 1, as Spark moves the files of a state store one after another."""
        return self._backend.number_of_transfer_threads or 1

    def set_number_of_transfer_threads(self, number_of_transfer_threads: int) -> None:
        """The later name of :meth:`set_number_of_transfering_threads`."""
        self.set_number_of_transfering_threads(number_of_transfer_threads)

    def get_number_of_transfer_threads(self) -> int:
        """The later name of :meth:`get_number_of_transfering_threads`."""
        return self.get_number_of_transfering_threads()


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """The older name, which also sets where checkpoints go.

    Args:
        checkpoint_data_uri: directory for checkpoints, unless ``checkpoint_stream_backend`` is given.
        enable_incremental_checkpointing: each batch stores its changes instead of a snapshot; off by default.
        checkpoint_stream_backend: a ``MemoryStateBackend`` or ``FsStateBackend``, whose storage is used.

    Raises:
        ValueError: neither sets where checkpoints go.
    """

    def __init__(
        self,
        checkpoint_data_uri: str | None = None,
        enable_incremental_checkpointing: bool | None = None,
        checkpoint_stream_backend: StateBackend | None = None,
    ) -> None:
        super().__init__(enable_incremental_checkpointing)
        if checkpoint_stream_backend is None:
            if checkpoint_data_uri is None:
                raise ValueError("checkpoint_data_uri and checkpoint_stream_backend must not both be None")
            checkpoint_stream_backend = FsStateBackend(checkpoint_data_uri)
        if checkpoint_stream_backend.checkpoint_storage is None:
            raise ValueError(f"{type(checkpoint_stream_backend).__name__} does not say where checkpoints go")
        self._checkpoint_backend = checkpoint_stream_backend
        self._ttl_filter = True

    @property
    def checkpoint_storage(self) -> CheckpointStorage | None:
        return self._checkpoint_backend.checkpoint_storage

    def get_checkpoint_backend(self) -> StateBackend:
        """The state backend whose storage is used."""
        return self._checkpoint_backend

    def enable_ttl_compaction_filter(self) -> None:
        """Has no effect, and warns."""
        warn(_NO_FILTER)
        self._ttl_filter = True

    def disable_ttl_compaction_filter(self) -> None:
        """Has no effect, and warns."""
        warn(_NO_FILTER)
        self._ttl_filter = False

    def is_ttl_compaction_filter_enabled(self) -> bool:
        """The last set value; by default ``True``, as in Flink."""
        return self._ttl_filter


def configured_backend(configuration: Configuration) -> StateBackend | None:
    """The state backend that Flink's string keys describe, by the rule of ``config.state_backend``.

    Raises:
        InvalidConfiguration: the type is an import path that leads to no state backend.
    """
    found = config.configured_backend(configuration)
    match configuration.state_backend:
        case _ if found is None:
            return None
        case None | "rocksdb":
            return EmbeddedRocksDBStateBackend()
        case "hashmap":
            return HashMapStateBackend()
        case _:
            return CustomStateBackend(found)
