"""The checks before a query starts."""

from dagster_ckpt.spark.preflight.source_files import local_file
from dagster_ckpt.spark.preflight.start_checks import Passed, ProposedStart, pass_preflight
from dagster_ckpt.spark.preflight.stored_checks import check_stored

__all__ = [
    "Passed",
    "ProposedStart",
    "check_stored",
    "local_file",
    "pass_preflight",
]
