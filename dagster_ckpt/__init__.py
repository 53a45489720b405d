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
        CheckpointedStreamComponent,
        CheckpointedStreamingAsset,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobFailed,
        JobManagerCheckpointStorage,
        SparkSessionResource,
        SparkSubmitResource,
        build_checkpoint_definitions,
        build_job_report,
        build_restore_drill,
        build_savepoint_schedule,
        checkpointed_streaming_asset,
        configured_storage,
        on_job_failed,
        to_email,
        to_slack,
    )
    from dagster_ckpt.spark import (
        CustomSink,
        DeltaSink,
        ForeachBatchSink,
        IcebergSink,
        PostgresSink,
        TransactionalFileSink,
        compare_rows,
        read_state,
        read_state_metadata,
        sink_to,
        with_kafka_headers,
    )
    from dagster_ckpt.standalone import restore_drill, run
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "CheckpointConfig",
    "CheckpointedStreamComponent",
    "CheckpointedStreamingAsset",
    "CheckpointingMode",
    "Configuration",
    "CustomCheckpointStorage",
    "CustomSink",
    "CustomStateBackend",
    "DeltaSink",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointCleanup",
    "FileSystemCheckpointStorage",
    "ForeachBatchSink",
    "HashMapStateBackend",
    "IcebergSink",
    "JobFailed",
    "JobManagerCheckpointStorage",
    "LiveLocationPlace",
    "PostgresSink",
    "PredefinedOptions",
    "RestartStrategies",
    "SparkSessionResource",
    "SparkSubmitResource",
    "TransactionalFileSink",
    "build_checkpoint_definitions",
    "build_job_report",
    "build_restore_drill",
    "build_savepoint_schedule",
    "checkpointed_streaming_asset",
    "compare_rows",
    "configured_storage",
    "on_job_failed",
    "read_state",
    "read_state_metadata",
    "restore_drill",
    "run",
    "sink_to",
    "to_email",
    "to_slack",
    "with_kafka_headers",
]
