"""What takes savepoints and checkpoints from Dagster, by a click or by a schedule."""

from dagster_ckpt.orchestration.savepoints.checkpoint_job import build_checkpoint_job
from dagster_ckpt.orchestration.savepoints.savepoint_asset import savepoints_asset
from dagster_ckpt.orchestration.savepoints.savepoint_schedule import build_savepoint_schedule

__all__ = ["build_checkpoint_job", "build_savepoint_schedule", "savepoints_asset"]
