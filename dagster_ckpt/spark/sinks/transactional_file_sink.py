"""A file sink whose readers see only what completed checkpoints cover.

Flink's file sink does the same: what a batch writes is *pending* until the checkpoint that covers it completes.

::

    {path}/part-*.parquet                               visible: moved here by the commit of a checkpoint
    {path}/_transactions/line/                          which starts count, and until which batch
    {path}/_transactions/commits/                       lists of the files that commits made visible
    {path}/_transactions/pending/{start}/{batch}/     data files of one batch, not visible
    {path}/_transactions/pending/{start}/{batch}.json list of these files, written when they are durable
    {path}/_transactions/dropped/                       pending files that a rollback is removing

Spark, pandas and pyarrow ignore directories that begin with ``_``. A commit moves files one by one, each atomically,
and then lists the files. The next start completes an interrupted commit. A rollback first records what no longer
counts, and then removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure, Fenced, InvalidConfiguration, SinkMismatch
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.file_rows import rows_in, told_gone
from dagster_ckpt.spark.sinks.pending_files import (
    PendingFiles,
    data_files,
    directories_of,
    pinned_files,
    read_list,
    remove_file,
    size_of,
)
from dagster_ckpt.spark.sinks.sink import BatchSink, Pin, PositionReader, SinkRun, SinkStart, batch_of
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.spark.sinks.transactions import DataFile, Line, TransactionLog, newest_of, start_name
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TransactionalFileSink"]

_log = logging.getLogger(__name__)
_TRANSACTIONS = "_transactions"
#: The start of the query that was forked; it has written nothing to this sink.
_FORK = "fork"
_PINNED = "pending"
_OTHER = "Nothing was touched. Restore a checkpoint whose data is still there, or put the file back."
_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text"})


class TransactionalFileSink(BatchSink):
    """Data files that become visible when the checkpoint that covers them completes.

    .. code-block:: python

        return sink_to(rows, TransactionalFileSink("/data/delays", partition_by=["day"]))

    Args:
        path: the output directory, on a local or mounted disk with hard links, shared with the executors.
        format: ``parquet``, ``orc``, ``json``, ``csv`` or ``text``.
        partition_by: columns to partition by.
        options: options for Spark's ``DataFrameWriter``.
        others_delete: whether others delete old files. Then files that are gone are no loss; the log tells of them.

    Raises:
        InvalidConfiguration: another format, a path that is not on a local (or mounted) disk, or a partition column
            whose directories readers would ignore.
    """

    kind = "transactional"
    can_skip_a_batch = True
    seeds_alike = True

    def __init__(
        self,
        path: Path | str,
        *,
        format: str = "parquet",  # noqa: A002 - Spark's name of it
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        others_delete: bool = False,
    ) -> None:
        if format not in _FORMATS:
            raise InvalidConfiguration(
                f"A TransactionalFileSink cannot write {format!r}.", hint=f"Use one of {', '.join(sorted(_FORMATS))}."
            )
        if isinstance(partition_by, str) or any(column.startswith(("_", ".")) for column in partition_by):
            raise InvalidConfiguration(
                f"A TransactionalFileSink cannot be partitioned by {partition_by!r}.",
                hint="Give a list of columns. pandas and pyarrow pass over directories that begin with '_' or '.', so "
                "rename a column that does.",
            )
        self._root = FileSink(path).path
        self._transactions = self._root / _TRANSACTIONS
        self._visible = PosixFileSystem(self._root)
        self._pending = PendingFiles(self._transactions)
        self._log = TransactionLog(self._transactions)
        self._format = format
        self._partition_by = tuple(partition_by)
        self._options = dict(options or {})
        self.others_delete = others_delete
        self._run: SinkRun | None = None
        #: The line when a position was checked, and the line that a rollback then made.
        self._seen: Line | None = None
        self._cut: Line | None = None
        #: The files that were gone then.
        self._gone: frozenset[DataFile] = frozenset()
        #: The line with this start in it, the last batch up to which nothing is pending, and the last one with a file.
        self._line = Line(0, 0, {})
        self._held = -1
        self._shown = -1

    @classmethod
    def of_record(cls, path: str) -> TransactionalFileSink:
        return cls(path)

    @property
    def path(self) -> str:
        return str(self._root)

    def committed_files(self) -> list[Path]:
        """The files that readers see according to the commits, sorted: always whole checkpoints.

        With ``others_delete``, files that somebody has deleted since are left out.
        """
        files = (self._root / file.path for file in self._log.committed(self._log.line()))
        return sorted(file for file in files if not self.others_delete or size_of(file) is not None)

    def rows_of(self, session: SparkSession, after: int, until: int) -> DataFrame:
        files = [file for file in self._log.committed(self._log.line()) if after < file.batch <= until]
        return rows_in([self._root / file.path for file in files], self._root, session)

    # --- writing -----------------------------------------------------------------------------------------------------

    def begin(self, run: SinkRun) -> None:
        """Prepare for a query that continues from the rolled-back position, or from nothing in an empty sink.

        Raises:
            CheckpointFailure: another start has changed the sink since.
            StorageError: the disk failed.
        """
        before, self._cut = self._cut or Line(0, 0, {}), None
        self._line = self._log.advance(before, {**before.starts, run.directory.name: None}, run.epoch)
        self._held = -1 if run.restored is None else batch_of(run.restored)
        self._shown = newest_of(self._log.committed(self._line, self._held))
        self._run = run

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch as pending, durably.

        Raises:
            Fenced: a newer run has taken the job over.
            RestoreRefused: the query was not started by this library.
            StorageError: the disk failed.
        """
        run = self.begun(self._run, batch)
        self._check_owner(run)
        start = run.directory.name
        writer = rows.write.format(self._format).options(**self._options).mode("overwrite")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(hadoop_path(self._pending.target(start, batch)))
        self._pending.complete(start, batch)

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Make visible the files that the checkpoint covers.

        Raises:
            Fenced: a newer run has taken the job over.
            CheckpointFailure: the disk failed; the next start will complete the commit.
        """
        run = self._run
        if run is None:
            return
        self._check_owner(run)
        start = run.directory.name
        batches = [batch for batch in self._pending.batches(start) if batch <= metadata.batch]
        try:
            files = [file for batch in batches for file in self._pending.of(start, batch)]
            self._publish(files, metadata.batch)
            self._held = max(self._held, metadata.batch)
            self._shown = max(self._shown, newest_of(files))
            for batch in batches:
                self._pending.forget(start, batch)
        except (CaptureIncomplete, SinkMismatch, OSError) as error:
            self._check_owner(run)  # a newer run has moved the pending files aside
            raise CheckpointFailure(
                f"{metadata.name} is complete, but what it covers could not be made visible in {self.path}: {error}",
                hint="The next start of the job does it.",
            ) from error

    def _check_owner(self, run: SinkRun) -> None:
        run.check_owner()
        if self._log.newest() != self._line.number:
            raise Fenced(
                f"A newer run has taken over {self.path}; {run.directory.name} writes no more.",
                hint="This run stops. Readers see nothing of what it wrote since its last checkpoint.",
            )

    def _publish(self, files: Sequence[DataFile], batch: int) -> int:
        """Move files to where readers see them, then list the files; returns how many were moved now."""
        for directory in {(self._root / file.path).parent for file in files}:
            directory.mkdir(parents=True, exist_ok=True)
        moved = [file for file in files if self._pending.show(file, self._root / file.path)]
        # Files that were moved earlier are synced too: the process that moved them may have died before its sync.
        self._visible.sync_directories(directories_of(file.path for file in files))
        if files:
            self._log.commit(files, batch)
        return len(moved)

    # --- the position, and going back to it --------------------------------------------------------------------------

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        del location, start  # each start writes to its own directory
        return _Position(self, directory.name)

    def pin_position(self, start: str, batch: int, pin: Pin) -> dict[str, Json]:
        """The position of a start after ``batch``: the lists of its pending files.

        Raises:
            CaptureIncomplete: a batch has left no list.
        """
        batches = [number for number in self._pending.batches(start) if number <= batch]
        own = self._run is not None and self._run.directory.name == start
        held = self._held if own else min(batches, default=batch) - 1
        for number in range(held + 1, batch + 1):
            if number not in batches:
                raise CaptureIncomplete(
                    f"{self._pending.list_of(start, number)} is not there",
                    hint="The next committed batch can be captured.",
                )
        lists = [pin(self._pending.list_of(start, number), f"{_PINNED}/{number}") for number in batches]
        files = [file for pinned in lists for file in read_list(pinned)]
        return {
            "kind": self.kind,
            "path": self.path,
            "batch": batch,
            "attempt": start,
            "pending_files": len(files),
            "pending_bytes": sum(file.size for file in files),
            "visible_batch": self._shown if own else newest_of(self._log.committed(self._log.line(), batch)),
            **({"others_delete": True} if self.others_delete else {}),
        }

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        self._seen = self._log.line()
        self._gone = self._check(self._seen, position, pinned_files(files / _PINNED))
        gone = sorted(self._gone, key=lambda file: (file.batch, file.path))
        told = told_gone([(f"{self._root / file.path} (batch {file.batch})", file.size) for file in gone], self._root)
        if told and self.others_delete:
            _log.info("%s That is no loss, as others_delete says.", told)
            return ""
        return told

    def _check(self, line: Line, position: Mapping[str, Json], pinned: Sequence[DataFile]) -> frozenset[DataFile]:
        """The files that readers saw by then and that are gone."""
        batch = batch_of(position)
        with believed("The recorded position of the sink", _OTHER, SinkMismatch):
            start = start_name(position["attempt"])
            visible = whole(position.get("visible_batch", -1), "its visible batch", least=-1)
        if start != _FORK and not line.covers(start, batch):
            raise SinkMismatch(
                f"{self.path} was rolled back to before batch {batch} of {start} since, so not all that the "
                "checkpoint covers is there any more.",
                hint="Nothing was touched. Restore the checkpoint it was rolled back to, or a newer one.",
            )
        committed = {file.path: file for file in self._log.committed(line, batch)}
        for file in pinned:
            if file.start != start or file.batch > batch:
                raise SinkMismatch(
                    f"The checkpoint of batch {batch} of {start} lists {self._root / file.path} as of batch "
                    f"{file.batch} of {file.start}, which the sink had not written by then.",
                    hint=_OTHER,
                )
            # In this order: a commit may move the file meanwhile.
            places = (self._pending.staged(file), self._root / file.path)
            if file.path not in committed and file.size not in map(size_of, places):
                raise self._without(file)
        if newest_of(committed.values()) < visible:
            raise SinkMismatch(
                f"{self.path} is an older copy: readers saw what batch {visible} had written, and it is not there.",
                hint=_OTHER,
            )
        sizes = {file: size_of(self._root / file.path) for file in committed.values()}
        if changed := min((file for file, size in sizes.items() if size not in (None, file.size)), default=None):
            raise self._without(changed)
        return frozenset(file for file, size in sizes.items() if size is None)

    def _without(self, file: DataFile) -> SinkMismatch:
        told = f"{self._root / file.path}, which batch {file.batch} had written by then, is gone or has another size."
        return SinkMismatch(told, hint=_OTHER)

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Put the sink back to a position; repeating an interrupted rollback completes it.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
            CheckpointFailure: another start has changed the sink since :meth:`check`; nothing was touched.
            StorageError: the disk failed.
        """
        seen, self._seen = self._seen or self._log.line(), None
        pinned = pinned_files(files / _PINNED)
        if (lost := min(self._check(seen, position, pinned) - self._gone, default=None)) and not self.others_delete:
            raise self._without(lost)
        batch = batch_of(position)
        known = self._starts(seen)
        self._cut = self._log.advance(seen, seen.until(batch), epoch)
        listed = {file.path for file in self._log.listed()}
        completed = self._publish([file for file in pinned if file.path not in listed], batch)
        return _describe(completed, *self._retract(known, self._cut))

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        """Put the sink back to its content before the first batch.

        Raises:
            CheckpointFailure: another start has changed the sink; nothing was touched.
            StorageError: the disk failed.
        """
        del began, first  # the line tells which data belongs to this sink
        seen = self._log.line()
        if seen.epoch > epoch:
            raise CheckpointFailure(
                f"{self.path} was begun by epoch {seen.epoch}, which is newer than {epoch}.",
                hint="Nothing was touched. If no other run writes there, empty it with every hidden directory in it, "
                "and launch with restore_from: none.",
            )
        known = self._starts(seen)
        self._cut = self._log.advance(seen, {}, epoch)
        return _describe(0, *self._retract(known, self._cut))

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position without pending or committed files."""
        position = super().seed(batch, files, session)
        return {**position, "attempt": _FORK, "pending_files": 0, "pending_bytes": 0}

    def newest_batch(self) -> int | None:
        pending = (batch for start in self._pending.starts() for batch in self._pending.batches(start))
        return max([*pending, *(file.batch for file in self._log.committed(self._log.line()))], default=None)

    def first_data(self) -> str | None:
        data = next((str(file) for file in data_files(self._root)), None)
        if data is None and (self._log.newest() or self._pending.starts() or self._log.listed()):
            return str(self._transactions)
        return data

    def _starts(self, line: Line) -> set[str]:
        """Every start that has, or may have, left files here."""
        return {*line.starts, *self._pending.starts(), *self._pending.dropped()}

    def _retract(self, starts: Collection[str], line: Line) -> tuple[int, int]:
        """Remove the files of some starts that ``line`` does not cover; returns the visible files and bytes removed.

        ``starts`` must be read before ``line`` is written. So a process that learns late that it was overtaken removes
        nothing of later starts.
        """

        def is_void(file: DataFile) -> bool:
            return file.start in starts and not line.covers(file.start, file.batch)

        # Pending files go first: from then on, a writer that was wrongly declared dead can make none of them visible.
        dropped = self._pending.drop(starts, is_void)
        void = sorted({file.path for file in (*dropped, *filter(is_void, self._log.listed()))})
        removed = [size for path in void if (size := remove_file(self._root / path)) is not None]
        # The removal must be durable before the record that these files are void is deleted.
        self._visible.sync_directories(directories_of(void))
        self._log.forget(starts, line)
        self._pending.purge(starts)
        return len(removed), sum(removed)


@dataclass(frozen=True, slots=True)
class _Position:
    """Tells the positions of one start."""

    sink: TransactionalFileSink
    start: str

    def look(self, committed: int) -> None:
        """Do nothing: only this start writes to its directory."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        return self.sink.pin_position(self.start, batch, pin)


def _describe(completed: int, removed: int, size: int) -> str:
    told = [f"{completed} pending data files committed"] if completed else []
    told += [f"{removed} data files ({size} bytes) removed"] if removed else []
    return ", ".join(told)
