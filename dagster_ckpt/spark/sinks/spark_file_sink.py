"""Spark's own file sink, as a sink that checkpoints cover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CaptureIncomplete, InvalidConfiguration, SinkMismatch, SinkOverlap
from dagster_ckpt.spark.files import (
    COMPACT,
    COMPACT_INTERVAL,
    LOG_VERSION,
    CheckpointLocation,
    compact_interval,
    log_id,
)
from dagster_ckpt.spark.sinks.file_rows import rows_in
from dagster_ckpt.spark.sinks.own_entries import NotOwn, OwnEntries, marking_options
from dagster_ckpt.spark.sinks.sink import Pin, PlainQuery, PositionReader, Sink, SinkStart, TakenOver, batch_of
from dagster_ckpt.spark.sinks.spark_sink_log import LOGGED, FileSink, SinkRollback, effective_files
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkFileSink"]

_LOG = "_spark_metadata"
_MOST_NAMED = 20
_COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


class SparkFileSink(Sink):
    """A parquet, orc, json, csv, text or xml sink at a local path; the sink's log is its position.

    Args:
        path: the query's output path, as given to Spark.

    Raises:
        InvalidConfiguration: the path is not on a local (or mounted) disk.
    """

    kind = "file"
    can_skip_a_batch = True
    seeds_alike = True

    def __init__(self, path: Path | str) -> None:
        self._sink = FileSink(path)

    @classmethod
    def of_record(cls, path: str) -> SparkFileSink:
        return cls(path)

    @property
    def path(self) -> str:
        return str(self._sink.path)

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        if start is None:
            return _Positions(self._sink, location, None)
        restored = directory / "sink" / _LOG if directory.is_dir() else None
        return _Positions(self._sink, location, OwnEntries(self._sink, start, restored))

    def writer_options(self, token: str) -> Mapping[str, str]:
        return marking_options(token)

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        del position  # the log has the whole position
        return self._sink.check(files / _LOG)

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        del epoch  # Spark's sink has no epochs
        with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
            logged = whole(position[LOGGED], "the time of its newest entry") if LOGGED in position else None
        return _describe(self._sink.rollback_to(files / _LOG, batch_of(position), logged))

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        del epoch, first
        return _describe(self._sink.rollback_to_nothing(began))

    def take_over(self, query: PlainQuery, files: Path) -> TakenOver | None:
        """The log at the query's last batch.

        A log that has the batch in flight tells that batch's files. If the batch is in flight and the log does not have
        the batch, any file since its plan may be the batch's: then these files are told as removed.

        Raises:
            SinkMismatch: the log ends before that batch, or has batches that the query has not planned; or there are
                files, not those of the batch in flight, that the log does not list and a rollback would remove.
        """
        newest = self._sink.last_batch()
        if newest is None:
            return None
        if not query.batch <= newest <= query.newest:
            raise SinkMismatch(
                f"The log of {self.path} ends with batch {newest}, and the query has come to batch {query.batch}"
                f"{'' if query.planned_ms is None else ', with the next one planned'}: it is the log of another query, "
                "or query and output are not of the same moment.",
                hint="Nothing was touched. Name the directory that the query wrote to, as the query has left it.",
            )
        try:
            position = {file.name: file for file in self._sink.position_files(query.batch)}
        except CaptureIncomplete as error:
            raise SinkMismatch(error.message, hint="Nothing was touched. Put the log back from a backup.") from error
        logged = effective_files(self._sink.log) if newest > query.batch else []
        unlisted = self._sink.unlisted(position.values(), but=logged)
        planned_ns = math.inf if logged or query.planned_ms is None else query.planned_ms * 1_000_000
        if others := [file for file, modified_ns in unlisted if modified_ns < planned_ns]:
            raise SinkMismatch(
                f"{self.path} has {len(others)} files that its log does not list and that readers of Spark do not see: "
                f"{_named(others)}. Failed attempts of the query leave such files; a rollback of the job would remove "
                "all of them.",
                hint="Nothing was touched. Delete these files, or move them elsewhere; then launch again.",
            )
        log = files / _LOG
        log.mkdir(parents=True)
        for name, file in position.items():
            (log / name).write_bytes(file.read_bytes())
        return TakenOver(self._sink.position_of(position, query.batch), [str(file) for file, _ in unlisted])

    def skipped(self, position: Mapping[str, Json], files: Path, batch: int, session: SparkSession) -> dict[str, Json]:
        """The log with an entry for ``batch`` that has no file of it. Spark needs every entry when it compacts the log.

        Where Spark would compact the log with this entry, the entry lists all files.
        """
        log = files / _LOG
        compacted = max((int(file.stem) for file in log.glob(f"*{COMPACT}")), default=None)
        interval = compact_interval(int(str(session.conf.get(_COMPACT_INTERVAL, str(COMPACT_INTERVAL)))), compacted)
        if (batch + 1) % interval == 0:
            lines = [line for file in effective_files(log) for line in file.read_text("utf-8").split("\n")[1:] if line]
            (log / f"{batch}{COMPACT}").write_text("\n".join([LOG_VERSION, *lines]), encoding="utf-8")
        else:
            (log / str(batch)).write_text(LOG_VERSION, encoding="utf-8")
        names = {file.name: file for file in log.iterdir() if log_id(file.name) is not None}
        skipped = self._sink.position_of(names, batch, position.get(LOGGED))
        if LOGGED not in position:  # and the time of the entry that was just written says nothing of the data files
            skipped.pop(LOGGED, None)
        return skipped

    def rows_of(self, session: SparkSession, after: int, until: int) -> DataFrame:
        try:
            before, now = (set(self._sink.files_at(batch)) if batch >= 0 else set() for batch in (after, until))
        except CaptureIncomplete as error:
            raise InvalidConfiguration(
                f"The log of {self.path} no longer tells which files the batches {after + 1} to {until} have written: "
                f"{error.message}",
                hint="Spark merges the entries of its log. Compare within about ten batches, or write to a "
                "TransactionalFileSink.",
            ) from error
        return rows_in(sorted(now - before), self._sink.path, session)

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position of a log without files up to ``batch``. Spark needs every entry when it compacts the log later.

        Spark derives the interval of compaction from the newest compacted entry, so that entry must be where Spark
        would have made it.
        """
        interval = int(str(session.conf.get(_COMPACT_INTERVAL, "10")))
        log = files / _LOG
        log.mkdir(parents=True)
        compacted = (batch + 1) // interval * interval - 1
        names = [f"{compacted}.compact"] if compacted >= 0 else []
        for name in [*names, *map(str, range(compacted + 1, batch + 1))]:
            (log / name).write_text(LOG_VERSION, encoding="utf-8")
        # The sink is empty: whatever is in it later came after this position.
        return self._sink.position_of({file.name: file for file in log.iterdir()}, batch, 0)

    def newest_batch(self) -> int | None:
        return self._sink.last_batch()

    def first_data(self) -> str | None:
        found = self._sink.first_data()
        return None if found is None else str(found)


