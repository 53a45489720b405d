"""A table of PostgreSQL whose rows, position and epoch are written in one transaction.

A batch takes two steps. Spark's tasks copy the rows side by side into a staging table that nobody reads. Then the
driver, in one transaction, locks the sink's entry in the ledger, checks that the entry names this start, moves the
rows, and writes the batch into the entry. A takeover changes the entry in the same way, together with the removal of
later rows. So whatever a start does after it was taken over, at whichever step it was stopped, changes no row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointFailure, Fenced, InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.postgres.database import FORGET, Conninfo, Database, Table
from dagster_ckpt.spark.sinks.postgres.ledger import Entry, Ledger
from dagster_ckpt.spark.sinks.postgres.staging import Staging, sweep
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import BatchSink, PositionReader, SinkRun, SinkStart, batch_of
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresSink"]

_OTHER = "Nothing was touched. Restore another checkpoint; `dagster-ckpt list` shows them."
#: The start that a fork's first position names has written nothing to this sink.
_FORK = "fork-"


class PostgresSink(BatchSink):
    """A table of PostgreSQL to which each batch appends its rows, exact after every restore.

    .. code-block:: python

        return sink_to(rows, PostgresSink("host=db dbname=flights user=job", "public.delays"))

    Args:
        conninfo: a connection string or URL of libpq, or a function that makes one for each connection, for example
            with a password that changes. Spark's workers connect, too.
        table: the table, as ``schema.table``; the schema is ``public`` if it is not named. The table has a column for
            each column of the query.
        batch_column: a column of the table, ``bigint``, for the number of the batch that wrote the row.

    Raises:
        InvalidConfiguration: psycopg is not installed, or the name is not that of a table.
    """

    kind = "postgres"
    can_skip_a_batch = True
    #: Seconds after which PostgreSQL ends the session of a driver that was stopped inside a transaction.
    patience = 30.0

    def __init__(self, conninfo: Conninfo, table: str, *, batch_column: str = "batch") -> None:
        schema, dot, name = table.partition(".")
        if not schema or "." in name or (dot and not name) or "%" in table + batch_column:
            raise InvalidConfiguration(
                f"{table!r} with column {batch_column!r} is not the name of a table for a PostgresSink.",
                hint="Name the table as schema.table, without a percent sign.",
            )
        self._table = Table(schema, name, batch_column) if dot else Table("public", schema, batch_column)
        self._database = Database(conninfo, self._table)
        self._ledger = Ledger(self._table, self.patience)
        self._run: SinkRun | None = None
        self._job_id = ""
        #: How often the sink had been taken over when a position was checked, and after the rollback that followed.
        self._seen: int | None = None
        self._cut: int | None = None
        #: The newest batch that has written a row, -1 for none.
        self._filled = -1

    @classmethod
    def of_record(cls, path: str) -> None:
        """``None``: no record holds the way to the database."""
        del path

    @property
    def path(self) -> str:
        return str(self._table)

    @property
    def to_empty(self) -> str:
        rows = self._table.shown("DELETE FROM {table} WHERE {batch} IS NOT NULL")
        return f"run {rows} and {self._table.shown(FORGET)}"

    # --- writing -----------------------------------------------------------------------------------------------------

    def adopt(self, job_id: str) -> None:
        self._job_id = job_id
        self._cut = None

    def begin(self, run: SinkRun) -> None:
        """Enter the start into the ledger: from now on the database takes rows of this start alone.

        Raises:
            CheckpointFailure: the database failed, or another start has changed the sink since.
            InvalidConfiguration: the table cannot be written.
        """
        cut, self._cut, self._run = self._cut, None, None
        after = -1 if run.restored is None else batch_of(run.restored)
        skips = False
        with self._database.connected() as connection:
            self._database.inspect(connection)
            self._database.refuse_shared(connection)
            self._ledger.create(connection)
            with self._ledger.locked(connection) as entry:
                if (None if entry is None else entry.takeover) != cut:
                    raise self._overtaken()
                if entry is not None:
                    # A repartition of the state has taken the number of a batch, which counts as one without rows.
                    skips, newest = entry.batch < after, max(entry.batch, after)
                    begun = replace(entry, epoch=run.epoch, start=run.directory.name, batch=newest)
                    self._ledger.update(connection, begun)
                elif not self._ledger.insert(connection, Entry(self._job_id, run.epoch, 0, run.directory.name, -1, [])):
                    raise self._overtaken()
            sweep(connection, self._table)
        self._filled = -1 if run.restored is None else _filled(run.restored)
        if run.restored is not None:
            own = self._position(after, run.directory.name, self._filled)
            RecordedPositions(run.directory).record(after, own if skips else run.restored)
        self._run = run

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch, whole or not at all.

        Raises:
            Fenced: a newer run has taken the job over; nothing was written.
            CheckpointFailure: the database failed.
            InvalidConfiguration: the table is gone, or its columns are not those of the query.
            RestoreRefused: the query was not started by this library.
            SinkMismatch: PostgreSQL has lost an earlier batch.
        """
        run = self.begun(self._run, batch)
        run.check_owner()
        staging = Staging(self._database, run.epoch, rows)
        with self._database.connected() as connection:
            self._database.inspect(connection)
            self._database.check_columns(connection, rows.columns)
            staging.create(connection)
        copied = staging.fill()
        with self._database.connected() as connection:
            with self._ledger.locked(connection) as found:
                entry = self._admitted(found, run, batch)
                if batch <= entry.batch:
                    self._remove_after(connection, batch - 1)
                staging.move(connection, copied, batch)
                self._ledger.update(connection, replace(entry, batch=batch))
            staging.drop(connection)
        if any(count for _, count in copied):
            self._filled = batch
        RecordedPositions(run.directory).record(batch, self._position(batch, run.directory.name, self._filled))

    def _admitted(self, entry: Entry | None, run: SinkRun, batch: int) -> Entry:
        """The entry, if it lets this start write this batch."""
        if entry is None or entry.start != run.directory.name:
            now = "nobody" if entry is None else f"epoch {entry.epoch} of lineage {entry.job_id}"
            raise Fenced(
                f"{self.path} is written by {now}, and no longer by {run.directory.name}; batch {batch} was not "
                "written.",
                hint="This run stops. A newer run has taken the job over, or another job was given this table.",
            )
        if batch > entry.batch + 1:
            raise SinkMismatch(
                f"{self.path} holds batches up to {entry.batch}, and the next one is {batch}: PostgreSQL has lost what "
                "it had committed.",
                hint="If PostgreSQL failed over to a copy that was behind, or was restored from a backup, restore a "
                f"checkpoint of batch {entry.batch} or an earlier one; `dagster-ckpt list` shows them.",
            )
        return entry

    def _remove_after(self, connection: Connection, batch: int) -> int:
        """Delete the rows of later batches; returns how many there were.

        Raises:
            SinkMismatch: PostgreSQL keeps such a row; the transaction of the caller is rolled back.
        """
        removed = connection.execute(self._table.statement("DELETE FROM {table} WHERE {batch} > %s"), (batch,)).rowcount
        left = self._table.statement("SELECT {batch} FROM {table} WHERE {batch} > %s LIMIT 1")
        if (row := connection.execute(left, (batch,)).fetchone()) is not None:
            raise SinkMismatch(
                f"{self.path} keeps rows of batch {row[0]} that were deleted to go back to batch {batch}: a trigger or "
                "a rule of the table prevents it.",
                hint="Nothing was touched. In psql, "
                + self._table.shown("\\d+ {table}")
                + " shows the triggers and rules. "
                "Let the job's role delete, and launch the job again.",
            )
        return removed

    # --- the position, and going back to it --------------------------------------------------------------------------

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        del location, start  # the database has taken rows of this start alone
        return RecordedPositions(directory)

    def _position(self, batch: int, start: str, filled: int) -> dict[str, Json]:
        return {"kind": self.kind, "path": self.path, "batch": batch, "start": start, "filled": filled}

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        """Make sure that the table and its entry in the ledger hold the batch of a position.

        Raises:
            SinkMismatch: they do not, or one of them is gone.
            InvalidConfiguration: the table cannot be written.
            CheckpointFailure: the database failed.
        """
        del files  # `_metadata` holds the whole position
        with self._database.connected() as connection:
            self._database.inspect(connection, SinkMismatch)
            self._database.refuse_shared(connection)
            entry = self._ledger.read(connection)
            self._check(connection, entry, position)
        self._seen = None if entry is None else entry.takeover
        return ""

    def _check(self, connection: Connection, entry: Entry | None, position: Mapping[str, Json]) -> None:
        batch, filled = batch_of(position), _filled(position)
        start = _start(position)
        if entry is None and start.startswith(_FORK):
            self._refuse_rows(connection)
            return
        if entry is None:
            raise SinkMismatch(
                f"{self._table.ledger} has no entry for {self.path}, of which the checkpoint covers batch {batch}.",
                hint="Nothing was touched. Put the table and its entry back from one backup, or start from nothing "
                "into an empty table with restore_from: none.",
            )
        if not entry.covers(start, batch):
            raise SinkMismatch(
                f"{self.path} holds batches up to {entry.batch} of lineage {entry.job_id}, and not batch {batch} of "
                f"{start}.",
                hint="Nothing was touched. The table was rolled back to an earlier batch since, or PostgreSQL has lost "
                "the batch, or another job writes to the table. Restore the checkpoint that it was rolled back to, or "
                "one from before what is lost; `dagster-ckpt list` shows them.",
            )
        if filled > entry.pruned and not self._has_row(connection, filled):
            raise SinkMismatch(
                f"{self.path} has no row of batch {filled} any more, which had written rows.",
                hint=f"Nothing was touched. Put the table back; or, if rows up to batch {filled} were deleted on "
                f"purpose, set `pruned` to {filled} in {self._table.ledger}.",
            )

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Put the table back to a position, and close it to every earlier start, in one transaction.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
            CheckpointFailure: the database failed, or another start has changed the sink since :meth:`check`.
        """
        del files
        batch, start = batch_of(position), _start(position)
        with self._database.connected() as connection:
            self._ledger.create(connection)
            with self._ledger.locked(connection) as entry:
                if (None if entry is None else entry.takeover) != self._seen:
                    raise self._overtaken()
                self._check(connection, entry, position)
                if entry is not None:
                    return self._take_over(connection, entry, batch, entry.until(batch), epoch)
                if not self._ledger.insert(connection, Entry(self._job_id, epoch, 0, None, batch, [(start, batch)])):
                    raise self._overtaken()
        self._cut = 0
        return ""

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        """Remove what this lineage has written, and close the table to every earlier start.

        Raises:
            SinkMismatch: another lineage writes to the table; nothing was touched.
            Fenced: a newer start of this lineage writes to the table.
            CheckpointFailure: the database failed.
        """
        del began, first  # the ledger tells whose the rows are
        with self._database.connected() as connection:
            self._database.inspect(connection)
            self._ledger.create(connection)
            with self._ledger.locked(connection) as entry:
                if entry is None:
                    self._refuse_rows(connection)
                    return ""
                if entry.job_id != self._job_id:
                    raise SinkMismatch(
                        f"{self.path} is written by lineage {entry.job_id} (epoch {entry.epoch}), and not by lineage "
                        f"{self._job_id} of this job.",
                        hint=f"Nothing was touched. Give this job another table; or, if no other job writes to "
                        f"{self.path}, {self.to_empty}.",
                    )
                if entry.epoch > epoch:
                    raise Fenced(
                        f"{self.path} is written by epoch {entry.epoch}, which is newer than {epoch}.",
                        hint="This run stops, and has changed nothing.",
                    )
                return self._take_over(connection, entry, -1, [], epoch)

    def _take_over(
        self, connection: Connection, entry: Entry, batch: int, line: Sequence[tuple[str, int]], epoch: int
    ) -> str:
        # Also where the ledger knows of none: of a backup, the ledger may be older than the table.
        removed = self._remove_after(connection, batch)
        self._cut = entry.takeover + 1
        closed = replace(
            entry, job_id=self._job_id, epoch=epoch, takeover=self._cut, start=None, batch=batch, line=line
        )
        self._ledger.update(connection, closed)
        return f"{removed} rows of batches after {batch} removed from {self.path}" if removed else ""

    def _overtaken(self) -> CheckpointFailure:
        return CheckpointFailure(
            f"Another start has taken {self.path} over since this one looked at the table.",
            hint="Nothing was touched. The job tries again by its restart strategy; if it repeats, another job writes "
            "to the table.",
        )

    # --- what is in the table ----------------------------------------------------------------------------------------

    def newest_batch(self) -> int | None:
        with self._database.connected() as connection:
            entry = self._ledger.read(connection)
        return None if entry is None or entry.batch < 0 else entry.batch

    def first_data(self) -> str | None:
        with self._database.connected() as connection:
            self._database.inspect(connection)
            entry = self._ledger.read(connection)
            if entry is not None:
                return f"an entry of lineage {entry.job_id} in {self._table.ledger}"
            return self._first_row(connection)

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        del files, session
        return self._position(batch, f"{_FORK}{uuid.uuid4().hex[:8]}", -1)

    def _refuse_rows(self, connection: Connection) -> None:
        if (present := self._first_row(connection)) is not None:
            raise SinkMismatch(
                f"{self.path} has {present}, and {self._table.ledger} has no entry for the table.",
                hint=f"Nothing was touched. If nobody needs the rows, {self.to_empty}.",
            )

    def _first_row(self, connection: Connection) -> str | None:
        some = self._table.statement("SELECT {batch} FROM {table} WHERE {batch} IS NOT NULL LIMIT 1")
        row = connection.execute(some).fetchone()
        return None if row is None else f"a row of batch {row[0]}"

    def _has_row(self, connection: Connection, batch: int) -> bool:
        of_batch = self._table.statement("SELECT 1 FROM {table} WHERE {batch} = %s LIMIT 1")
        return connection.execute(of_batch, (batch,)).fetchone() is not None


def _start(position: Mapping[str, Json]) -> str:
    with believed("The recorded position of the sink", _OTHER, SinkMismatch):
        return str(position["start"])


def _filled(position: Mapping[str, Json]) -> int:
    with believed("The recorded position of the sink", _OTHER, SinkMismatch):
        return whole(position["filled"], "its newest batch with rows", least=-1)
