"""A sink without its query, restored from records: its positions, and the sink itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.checkpoint import Choice
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import PositionReader, Sink, SinkStart
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.stored_json import Json

__all__ = ["position_reader", "recorded_sink"]


def position_reader(
    choice: Choice, directory: Path, location: CheckpointLocation, start: SinkStart | None
) -> PositionReader | None:
    """A reader for the positions of a recorded start; ``None`` for a sink that checkpoints do not cover.

    Args:
        choice: the recorded choice of the start.
        directory: the start's directory on the machine that ran it.
        location: the start's live location.
        start: as for :meth:`~dagster_ckpt.spark.sinks.sink.Sink.position_reader`.
    """
    if choice.sink is None:
        return None
    if choice.sink_kind == SparkFileSink.kind:
        return SparkFileSink(choice.sink).position_reader(directory, location, start)
    if choice.sink_kind == TransactionalFileSink.kind:
        return TransactionalFileSink(choice.sink).position_reader(directory, location, start)
    return RecordedPositions(directory)


def recorded_sink(position: Mapping[str, Json]) -> Sink | None:
    """The sink of a recorded position; ``None`` for a sink that only its query can make."""
    path = str(position.get("path"))
    if position.get("kind") == SparkFileSink.kind:
        return SparkFileSink(path)
    if position.get("kind") == TransactionalFileSink.kind:
        return TransactionalFileSink(path)
    return None
