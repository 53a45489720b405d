"""Repartitioning the state of a restored checkpoint, and publishing the result as a checkpoint of its own.

Spark writes the repartition into the location as a batch that reads no data. That checkpoint covers the batch, and has
the position of the sink that the restored checkpoint has. So every later start restores the new partitions like those
of any checkpoint, and the restored checkpoint stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import RESCALE, CheckpointMetadata, CompletedCheckpointStore
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointFailure, RestoreRefused
from dagster_ckpt.shown_text import first_line_of_java
from dagster_ckpt.spark.capture import StreamingSource
from dagster_ckpt.spark.files import PARTITIONS_CONF
from dagster_ckpt.spark.kafka import with_earlier_topics
from dagster_ckpt.spark.live import LiveLocation
from dagster_ckpt.spark.sinks import Pin
from dagster_ckpt.stored_json import Json

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


def rescale(
    session: SparkSession,
    live: LiveLocation,
    directory: Path,
    restored: CheckpointMetadata,
    partitions: int,
    store: CompletedCheckpointStore,
    clock: Clock,
    accepted_loss: tuple[str, ...],
) -> CheckpointMetadata:
    """Repartition the state in a live location that no query uses yet, and publish it as a checkpoint.

    Args:
        session: the session of the query.
        live: the live location, where ``restored`` is unpacked without a batch in flight.
        directory: the start's directory; its ``sink/`` has the files that were pinned with the sink's position.
        restored: the checkpoint that was unpacked.
        partitions: the new number.
        store: publishes the checkpoint.
        clock: monotonic time.
        accepted_loss: losses and duplicates in this lineage that the user accepted.

    Raises:
        RestoreRefused: Spark cannot repartition this state.
        CheckpointFailure: Spark failed; a second try may succeed.
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    try:
        session._streamingCheckpointManager.repartition(live.spark_url, partitions)  # noqa: SLF001 - as Spark names it
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
    source = StreamingSource(
        live.location(),
        directory / "pins",
        None if restored.sink is None else _Kept(dict(restored.sink), directory / "sink"),
        session.version,
        lambda: None,
        clock,
        accepted_loss,
        partial(with_earlier_topics, earlier=restored.facts.sources),
    )
    snapshot = source.pin(restored.batch + 1)
    try:
        return store.write(store.begin(), snapshot, kind=RESCALE)
    finally:
        snapshot.release()


@dataclass(frozen=True, slots=True)
class _Kept:
    """Tells the position of the restored checkpoint: a repartition writes nothing to the sink."""

    position: dict[str, Json]
    files: Path

    def look(self, committed: int) -> None:
        """Do nothing: no query runs."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        del batch
        for file in self.files.rglob("*"):
            if file.is_file():
                pin(file, file.relative_to(self.files).as_posix())
        return self.position
