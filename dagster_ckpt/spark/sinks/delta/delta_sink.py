"""A sink that writes to a Delta table, exact after a crash and after a rollback.

Every commit of the sink carries a *mark*: a transaction of Delta (``txnAppId``, ``txnVersion``) whose version grows
with the epoch of the start and with the batch. Three things follow.

- A start first commits a mark of its own. From then on Delta itself skips or refuses whatever an older start writes,
  even if that start was in the middle of its commit.
- Delta never skips a batch that runs again after a rollback, because the new start's marks are above the old ones.
- The log of the table tells which files are the job's own. A rollback takes these back in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.delta.commits import Rollback, mark_of, marked_batch, marked_epoch
from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import SinkRun, batch_of
from dagster_ckpt.spark.sinks.table_sink import Overtaken, TableSink
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaSink"]

#: Properties of a table, each with the value that does no harm, and what another value does.
_HARMFUL = (
    ("delta.appendOnly", "false", "no rollback could take rows back"),
    ("delta.setTransactionRetentionDuration", None, "the table would forget which run wrote to it last"),
)
_OURS = frozenset({"txnappid", "txnversion"})


class DeltaSink(TableSink):
    """A Delta table: rows are appended, and a restore takes back what the job wrote after the checkpoint.

    .. code-block:: python

        return sink_to(rows, DeltaSink("/data/delays", partition_by=["day"]))

    What other writers change in the table stays. The session needs Delta's jar and extension.

    Args:
        path: the directory or URL of the table. The first start creates the table if there is none.
        partition_by: columns to partition a new table by.
        options: options for Spark's ``DataFrameWriter``, ``mergeSchema`` for example.

    Raises:
        InvalidConfiguration: an option would take the place of the sink's own transactions.
    """

    kind = "delta"
    format = "Delta"

    def __init__(
        self, path: Path | str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> None:
        taken = sorted(name for name in options or {} if name.lower() in _OURS)
        if taken:
            raise InvalidConfiguration(
                f"A DeltaSink sets the option {taken[0]} itself.", hint="Leave txnAppId and txnVersion out of options."
            )
        if isinstance(partition_by, str):
            raise InvalidConfiguration(
                f"A DeltaSink cannot be partitioned by {partition_by!r}.", hint="Give a list of columns."
            )
        super().__init__(str(path).rstrip("/"))
        self._partition_by = tuple(partition_by)
        self._options = dict(options or {})
        self._opened: DeltaTable | None = None
        #: The version of this start's newest commit, -1 before its first.
        self._version = -1
        self._identifier: str | None = None

    def attach(self, job_name: str, rows: DataFrame) -> None:
        super().attach(job_name, rows)
        self._opened, self._version, self._identifier = None, -1, None

    # --- writing -----------------------------------------------------------------------------------------------------

    def begin(self, run: SinkRun) -> None:
        """Claim the table for this start, if a rollback has not done so; a table that is not there is created.

        Raises:
            InvalidConfiguration: the table takes no rows back.
            SinkMismatch: the table has marks of a newer epoch.
        """
        self._run = run
        if self._version < 0:
            self._claim(run.epoch, -1)
        if run.restored is not None:
            batch = batch_of(run.restored)
            RecordedPositions(run.directory).record(batch, self._position(batch, self._version))

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Append one batch, in a commit that carries the mark of the batch.

        Raises:
            Fenced: a newer run has taken the job over; nothing was written.
            RestoreRefused: the query was not started by this library.
            SinkMismatch: a run of the job with another storage has claimed the table; nothing was written.
        """
        run = self.begun(self._run)
        run.check_owner()
        mark = mark_of(run.epoch, batch)
        written_by = json.dumps({"job": self._job, "epoch": run.epoch, "batch": batch})
        options = {"userMetadata": written_by, **self._options}
        self._append(rows, mark, options)
        self._version = self._version_of(mark, run)
        RecordedPositions(run.directory).record(batch, self._position(batch, self._version))

    def _append(self, rows: DataFrame, mark: int, options: Mapping[str, str]) -> None:
        writer = rows.write.format("delta").mode("append").options(**options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.option("txnAppId", self._application).option("txnVersion", mark).save(self._path)

    def _version_of(self, mark: int, run: SinkRun) -> int:
        """The version that has ``mark``; other writers may have committed before it."""
        version = self._version
        while (commit := self._table.commit_of(version := version + 1)) is not None:
            if commit.marks.get(self._application) == mark:
                return version
        run.check_owner()
        raise self._not_ours(self._claimed, run.epoch)

    # --- the position, and going back to it --------------------------------------------------------------------------

    def _position(self, batch: int, version: int) -> dict[str, Json]:
        if self._identifier is None and version >= 0:  # asked once: each batch would wait for a listing
            self._identifier = self._table.identifier
        return {
            "kind": self.kind,
            "path": self._path,
            "batch": batch,
            "version": version,
            "table": self._identifier,
            "application": self._application,
        }

    def check(self, position: Mapping[str, Json], files: Path) -> None:
        """Make sure that the rollback is possible, without a change.

        Raises:
            SinkMismatch: the table is another one, or does not have what the rollback needs, or another writer has
                changed rows that the rollback would take back.
        """
        del files  # `_metadata` holds the whole position
        newest = self._table.version
        self._table.rollback_plan(self._checked(position, newest), newest, self._application)

    def _checked(self, position: Mapping[str, Json], newest: int) -> int:
        """The version of a position, if this table has it."""
        with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
            version = whole(position["version"], "a version", least=-1)
            table = position["table"]
        self._check_application(position)
        if newest < version or (version >= 0 and self._table.identifier != table):
            now = f"a table at version {newest} with the id {self._table.identifier}" if newest >= 0 else "no table"
            raise self._another_table(f"{table} at version {version}", now)
        return version

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Take back all that the job wrote after the position, in one commit that also claims the table.

        Raises:
            SinkMismatch: as :meth:`check`, or a newer start has claimed the table; nothing was touched.
        """
        del files
        batch = batch_of(position)
        version = self._checked(position, self._table.version)
        return self._claim(epoch, batch, version)

    def rollback_to_nothing(self, began: float, epoch: int) -> str:
        """Take back all that the job wrote since a start of it last began with batch 0.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
        """
        del began  # the marks tell
        newest = self._table.version
        if self._table.mark(self._application) is None:
            return ""
        for version in range(newest, -1, -1):
            (commit,) = self._table.commits(version - 1, version)
            mark = commit.marks.get(self._application)
            if mark is not None and marked_batch(mark) < 0:
                return self._claim(epoch, -1, version)
        return ""

    def _claim(self, epoch: int, batch: int, after: int | None = None) -> str:
        """Mark the table for a start that begins after ``batch``, and take back what came after a version, if any."""
        table, mark = self._table, mark_of(epoch, batch)
        if table.version < 0:
            self._create(mark)
            self._version = 0
            return ""
        for name, harmless, why in _HARMFUL:
            if (setting := table.setting(name)) not in (None, harmless):
                raise InvalidConfiguration(
                    f"The Delta table {self._path} has the property {name} = {setting}: {why}.",
                    hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{name}').",
                )

        def plan(newest: int) -> Rollback:
            return table.rollback_plan(newest if after is None else after, newest, self._application)

        try:
            version, done = table.commit(self._application, mark, after or 0, plan)
        except Overtaken as error:
            raise self._not_ours(error.epoch, epoch) from None
        self._version = version
        told = [f"{len(done.removed)} files of later batches removed"] if done.removed else []
        told += [f"{len(done.added)} files put back"] if done.added else []
        return f"{', '.join(told)}, by version {version}" if told else ""

    def _create(self, mark: int) -> None:
        rows = self._attached
        nothing = rows.sparkSession.createDataFrame([], rows.schema).where("false")
        self._append(nothing, mark, self._options)
        if self._table.mark(self._application) != mark:
            raise self._not_ours(self._claimed, marked_epoch(mark))

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position before anything of the fork: the table as it is now."""
        del files, session
        return self._position(batch, self._table.version)

    def newest_batch(self) -> int | None:
        mark = self._table.mark(self._application)
        return None if mark is None or marked_batch(mark) < 0 else marked_batch(mark)

    def first_data(self) -> str | None:
        batch = self.newest_batch()
        return f"batch {batch} of job {self._job!r}" if batch is not None and self._table.has_data else None

    @property
    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self._attached.sparkSession, self._path)
        return self._opened

    @property
    def _claimed(self) -> int:
        """The epoch that has claimed the table."""
        return marked_epoch(self._table.mark(self._application) or 0)
