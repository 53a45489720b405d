"""Proof that a checkpoint is of use, on copies of it: its state as a table, a restore drill, and how fresh it is."""

from dagster_ckpt.spark.proof.comparison import compare_rows, find_common
from dagster_ckpt.spark.proof.drill import Drilled, drill_restore
from dagster_ckpt.spark.proof.freshness import freshness_of
from dagster_ckpt.spark.proof.rehearsal import rehearse
from dagster_ckpt.spark.proof.scratch_copy import Bar, no_bar
from dagster_ckpt.spark.proof.state_reader import read_state, read_state_metadata, state_operator

__all__ = [
    "Bar",
    "Drilled",
    "compare_rows",
    "drill_restore",
    "find_common",
    "freshness_of",
    "no_bar",
    "read_state",
    "read_state_metadata",
    "rehearse",
    "state_operator",
]
