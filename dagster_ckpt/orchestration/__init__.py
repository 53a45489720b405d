"""Jobs under Dagster: assets, resources, and the sensor that resumes what has failed."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.definitions import build_checkpoint_definitions
    from dagster_ckpt.orchestration.names import ATTEMPT_TAG, PARENT_RUN_TAG
    from dagster_ckpt.orchestration.resources import SparkSessionResource
    from dagster_ckpt.orchestration.storages import (
        DEFAULT_MAX_STATE_SIZE,
        DEFAULT_WRITE_BUFFER_SIZE,
        CheckpointStorage,
        CustomCheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
        configured_storage,
    )
    from dagster_ckpt.orchestration.streaming_asset import CheckpointedStreamingAsset, checkpointed_streaming_asset
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "ATTEMPT_TAG",
    "DEFAULT_MAX_STATE_SIZE",
    "DEFAULT_WRITE_BUFFER_SIZE",
    "PARENT_RUN_TAG",
    "CheckpointStorage",
    "CheckpointedStreamingAsset",
    "CustomCheckpointStorage",
    "FileSystemCheckpointStorage",
    "JobManagerCheckpointStorage",
    "SparkSessionResource",
    "build_checkpoint_definitions",
    "checkpointed_streaming_asset",
    "configured_storage",
]
