"""Deletes what nobody needs, and keeps what a user has pinned."""

from __future__ import annotations

from dagster_ckpt.checkpoint.cleanup.broken_checkpoints import dispose_broken, is_broken
from dagster_ckpt.checkpoint.cleanup.dead_runs import (
    close_earlier,
    end_dead_epoch,
    finish_deletions,
    finish_end,
    is_unfinished,
    store_that_ends,
)
from dagster_ckpt.checkpoint.cleanup.job_sweep import Swept, sweep_job
from dagster_ckpt.checkpoint.cleanup.live_locations import forget_live_locations
from dagster_ckpt.checkpoint.cleanup.orphans import Orphan
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint, unpin_checkpoint
from dagster_ckpt.checkpoint.cleanup.savepoint_history import (
    SavepointHistory,
    delete_surplus_savepoints,
    kept_savepoint,
    refuse_half_deleted,
)
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start

__all__ = [
    "Orphan",
    "SavepointHistory",
    "Swept",
    "close_earlier",
    "delete_surplus_savepoints",
    "dispose_broken",
    "end_dead_epoch",
    "finish_deletions",
    "finish_end",
    "forget_live_locations",
    "is_broken",
    "is_unfinished",
    "kept_savepoint",
    "pin_checkpoint",
    "refuse_half_deleted",
    "store_that_ends",
    "sweep_job",
    "sweep_start",
    "unpin_checkpoint",
]
