"""``<job>_rollback``: a Dagster job that takes a checkpointed job back, and the links that lead to it."""

from dagster_ckpt.orchestration.rollback.handover import check_wanted, last_config, pending, requested
from dagster_ckpt.orchestration.rollback.launchpad import Launchpad
from dagster_ckpt.orchestration.rollback.rollback_job import build_rollback_job

__all__ = ["Launchpad", "build_rollback_job", "check_wanted", "last_config", "pending", "requested"]
