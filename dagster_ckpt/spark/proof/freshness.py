"""How fresh the newest checkpoint of a job is, as far as the storage tells. An idle stream is fresh."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dagster_ckpt.checkpoint import CheckpointCatalog, JobState, find_newest
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import JobStatus
from dagster_ckpt.spark.batches import planned_offsets, plans_after

__all__ = ["Freshness", "freshness_of"]

_RUNS = frozenset({"STARTING", "RUNNING"})
_OVER = frozenset({"NEVER RAN", JobStatus.FINISHED, JobStatus.CANCELED})


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh the newest checkpoint is.

    Attributes:
        is_fresh: whether nothing waits for a checkpoint longer than allowed.
        reason: for people, a sentence.
        behind_seconds: how long the oldest batch without a checkpoint has waited for one; 0 for an idle stream.
        batches_behind: batches that were planned after the newest checkpoint.
    """

    is_fresh: bool
    reason: str
    behind_seconds: float
    batches_behind: int


def freshness_of(job: JobState, catalog: CheckpointCatalog, clock: Clock, allowed: timedelta | None) -> Freshness:
    """How fresh the newest checkpoint of a job is.

    Args:
        job: how the job is doing.
        catalog: the job's checkpoints.
        clock: wall and monotonic time.
        allowed: how long a batch may wait for a checkpoint; ``None`` for any time.

    Raises:
        CorruptCheckpoint: a record or the newest checkpoint cannot be read.
        StorageError: the storage failed.
    """
    if job.needs_help:
        why = f"The job is {job.state}{job.reason and f': {job.reason}'}."
        return Freshness(is_fresh=False, reason=why, behind_seconds=0.0, batches_behind=0)
    _, waiting = plans_after(catalog, find_newest(catalog))
    behind = 0.0
    if waiting and job.state not in _OVER:
        behind = max(clock.time() - planned_offsets(waiting[0]).timestamp_ms / 1000, 0.0)
    elif job.state not in _RUNS | _OVER:
        # A job that does not run cannot know whether it has input.
        beat = catalog.records.heartbeat.read()
        behind = (None if beat is None else beat.silent_for(clock)) or 0.0
    is_fresh = allowed is None or behind <= allowed.total_seconds()
    if job.state in _OVER:
        reason = f"The job is not running ({job.state}), and nothing waits for a checkpoint."
    elif waiting:
        reason = f"Batch {waiting[0].batch} has waited for a checkpoint for {behind:.0f} s ({job.state})."
    elif job.state in _RUNS:
        reason = "No batch waits for a checkpoint: the stream is idle, or its newest batch has one."
    else:
        reason = f"The job has been {job.state} for {behind:.0f} s{job.reason and f': {job.reason}'}."
    return Freshness(is_fresh, reason, round(behind, 1), len(waiting))
