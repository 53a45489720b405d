"""The number of partitions of a query and its state, which Spark fixes when the query first starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.values import believed
from dagster_ckpt.errors import QueryMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_partitions", "set_partitions"]

_CONF = "spark.sql.shuffle.partitions"


def check_partitions(partitions: int | None, restored: CheckpointMetadata) -> int | None:
    """The number of partitions that a checkpoint has fixed, ``None`` when it does not tell.

    Args:
        partitions: how many the job is to have; ``None`` for what its session says.
        restored: the checkpoint the query goes on from.

    Raises:
        QueryMismatch: the checkpoint has another number, and Spark would go on with that one without a word.
    """
    confs = restored.facts.get("sql_confs")
    text = confs.get(_CONF) if isinstance(confs, dict) else None
    if text is None:
        return None
    with believed(f"The number of partitions of {restored.name}", "Restore another checkpoint.", QueryMismatch):
        fixed = int(str(text))
    if partitions is not None and fixed != partitions:
        raise QueryMismatch(
            f"{restored.name} has {fixed} partitions, and the job is to have {partitions}. Spark fixes the number when "
            "a query first starts.",
            hint=f"Keep {fixed}, or start from nothing into an empty sink with restore_from: none.",
        )
    return fixed


def set_partitions(session: SparkSession, partitions: int | None) -> None:
    """Make a query of ``session`` that starts from nothing have so many partitions; ``None`` for what it says."""
    if partitions is not None:
        session.conf.set(_CONF, str(partitions))
