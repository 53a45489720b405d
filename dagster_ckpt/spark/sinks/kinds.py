"""Telling the position of a sink whose run is dead, from what is on record about it."""

from __future__ import annotations

from pathlib import Path

from dagster_ckpt.checkpoint.epochs import Choice
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import PositionReader
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink

__all__ = ["position_reader"]


def position_reader(choice: Choice) -> PositionReader | None:
    """What tells positions of the start that is on record; ``None`` for a sink that checkpoints do not cover."""
    if choice.sink is None:
        return None
    directory = Path(choice.live).parent
    if choice.sink_kind == SparkFileSink.kind:
        return SparkFileSink(choice.sink).position_reader(directory)
    if choice.sink_kind == TransactionalFileSink.kind:
        return TransactionalFileSink(choice.sink).position_reader(directory)
    return RecordedPositions(directory)
