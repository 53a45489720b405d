"""Runs of jobs without Dagster's instance: the same function or asset, the same files, the same records."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.standalone.job_drive import Drive, run
    from dagster_ckpt.standalone.restore_drills import restore_drill
    from dagster_ckpt.standalone.resumption import Launch
    from dagster_ckpt.standalone.signals import ToldToEnd, told_to_end
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = ["Drive", "Launch", "ToldToEnd", "restore_drill", "run", "told_to_end"]
