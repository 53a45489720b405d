"""A sink without its query, restored from records: its positions, and the sink itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.checkpoint import Choice
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import PositionReader, Sink, SinkStart
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import CustomSink, ForeachBatchSink
from dagster_ckpt.stored_json import Json

__all__ = ["position_reader", "recorded_sink"]

#: Every kind of sink that a record can name.
_SINKS: Mapping[str, type[Sink]] = {
    sink.kind: sink
    for sink in (
        *(CustomSink, DeltaSink, ForeachBatchSink, IcebergSink),
        *(PostgresSink, SparkFileSink, TransactionalFileSink),
    )
}


def position_reader(
    choice: Choice, directory: Path, location: CheckpointLocation, start: SinkStart | None
) -> PositionReader | None:
    """A reader for the positions of a recorded start; ``None`` for a sink that checkpoints do not cover.

    Args:
        choice: the recorded choice of the start.
        directory: the start's directory on the machine that ran it.
        location: the start's live location.
        start: as for :meth:`~dagster_ckpt.spark.sinks.sink.Sink.position_reader`.

    Raises:
        CaptureIncomplete: this release does not know the kind of sink.
    """
    if choice.sink is None:
        return None
    kind = _SINKS.get(str(choice.sink_kind))
    if kind is None:
        raise CaptureIncomplete(
            f"The run before wrote to {choice.sink}, and this release does not know its kind, {choice.sink_kind}.",
            hint="Nothing is to be done: the run goes on from the newest checkpoint.",
        )
    sink = _made(kind, choice.sink, others_delete=choice.others_delete)
    return RecordedPositions(directory) if sink is None else sink.position_reader(directory, location, start)


def recorded_sink(position: Mapping[str, Json]) -> Sink | None:
    """The sink of a recorded position; ``None`` for a sink that only its query can make."""
    kind = _SINKS.get(str(position.get("kind")))
    others_delete = position.get("others_delete") is True
    return None if kind is None else _made(kind, str(position.get("path")), others_delete=others_delete)


def _made(kind: type[Sink], path: str, *, others_delete: bool) -> Sink | None:
    sink = kind.of_record(path)
    if sink is not None:
        sink.others_delete = others_delete
    return sink
