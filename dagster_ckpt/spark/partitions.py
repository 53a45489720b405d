"""The number of partitions of a query and its state, which Spark fixes when the query first starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.errors import QueryMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["set_partitions"]

_CONF = "spark.sql.shuffle.partitions"


def set_partitions(session: SparkSession, partitions: int | None, restored: CheckpointMetadata | None) -> None:
    """Make a query of ``session`` have so many partitions.

    Args:
        session: of the query.
        partitions: how many; ``None`` for what the session says.
        restored: the checkpoint the query goes on from.

    Raises:
        QueryMismatch: the checkpoint has another number, and Spark would go on with that one without a word.
    """
    if partitions is None:
        return
    confs = None if restored is None else restored.facts.get("sql_confs")
    fixed = confs.get(_CONF) if isinstance(confs, dict) else None
    if restored is not None and fixed is not None and int(str(fixed)) != partitions:
        raise QueryMismatch(
            f"{restored.name} has {fixed} partitions, and the job is to have {partitions}. Spark fixes the number when "
            "a query first starts.",
            hint=f"Keep {fixed}, or start from nothing into an empty sink with restore_from: none.",
        )
    session.conf.set(_CONF, str(partitions))
