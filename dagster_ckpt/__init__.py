"""Checkpoints and savepoints, as Apache Flink understands them, for Spark jobs that Dagster runs."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names
from dagster_ckpt.version import __version__ as __version__

if TYPE_CHECKING:
    from dagster_ckpt.config import (
        CheckpointConfig,
        CheckpointingMode,
        Configuration,
        CustomStateBackend,
        EmbeddedRocksDBStateBackend,
        ExternalizedCheckpointCleanup,
        HashMapStateBackend,
        LiveLocationPlace,
        PredefinedOptions,
        RestartStrategies,
    )
    from dagster_ckpt.orchestration import (
        CheckpointedStreamingAsset,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
        SparkSessionResource,
        build_checkpoint_definitions,
        checkpointed_streaming_asset,
        configured_storage,
    )
    from dagster_ckpt.spark import CustomSink, ForeachBatchSink, TransactionalFileSink, sink_to
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "CheckpointConfig",
    "CheckpointedStreamingAsset",
    "CheckpointingMode",
    "Configuration",
    "CustomCheckpointStorage",
    "CustomSink",
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointCleanup",
    "FileSystemCheckpointStorage",
    "ForeachBatchSink",
    "HashMapStateBackend",
    "JobManagerCheckpointStorage",
    "LiveLocationPlace",
    "PredefinedOptions",
    "RestartStrategies",
    "SparkSessionResource",
    "TransactionalFileSink",
    "build_checkpoint_definitions",
    "checkpointed_streaming_asset",
    "configured_storage",
    "sink_to",
]
