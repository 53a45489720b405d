"""Which checkpoints exist, and which one to restore."""

from __future__ import annotations

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, references, shared_in_use, unreadable_id
from dagster_ckpt.checkpoint.catalog.fetched_ahead import FetchedAhead
from dagster_ckpt.checkpoint.catalog.file_reader import Take, copy_files, materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.catalog.lineage import for_retention, line_of_descent, older_than, reclaimable_bytes
from dagster_ckpt.checkpoint.catalog.newest import Newest, fallback_of, find_newest, read_newest
from dagster_ckpt.checkpoint.catalog.pointers import (
    CompletedCheckpointStorageLocation,
    is_job,
    job_directories,
    job_names,
    new_savepoint_directory,
    resolve_checkpoint_pointer,
    savepoint_storage,
    savepoint_token,
)
from dagster_ckpt.checkpoint.catalog.savepoint_names import check_label, give_name, gone_with_name, made_by
from dagster_ckpt.checkpoint.catalog.spot_checks import spot_check
from dagster_ckpt.checkpoint.catalog.upgrades import pending_upgrade, taken_back_since
from dagster_ckpt.checkpoint.catalog.voiding import voided

__all__ = [
    "CheckpointCatalog",
    "CompletedCheckpointStorageLocation",
    "FetchedAhead",
    "Newest",
    "Take",
    "check_label",
    "copy_files",
    "fallback_of",
    "find_newest",
    "for_retention",
    "give_name",
    "gone_with_name",
    "is_job",
    "job_directories",
    "job_names",
    "line_of_descent",
    "made_by",
    "materialize_checkpoint",
    "new_savepoint_directory",
    "older_than",
    "pending_upgrade",
    "read_newest",
    "reclaimable_bytes",
    "references",
    "resolve_checkpoint_pointer",
    "savepoint_storage",
    "savepoint_token",
    "shared_in_use",
    "spot_check",
    "taken_back_since",
    "unreadable_id",
    "verify_checkpoint",
    "voided",
]
