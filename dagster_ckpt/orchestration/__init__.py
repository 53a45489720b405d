"""Jobs under Dagster: assets, resources, and the sensor that resumes what has failed."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.attending import REFUSED, SparkSubmitResource, own_spark
    from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
    from dagster_ckpt.orchestration.component import CheckpointedStreamComponent
    from dagster_ckpt.orchestration.definitions import build_checkpoint_definitions
    from dagster_ckpt.orchestration.names import (
        ATTEMPT_TAG,
        JOB_TAG,
        PARENT_RUN_TAG,
        RESTORE_TAG,
        ROLLBACK_TAG,
        VERDICT_TAG,
        rollback_job,
    )
    from dagster_ckpt.orchestration.proof import build_job_report, build_restore_drill, run_drill
    from dagster_ckpt.orchestration.query_parameters import told_problems
    from dagster_ckpt.orchestration.resources import SparkSessionResource
    from dagster_ckpt.orchestration.run_settings import going_on
    from dagster_ckpt.orchestration.savepoints import build_savepoint_schedule
    from dagster_ckpt.orchestration.sensors import JobFailed, on_job_failed, to_email, to_slack
    from dagster_ckpt.orchestration.storages import (
        DEFAULT_MAX_STATE_SIZE,
        DEFAULT_WRITE_BUFFER_SIZE,
        CheckpointStorage,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
        configured_storage,
    )
    from dagster_ckpt.orchestration.streaming_asset import StreamingRunConfig, checkpointed_streaming_asset
    from dagster_ckpt.orchestration.streaming_run import streaming_job
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "ATTEMPT_TAG",
    "DEFAULT_MAX_STATE_SIZE",
    "DEFAULT_WRITE_BUFFER_SIZE",
    "JOB_TAG",
    "PARENT_RUN_TAG",
    "REFUSED",
    "RESTORE_TAG",
    "ROLLBACK_TAG",
    "VERDICT_TAG",
    "CheckpointStorage",
    "CheckpointedStreamComponent",
    "CheckpointedStreamingAsset",
    "CustomCheckpointStorage",
    "FileSystemCheckpointStorage",
    "JobFailed",
    "JobManagerCheckpointStorage",
    "SparkSessionResource",
    "SparkSubmitResource",
    "StreamingRunConfig",
    "build_checkpoint_definitions",
    "build_job_report",
    "build_restore_drill",
    "build_savepoint_schedule",
    "checkpointed_streaming_asset",
    "configured_storage",
    "going_on",
    "on_job_failed",
    "own_spark",
    "rollback_job",
    "run_drill",
    "streaming_job",
    "to_email",
    "to_slack",
    "told_problems",
]
