"""PyFlink's names, over the objects of this package and with Flink's defaults.

Whatever a name does in Flink, here it has an effect on the Spark job, a :class:`FlinkDifference` warning that says what
Spark has in its place, or an error that says why.
"""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.config import PredefinedOptions
    from dagster_ckpt.datastream.checkpoint_config import CheckpointConfig
    from dagster_ckpt.datastream.checkpoint_storage import (
        CheckpointStorage,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
    )
    from dagster_ckpt.datastream.common import Configuration, Duration, ExecutionConfig
    from dagster_ckpt.datastream.enums import (
        CheckpointingMode,
        ExternalizedCheckpointCleanup,
        ExternalizedCheckpointRetention,
        FlinkDifference,
        TimeCharacteristic,
    )
    from dagster_ckpt.datastream.environment import StreamExecutionEnvironment
    from dagster_ckpt.datastream.execution import JobExecutionResult, QueryResult
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
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "Configuration",
    "CustomCheckpointStorage",
    "CustomStateBackend",
    "Duration",
    "EmbeddedRocksDBStateBackend",
    "ExecutionConfig",
    "ExternalizedCheckpointCleanup",
    "ExternalizedCheckpointRetention",
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
