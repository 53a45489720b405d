"""Repartitioning the state of a restored checkpoint, and publishing the result as a checkpoint of its own.

Spark writes the repartition into the location as a batch that reads no data. The checkpoint covers that batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import RESCALE, CheckpointMetadata
from dagster_ckpt.errors import CheckpointFailure, RestoreRefused
from dagster_ckpt.shown_text import first_line_of_java
from dagster_ckpt.spark.changed_copy import RestoredCopy
from dagster_ckpt.spark.files import PARTITIONS_CONF
from dagster_ckpt.spark.kafka import with_earlier_topics
from dagster_ckpt.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["rescale", "with_partitions"]

#: How the conditions of Spark's errors begin that no second try mends.
_FOR_GOOD = ("STATE_REPARTITION_", "STATE_REWRITER_")


def with_partitions(restored: CheckpointMetadata | None, partitions: int | None) -> CheckpointMetadata | None:
    """A checkpoint as the query is to see it, whose session has the new number of partitions."""
    if restored is None or partitions is None:
        return restored
    confs = {**restored.facts.sql_confs, PARTITIONS_CONF: str(partitions)}
    return replace(restored, facts=restored.facts.model_copy(update={"sql_confs": confs}))


def rescale(session: SparkSession, copy: RestoredCopy, partitions: int, sink: Sink | None) -> CheckpointMetadata:
    """Repartition the state of a restored copy, and publish the copy.

    Args:
        session: the session of the query.
        copy: the restored copy.
        partitions: the new number.
        sink: the query's sink, ``None`` if checkpoints do not cover it.

    Raises:
        RestoreRefused: Spark cannot repartition this state.
        CheckpointFailure: Spark failed; a second try may succeed.
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    restored = copy.restored
    # In Spark 4.2 the state stores need a coordinator, which the first look at a session's queries starts.
    _ = session.streams.active
    try:
        session._streamingCheckpointManager.repartition(copy.live.spark_url, partitions)  # noqa: SLF001 - Spark's name
    except Exception as error:
        said = first_line_of_java(error)
        if any(condition in said for condition in _FOR_GOOD):
            raise RestoreRefused(
                f"Spark cannot give the state of {restored.name} {partitions} partitions: {said}",
                hint="Nothing was touched. Launch without state_partitions.",
            ) from error
        raise CheckpointFailure(
            f"Spark did not repartition the state of {restored.name}: {said}",
            hint="Nothing was touched. The restart strategy tries again; without state_partitions the job goes on with "
            "the partitions that it had.",
        ) from error
    batch = restored.batch + 1
    if sink is not None and restored.sink is not None:
        position = sink.skipped(restored.sink, copy.sink_files, batch, session)
        copy = replace(copy, restored=replace(restored, sink=position))
    return copy.publish(batch, RESCALE, partial(with_earlier_topics, earlier=restored.facts.sources))
