"""PyFlink's names, over the objects of this package and with Flink's defaults.

Whatever a name does in Flink, here it has an effect on the Spark job, a :class:`FlinkDifference` warning that says what
Spark has in its place, or an error that says why.
"""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.config import Configuration, PredefinedOptions
    from dagster_ckpt.datastream.checkpoint_config import CheckpointConfig
    from dagster_ckpt.datastream.checkpoint_storage import (
        CheckpointStorage,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
    )
    from dagster_ckpt.datastream.enums import (
        CheckpointingMode,
        ExternalizedCheckpointCleanup,
        FlinkDifference,
        TimeCharacteristic,
    )
    from dagster_ckpt.datastream.environment import StreamExecutionEnvironment
    from dagster_ckpt.datastream.execution import JobExecutionResult, QueryResult
    from dagster_ckpt.datastream.execution_config import ExecutionConfig
    from dagster_ckpt.datastream.restart import RestartStrategies
    from dagster_ckpt.datastream.rocksdb_state_backend import EmbeddedRocksDBStateBackend, RocksDBStateBackend
    from dagster_ckpt.datastream.state_backend import (
        CustomStateBackend,
        FsStateBackend,
        HashMapStateBackend,
        MemoryStateBackend,
        StateBackend,
    )
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CheckpointConfig": "dagster_ckpt.datastream.checkpoint_config",
            "CheckpointStorage": "dagster_ckpt.datastream.checkpoint_storage",
            "CheckpointingMode": "dagster_ckpt.datastream.enums",
            "Configuration": "dagster_ckpt.config",
            "CustomCheckpointStorage": "dagster_ckpt.datastream.checkpoint_storage",
            "CustomStateBackend": "dagster_ckpt.datastream.state_backend",
            "EmbeddedRocksDBStateBackend": "dagster_ckpt.datastream.rocksdb_state_backend",
            "ExecutionConfig": "dagster_ckpt.datastream.execution_config",
            "ExternalizedCheckpointCleanup": "dagster_ckpt.datastream.enums",
            "FileSystemCheckpointStorage": "dagster_ckpt.datastream.checkpoint_storage",
            "FlinkDifference": "dagster_ckpt.datastream.enums",
            "FsStateBackend": "dagster_ckpt.datastream.state_backend",
            "HashMapStateBackend": "dagster_ckpt.datastream.state_backend",
            "JobExecutionResult": "dagster_ckpt.datastream.execution",
            "JobManagerCheckpointStorage": "dagster_ckpt.datastream.checkpoint_storage",
            "MemoryStateBackend": "dagster_ckpt.datastream.state_backend",
            "PredefinedOptions": "dagster_ckpt.config",
            "QueryResult": "dagster_ckpt.datastream.execution",
            "RestartStrategies": "dagster_ckpt.datastream.restart",
            "RocksDBStateBackend": "dagster_ckpt.datastream.rocksdb_state_backend",
            "StateBackend": "dagster_ckpt.datastream.state_backend",
            "StreamExecutionEnvironment": "dagster_ckpt.datastream.environment",
            "TimeCharacteristic": "dagster_ckpt.datastream.enums",
        },
    )


__all__ = [
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "Configuration",
    "CustomCheckpointStorage",
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "ExecutionConfig",
    "ExternalizedCheckpointCleanup",
    "FileSystemCheckpointStorage",
    "FlinkDifference",
    "FsStateBackend",
    "HashMapStateBackend",
    "JobExecutionResult",
    "JobManagerCheckpointStorage",
    "MemoryStateBackend",
    "PredefinedOptions",
    "QueryResult",
    "RestartStrategies",
    "RocksDBStateBackend",
    "StateBackend",
    "StreamExecutionEnvironment",
    "TimeCharacteristic",
]
