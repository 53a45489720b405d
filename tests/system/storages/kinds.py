"""Every storage and every state backend there is, by a name that a command line can say."""

from __future__ import annotations

from dagster_ckpt import (
    CustomCheckpointStorage,
    CustomStateBackend,
    EmbeddedRocksDBStateBackend,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    PredefinedOptions,
)
from dagster_ckpt.config.state_backend import ROCKSDB_PROVIDER, StateBackend
from dagster_ckpt.orchestration.storages import CheckpointStorage
from tests.system.cluster.layout import Shared

BACKENDS: dict[str, StateBackend] = {
    "hashmap": HashMapStateBackend(),
    "rocksdb-full": EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False),
    "rocksdb-incremental": EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True),
    "rocksdb-flash": EmbeddedRocksDBStateBackend(predefined_options=PredefinedOptions.FLASH_SSD_OPTIMIZED),
    "custom": CustomStateBackend(ROCKSDB_PROVIDER, {"spark.sql.streaming.stateStore.rocksdb.blockSizeKB": "8"}),
}


def storage(kind: str, shared: Shared) -> CheckpointStorage:
    """A storage of the checkpoints of a job in ``shared``."""
    path, live = str(shared.storage), str(shared.live)
    match kind:
        case "filesystem":
            return FileSystemCheckpointStorage(checkpoint_path=path)
        case "jobmanager":
            return JobManagerCheckpointStorage(checkpoint_path=path)
        case "memory":
            return JobManagerCheckpointStorage(working_directory=live)
        case "custom":
            return CustomCheckpointStorage(factory="tests.helpers.orchestration.vault:Vault", options={"root": path})
        case _:
            raise ValueError(kind)
