"""Proof that a job can be restored, for Dagster: asset checks of its newest checkpoint, and restore drills."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.proof.checks import fresh_check, restorable_check
    from dagster_ckpt.orchestration.proof.drill_asset import build_restore_drill
    from dagster_ckpt.orchestration.proof.drilling import run_drill
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["build_restore_drill", "fresh_check", "restorable_check", "run_drill"]
