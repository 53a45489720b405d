"""A sink that writes to a Delta table, exact after a crash and after a rollback.

Every commit of the sink carries a *mark*: a transaction of Delta (``txnAppId``, ``txnVersion``) whose version grows
with the epoch of the start and with the batch. Three things follow.

- A start first commits a mark of its own. An older start finds the mark before it writes its next batch. If the older
  start is in the middle of a commit, Delta refuses the commit, because the job has another mark by then.
- Delta never skips a batch that runs again after a rollback, because the new start's marks are above the old ones.
- The log of the table tells which files are the job's own. A rollback takes these back in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.delta.commits import Rollback, mark_of, marked_batch, marked_epoch
from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import PlainQuery, SinkRun, TakenOver, batch_of
from dagster_ckpt.spark.sinks.table_sink import Overtaken, TableSink
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

__all__ = ["DeltaSink"]

_UNSET = "ALTER TABLE ... UNSET TBLPROPERTIES ('{}')."
_DROP = "ALTER TABLE ... DROP FEATURE `coordinatedCommits-preview`, or write to another table."
#: Properties of a table, each with the value that does no harm, what another value does, and what is done about that.
_HARMFUL = (
    ("delta.appendOnly", "false", "no rollback could take rows back", _UNSET),
    ("delta.setTransactionRetentionDuration", None, "the table would forget which run wrote to it last", _UNSET),
    ("delta.coordinatedCommits.commitCoordinator-preview", None, "its newest commits are kept elsewhere", _DROP),
)
_OURS = frozenset({"txnappid", "txnversion"})
#: Options that ask for something else than rows to be added, unless they say what Delta does anyhow. Delta would ignore
#: most of them in an append.
_NO_APPEND = {"datachange": "true", "overwriteschema": "false", "partitionoverwritemode": "static"}
_REPLACING = "replace"

#: The option with what the table's history shows of a commit.
_METADATA = "userMetadata"
#: Settings by which a session marks the commits of all its writers.
_MARKS_OF_THE_SESSION = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
#: Commits of others that are read before a batch; for more of them, Spark puts the log together.
_MOST_READ = 30


class DeltaSink(TableSink):
    """A Delta table: rows are appended, and a restore takes back what the job wrote after the checkpoint.

    .. code-block:: python

        return sink_to(rows, DeltaSink("/data/delays", partition_by=["day"]))

    What other writers change in the table stays. The session needs Delta's jar and extension.

    Args:
        path: the directory or URL of the table. The first start creates the table if there is none.
        partition_by: columns to partition a new table by.
        options: options for Spark's ``DataFrameWriter``, ``mergeSchema`` for example.
        single_driver: on S3 with Delta's default log store, you make sure that two drivers never write to the table at
            the same time, a run that was declared dead included. Without it such a table is refused.

    Raises:
        InvalidConfiguration: an option would take the place of the sink's own transactions.
    """

    kind = "delta"
    format = "Delta"

    def __init__(
        self,
        path: Path | str,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
        single_driver: bool = False,
    ) -> None:
        given = _as_spark_takes(options or {})
        for name, value in sorted(given.items()):
            if name.lower() in _OURS:
                raise InvalidConfiguration(
                    f"A DeltaSink sets the option {name} itself.", hint="Leave txnAppId and txnVersion out of options."
                )
            asks = value.lower() != _NO_APPEND.get(name.lower(), value.lower())
            if asks or name.lower().startswith(_REPLACING):
                raise InvalidConfiguration(
                    f"A DeltaSink adds rows, and the option {name}={value} asks for something else.",
                    hint="Leave the option out; what is to be replaced is for a ForeachBatchSink.",
                )
        if isinstance(partition_by, str):
            raise InvalidConfiguration(
                f"A DeltaSink cannot be partitioned by {partition_by!r}.", hint="Give a list of columns."
            )
        super().__init__(str(path).rstrip("/"))
        self._partition_by = tuple(partition_by)
        self._options = given
        self._single_driver = single_driver
        self._opened: DeltaTable | None = None
        #: The version of this start's newest commit, -1 before its first.
        self._version = -1
        #: The mark of that commit.
        self._mark = 0
        #: The mark of the job's newest batch in that version, 0 for none.
        self._held = 0
        #: The id of the table that this start has claimed.
        self._identifier: str | None = None

    def attach(self, job_name: str, rows: DataFrame) -> None:
        super().attach(job_name, rows)
        self._opened, self._version, self._mark, self._held, self._identifier = None, -1, 0, 0, None

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
            RecordedPositions(run.directory).record(batch, self._position(batch, self._version, self._held))

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Append one batch, in a commit that carries the mark of the batch.

        Raises:
            Fenced: a newer run has taken the job over; nothing was written.
            RestoreRefused: the query was not started by this library.
            SinkMismatch: a run of the job with another storage has claimed the table, or the table was deleted and
                created again; nothing was written.
        """
        run = self.begun(self._run, batch)
        run.check_owner()
        self._check_same()
        mark = mark_of(run.epoch, batch)
        written_by = json.dumps({"job": self._job, "epoch": run.epoch, "batch": batch})
        self._version = self._table.append(
            rows,
            (self._application, mark),
            {_METADATA: written_by, **self._options},
            self._partition_by,
            partial(self._look, run),
        )
        self._mark = self._held = mark
        RecordedPositions(run.directory).record(batch, self._position(batch, self._version, self._held))

    def _writer(self, rows: DataFrame, options: Mapping[str, str]) -> DataFrameWriter:
        writer = rows.write.format("delta").mode("append").options(**options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def _check_same(self) -> None:
        """Make sure that the table has this start's newest commit. A table that was created again has not.

        Delta removes old commits from the log; the table's id tells then.
        """
        commit = self._table.commit_of(self._version)
        ours = commit is not None and commit.marks.get(self._application) == self._mark
        if not ours and (commit is not None or self._table.identifier != self._identifier):
            raise self._created_again()

    def _created_again(self) -> SinkMismatch:
        return SinkMismatch(
            f"The Delta table {self._path} was deleted and created again while the job wrote to it: it does not have "
            f"version {self._version} of this run.",
            hint="Nothing was written. Put the table back, or write elsewhere and start with restore_from: none.",
        )

    def _look(self, run: SinkRun, newest: int, table: str, newest_mark: Callable[[], int]) -> None:
        """Make sure that the newest mark of the job is this start's.

        CREATE OR REPLACE gives the table another id, and the batch goes into what there is then.

        Args:
            run: this start.
            newest: the newest version; other writers may have made it.
            table: the id of the table.
            newest_mark: has Spark put the whole log together for the newest mark of the job.
        """
        many = newest - self._version > _MOST_READ
        for version in range(self._version + 1, newest + 1):
            commit = None if many else self._table.commit_of(version)
            if commit is None:  # Delta may have removed it from the log
                found, self._identifier = newest_mark(), table
            else:
                found = commit.marks.get(self._application, self._mark)
                self._identifier = commit.table or self._identifier
            if found != self._mark:
                run.check_owner()
                raise self._not_ours(marked_epoch(found), run.epoch)
            if commit is None:
                break
        if newest < self._version or table != self._identifier:
            raise self._created_again()

    # --- the position, and going back to it --------------------------------------------------------------------------

    def _position(self, batch: int, version: int, held: int) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "path": self._path,
            "batch": batch,
            "version": version,
            "mark": held,
            "table": self._identifier or (self._table.identifier if version >= 0 else None),
            "application": self._application,
        }

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        """Make sure that the rollback is possible, without a change.

        Raises:
            SinkMismatch: the table is another one, or does not have what the rollback needs, or another writer has
                changed rows that the rollback would take back.
        """
        del files  # `_metadata` holds the whole position
        newest = self._table.version
        version, held = self._checked(position, newest)
        self._table.rollback_plan(version, newest, self._application, held)
        return ""

    def _checked(self, position: Mapping[str, Json], newest: int) -> tuple[int, int | None]:
        """The version of a position, if this table has it, and the mark; earlier releases have recorded no mark."""
        with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
            version = whole(position["version"], "a version", least=-1)
            held = whole(position["mark"], "a mark", least=0) if "mark" in position else None
            table = position["table"]
        self._check_application(position)
        if newest < version or (version >= 0 and self._table.identifier != table):
            now = f"a table at version {newest} with the id {self._table.identifier}" if newest >= 0 else "no table"
            raise self._another_table(f"{table} at version {version}", now)
        # An older copy, which others have brought past the version since, has an older mark: marks never go back.
        if held is not None and (self._table.mark(self._application) or 0) < held:
            raise self._another_table(
                f"with batch {marked_batch(held)} of this job", "an older copy without that batch"
            )
        return version, held

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Take back all that the job wrote after the position, in one commit that also claims the table.

        Raises:
            SinkMismatch: as :meth:`check`, or a newer start has claimed the table; nothing was touched.
        """
        del files
        batch = batch_of(position)
        return self._claim(epoch, batch, *self._checked(position, self._table.version))

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        """Take back all that the job wrote since a start of it last began with batch 0.

        Until a start of this lineage has claimed the table, nothing of it is there, whatever others have written since.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
        """
        del began  # the marks tell
        if (newest := self._table.mark(self._application)) is None or marked_epoch(newest) < first:
            return ""
        with self._without_checkpoint():
            claim = self._newest_beginning()
            if claim is not None:
                self._table.rollback_plan(claim, self._table.version, self._application)
        return "" if claim is None else self._claim(epoch, -1, claim)

    def _newest_beginning(self) -> int | None:
        """The version of the newest claim before batch 0, ``None`` if the job has written nothing since."""
        table, nothing = self._table, self.newest_batch() is None
        for version in range(table.version, -1, -1):
            if nothing and table.commit_of(version) is None:
                break  # the log goes back no more to the claim
            (commit,) = table.commits(version - 1, version)
            mark = commit.marks.get(self._application)
            if mark is not None and marked_batch(mark) < 0:
                return version
        return None

    @contextmanager
    def _without_checkpoint(self) -> Iterator[None]:
        """Refuse by the way on of a lineage that has no checkpoint to restore instead."""
        try:
            yield
        except SinkMismatch as error:
            raise SinkMismatch(
                error.message,
                hint="Nothing was touched, and the job has no checkpoint to go back to. To begin anew, "
                f"{self.to_empty} or write elsewhere, and launch with restore_from: none.",
            ) from error

    def _claim(self, epoch: int, batch: int, after: int | None = None, held: int | None = None) -> str:
        """Mark the table for a start that begins after ``batch``, and take back what came after a version, if any."""
        table, mark = self._table, mark_of(epoch, batch)
        for name in _MARKS_OF_THE_SESSION:
            if self._attached.sparkSession.conf.get(name, None) is not None:
                raise InvalidConfiguration(
                    f"The session has {name} set, which puts marks into the commits of {self._path} that the job does "
                    "not know.",
                    hint=f"Unset {name}: the sink sets marks of its own.",
                )
        # What is not known to be the same as at an earlier mark gets a mark of its own.
        holds = mark if held is None else held
        if table.version < 0:
            self._create()
        for name, harmless, why, mend in _HARMFUL:
            if (setting := table.setting(name)) not in (None, harmless):
                raise InvalidConfiguration(
                    f"The Delta table {self._path} has the property {name} = {setting}: {why}.",
                    hint=mend.format(name),
                )

        def plan(newest: int) -> Rollback:
            return table.rollback_plan(newest if after is None else after, newest, self._application, held)

        try:
            version, done = table.commit(self._application, mark, holds, after or 0, plan)
        except Overtaken as error:
            raise self._not_ours(error.epoch, epoch) from None
        self._version, self._mark, self._held = version, mark, holds
        self._identifier = table.identifier  # asked once: each batch would wait for a listing
        told = [f"{len(done.removed)} files of later batches removed"] if done.removed else []
        told += [f"{len(done.added)} files put back"] if done.added else []
        return f"{', '.join(told)}, by version {version}" if told else ""

    def _create(self) -> None:
        """Create the table, empty, unless another start is faster."""
        rows = self._attached
        nothing = rows.sparkSession.createDataFrame([], rows.schema).where("false")
        try:
            self._writer(nothing, self._options).save(self._path)
        except Exception:
            if self._table.version < 0:
                raise

    def take_over(self, query: PlainQuery, files: Path) -> TakenOver | None:
        """This table after the last batch of a query of plain Spark that wrote to it with ``format("delta")``.

        Such a query leaves a mark, too: its id with its newest batch. Without this mark, or with one of an earlier
        batch, it is not known what the table has of the query. With the mark of the batch in flight, that batch would
        be written a second time. The answer is ``None`` then.

        Raises:
            SinkMismatch: the table has a batch that the query has not planned.
        """
        del files
        version = self._table.version
        newest = self._table.mark(query.query_id)
        if newest is not None and newest > query.newest:
            raise SinkMismatch(
                f"The Delta table {self._path} has batch {newest} of the query, and the query has come to batch "
                f"{query.newest}.",
                hint="Nothing was touched. Name the checkpointLocation as the query has left it, and no older copy.",
            )
        if newest != query.batch:
            return None
        return TakenOver(self._position(query.batch, version, self._table.held(self._application)))

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position before anything of the fork: the table as it is now."""
        del files, session
        return self._position(batch, self._table.version, self._table.held(self._application))

    def newest_batch(self) -> int | None:
        mark = self._table.mark(self._application)
        return None if mark is None or marked_batch(mark) < 0 else marked_batch(mark)

    def first_data(self) -> str | None:
        batch = marked_batch(self._table.held(self._application))  # a claim that has held no batch is no data
        return f"batch {batch} of job {self._job!r}" if batch >= 0 and self._table.has_data else None

    @property
    def _table(self) -> DeltaTable:
        if self._opened is None:
            opened = DeltaTable(self._attached.sparkSession, self._path)
            if not self._single_driver:
                opened.check_log_store()
            self._opened = opened
        return self._opened


def _as_spark_takes(options: Mapping[str, object]) -> dict[str, str]:
    """The options of a writer as Spark's own writer takes them: as text, whatever the case of a name."""
    taken = {}
    for name, value in options.items():
        if value is not None:
            key = _METADATA if name.lower() == _METADATA.lower() else name
            taken[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return taken
