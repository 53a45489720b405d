"""What the Dagster UI sees of a job's checkpoints, savepoints and starts."""

from __future__ import annotations

from dagster_ckpt.orchestration.reporting.metadata import checkpoint_metadata, retained_metadata
from dagster_ckpt.orchestration.reporting.observations import (
    request_observation,
    savepoint_observation,
    start_observation,
)
from dagster_ckpt.orchestration.reporting.reporter import CheckpointReporter

__all__ = [
    "CheckpointReporter",
    "checkpoint_metadata",
    "request_observation",
    "retained_metadata",
    "savepoint_observation",
    "start_observation",
]
