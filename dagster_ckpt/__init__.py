"""Checkpoints and savepoints, as Apache Flink understands them, for Spark jobs that Dagster runs."""

from dagster_ckpt.config.checkpoint_config import (
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
)
from dagster_ckpt.config.configuration import Configuration
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.restart import RestartStrategies
from dagster_ckpt.config.state_backend import (
    CustomStateBackend,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
)
from dagster_ckpt.orchestration.definitions import build_checkpoint_definitions
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.storages import (
    CustomCheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    configured_storage,
)
from dagster_ckpt.orchestration.streaming_asset import (
    CheckpointedStreamingAsset,
    checkpointed_streaming_asset,
)
from dagster_ckpt.spark import CustomSink, ForeachBatchSink, TransactionalFileSink, sink_to

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
