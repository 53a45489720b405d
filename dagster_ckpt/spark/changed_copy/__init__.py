"""The restored copy of a checkpoint, changed before its query starts, and published as a checkpoint of its own."""

from dagster_ckpt.spark.changed_copy.copy import RestoredCopy

__all__ = ["RestoredCopy"]