def _named(files: Sequence[Path]) -> str:
    return f"{', '.join(map(str, files[:_MOST_NAMED]))}{' and more' if len(files) > _MOST_NAMED else ''}"


def _describe(rollback: SinkRollback) -> str:
    if not any(astuple(rollback)):
        return ""
    told = (
        f"{rollback.log_entries_removed} log entries removed and {rollback.log_entries_restored} put back, "
        f"{rollback.data_files_removed} uncommitted data files ({rollback.bytes_removed} bytes) removed"
    )
    if left := rollback.data_files_left:
        told += (
            f"; {left} data files that the log does not list stay, because the checkpoint does not tell when its log "
            "was written: who reads the directory and not the log may find rows twice"
        )
    return told


class _Positions:
    """Tells the positions of one start, and makes sure that no other query has written among its batches.

    Args:
        sink: the output directory.
        location: the start's live location.
        own: tells which log entries belong to this start; ``None`` when that is unknown.
    """

    def __init__(self, sink: FileSink, location: CheckpointLocation, own: OwnEntries | None) -> None:
        self._sink = sink
        self._location = location
        self._own = own

    def look(self, committed: int) -> None:
        """Check that the new log entries belong to this start.

        Raises:
            SinkOverlap: another query writes to the sink.
        """
        if self._own is not None:
            try:
                self._own.look(committed)
            except NotOwn as error:
                raise _overlap(self._sink, str(error)) from error

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position after ``batch``: the log up to that batch.

        Raises:
            CaptureIncomplete: the log does not reach back (or forward) to ``batch``, or the origin of an entry is not
                known yet.
            SinkOverlap: another query writes to the sink.
        """
        self._check_ahead()
        self.look(batch)
        pinned = {source.name: pin(source, f"{_LOG}/{source.name}") for source in self._sink.position_files(batch)}
        if self._own is not None:
            try:
                # The caller has already checked that the state of the batch is whole.
                self._own.prove(batch, pinned, lambda: bool(self._location.operators(batch)))
            except NotOwn as error:
                raise _overlap(self._sink, str(error)) from error
        return self._sink.position_of(pinned, batch)

    def _check_ahead(self) -> None:
        # In this order, a batch that is planned between the two reads is not mistaken for another query's batch.
        newest = self._sink.last_batch()
        own = self._location.newest()
        if newest is not None and newest > own:
            raise _overlap(self._sink, f"its log has batch {newest}, and this query has come to batch {own}")


def _overlap(sink: FileSink, why: str) -> SinkOverlap:
    return SinkOverlap(
        f"Another query writes to {sink.path}: {why}. Most likely it is that of a run of this job that was declared "
        "dead and is not.",
        hint="Make sure that it is dead: its host and process are in the log of the run before. Then launch the job "
        "again (restore_from: latest): the sink goes back to the checkpoint, and what the other one wrote is removed. "
        "A TransactionalFileSink keeps such rows invisible by itself.",
    )
