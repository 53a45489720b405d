"""Names on Dagster's side: tags, metadata keys, partition keys. One place, because other tools read them."""

from __future__ import annotations

from dagster_ckpt.checkpoint import CheckpointMetadata

__all__ = [
    "ATTEMPT_TAG",
    "JOB_ID_TAG",
    "JOB_TAG",
    "PARENT_RUN_TAG",
    "RESTORED_FROM_TAG",
    "ROOT_RUN_TAG",
    "SERIES_TAG",
    "partition_key",
]

JOB_TAG = "dagster_ckpt/job"
JOB_ID_TAG = "dagster_ckpt/job_id"
ATTEMPT_TAG = "dagster_ckpt/attempt"
SERIES_TAG = "dagster_ckpt/series"
RESTORED_FROM_TAG = "dagster_ckpt/restored_from"
PARENT_RUN_TAG = "dagster/parent_run_id"
ROOT_RUN_TAG = "dagster/root_run_id"
MAX_RETRIES_TAG = "dagster/max_retries"


def partition_key(metadata: CheckpointMetadata) -> str:
    """``{first 8 of the job id}.chk-N``: chk-N alone would repeat after a start without a checkpoint."""
    return partition_of(metadata.job_id, metadata.name)


def partition_of(job_id: str, name: str) -> str:
    """The partition key of a checkpoint whose manifest cannot be read."""
    return f"{job_id[:8]}.{name}"
