"""Spark's own file sink, as a sink that a checkpoint covers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.checkpoint.snapshot import Json
from dagster_ckpt.spark.file_sink import FileSink, SinkRollback
from dagster_ckpt.spark.sinks.sink import Pin, PositionReader, Sink

__all__ = ["SparkFileSink"]

_LOG = "_spark_metadata"


class SparkFileSink(Sink):
    """A parquet, orc, json, csv or text sink at a local path; its position is its log.

    Args:
        path: the query's output path as given to Spark.

    Raises:
        InvalidConfiguration: the path is not on a local (or mounted) disk.
    """

    kind = "file"

    def __init__(self, path: Path | str) -> None:
        self._sink = FileSink(path)

    @property
    def path(self) -> str:
        return str(self._sink.path)

    def position_reader(self, directory: Path) -> PositionReader:
        del directory  # the log is in the sink
        return self

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        pinned = {source.name: pin(source, f"{_LOG}/{source.name}") for source in self._sink.position_files(batch)}
        return self._sink.position_of(pinned, batch)

    def check(self, position: Mapping[str, Json], files: Path) -> None:
        del position  # the log tells
        self._sink.check(files / _LOG)

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        del epoch  # Spark's sink knows of none
        return _describe(self._sink.rollback_to(files / _LOG, int(str(position["batch"]))))

    def rollback_to_nothing(self, began: float, epoch: int) -> str:
        del epoch
        return _describe(self._sink.rollback_to_nothing(began))

    def newest_batch(self) -> int | None:
        return self._sink.last_batch()

    def first_data(self) -> str | None:
        found = self._sink.first_data()
        return None if found is None else str(found)


def _describe(rollback: SinkRollback) -> str:
    if not (rollback.log_entries_removed or rollback.data_files_removed or rollback.log_entries_restored):
        return ""
    return (
        f"{rollback.log_entries_removed} log entries removed and {rollback.log_entries_restored} put back, "
        f"{rollback.data_files_removed} uncommitted data files ({rollback.bytes_removed} bytes) removed"
    )
