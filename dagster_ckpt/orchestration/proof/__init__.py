"""Proof of how a job is doing, for Dagster: asset checks of its newest checkpoint, restore drills, and reports."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.proof.checks import fresh_check, restorable_check
    from dagster_ckpt.orchestration.proof.drill_asset import build_restore_drill
    from dagster_ckpt.orchestration.proof.drilling import run_drill
    from dagster_ckpt.orchestration.proof.report_asset import build_job_report
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["build_job_report", "build_restore_drill", "fresh_check", "restorable_check", "run_drill"]
