"""What the Dagster UI sees of a job's checkpoints and starts."""

from __future__ import annotations

from dagster_ckpt.orchestration.reporting.first_rows import FirstRows
from dagster_ckpt.orchestration.reporting.metadata import checkpoint_metadata, retained_metadata, start_observation
from dagster_ckpt.orchestration.reporting.reporter import CheckpointReporter

__all__ = [
    "CheckpointReporter",
    "FirstRows",
    "checkpoint_metadata",
    "retained_metadata",
    "start_observation",
]
