"""Taking checkpoints and savepoints."""

from __future__ import annotations

from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.checkpoint.taking.discards import discard_within
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, Gauge, RestoreInProgress
from dagster_ckpt.checkpoint.taking.requests import (
    CheckpointsAtOnce,
    SavepointServer,
    ask_checkpoint,
    request_next_step,
    take_savepoint,
)
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.checkpoint.taking.savepoint_files import (
    claim_savepoint,
    claimed_savepoint,
    dispose_claimed,
    dispose_savepoint,
    give_up_claimed,
)
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD, MAX_INLINE_BYTES
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore

__all__ = [
    "DEFAULT_INLINE_THRESHOLD",
    "MAX_INLINE_BYTES",
    "CheckpointCoordinator",
    "CheckpointInProgress",
    "CheckpointsAtOnce",
    "CompletedCheckpointStore",
    "Discarded",
    "Gauge",
    "RestoreInProgress",
    "SavepointServer",
    "ask_checkpoint",
    "claim_savepoint",
    "claimed_savepoint",
    "discard_within",
    "dispose_claimed",
    "dispose_savepoint",
    "give_up_claimed",
    "request_next_step",
    "take_savepoint",
]
