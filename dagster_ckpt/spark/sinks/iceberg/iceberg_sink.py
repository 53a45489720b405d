"""A sink that writes to an Iceberg table, exact after a crash and after a rollback.

Every snapshot of the sink has a *mark* in its summary: the job, the start, its epoch and the batch. Each start first
claims the table by a snapshot of its own. A commit replaces exactly the metadata that the sink has looked at, and only
if the job's newest snapshot there is the one that this start made last. So the catalog refuses whatever an older start
commits, even if that start was in the middle of its commit.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointFailure, InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.iceberg.change import Branch, Change
from dagster_ckpt.spark.sinks.iceberg.lineage import NOTHING, History, Mark
from dagster_ckpt.spark.sinks.iceberg.rollback import Needed, Rollback, plan_rollback, plan_rollback_to_nothing
from dagster_ckpt.spark.sinks.iceberg.table import IcebergTable
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import SinkRun, batch_of
from dagster_ckpt.spark.sinks.table_sink import Overtaken, TableSink
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergSink"]

_log = logging.getLogger(__name__)

#: Options of Spark's writer that the sink decides itself, or that staged files do not have.
_NOT_TAKEN = frozenset({"branch", "isolation-level", "merge-schema", "mergeschema", "overwrite-mode"})
_PROPERTY = "snapshot-property."
#: How the name of a table ends that stands for one of its branches or tags.
_REFERENCE = re.compile(r"\.`?(branch|tag)_[^.]*$", re.IGNORECASE)
_RECORDED = "The recorded position of the sink", "Restore another checkpoint.", SinkMismatch


def _snapshot_of(position: Mapping[str, Json]) -> int | None:
    snapshot = position.get("snapshot")
    return snapshot if isinstance(snapshot, int) else None


def _told(snapshot: int | None) -> int:
    """A snapshot as a mark has it."""
    return NOTHING if snapshot is None else snapshot


class IcebergSink(TableSink):
    """An Iceberg table: rows are appended, and a restore takes back what the job wrote after the checkpoint.

    .. code-block:: python

        return sink_to(rows, IcebergSink("lake.flights.delays"))

    Rows that others append to the table stay. The session needs Iceberg's jar and the catalog.

    Args:
        table: the name of the table, with that of its catalog. The first start creates the table if there is none.
        partition_by: columns to partition a new table by. Create the table yourself for other transforms.
        options: options for Spark's ``DataFrameWriter``, ``target-file-size-bytes`` for example.
        keep_snapshots: keep the snapshots since the oldest retained checkpoint from expiring, by a branch of the table.

    Raises:
        InvalidConfiguration: the sink does not take an option, or the name is that of a branch or a tag.
    """

    kind = "iceberg"
    format = "Iceberg"

    def __init__(
        self,
        table: str,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        keep_snapshots: bool = True,
    ) -> None:
        taken = sorted(name for name in options or {} if name.lower() in _NOT_TAKEN)
        if taken:
            raise InvalidConfiguration(
                f"An IcebergSink does not take the option {taken[0]}.",
                hint="Leave the option out. Add a column by ALTER TABLE; the sink appends to the branch main.",
            )
        if isinstance(partition_by, str):
            raise InvalidConfiguration(
                f"An IcebergSink cannot be partitioned by {partition_by!r}.", hint="Give a list of columns."
            )
        if _REFERENCE.search(table):
            raise InvalidConfiguration(
                f"An IcebergSink cannot write to {table}: to Iceberg, the last part names a branch or a tag.",
                hint="Name the table alone; the sink appends to the branch main. Rename a table whose name ends so.",
            )
        super().__init__(table)
        self._partition_by = tuple(partition_by)
        given = dict(options or {})
        self._properties = {
            name.removeprefix(_PROPERTY): value for name, value in given.items() if name.startswith(_PROPERTY)
        }
        self._options = {name: value for name, value in given.items() if not name.startswith(_PROPERTY)}
        self._keep_snapshots = keep_snapshots
        self._opened: IcebergTable | None = None
        #: Tells the snapshots of this start from those of others.
        self._token = ""
        self._lineage = ""
        #: The newest snapshot of this start, ``None`` before its first.
        self._newest: int | None = None
        #: The id of the table that has this snapshot.
        self._identifier: str | None = None
        #: The snapshot whose rows of the job the table has, ``None`` for none; it is older than a claim.
        self._holds: int | None = None
        #: What a restart before the first checkpoint goes back to.
        self._began: int | None = None
        self._needed = Needed("")

    def attach(self, job_name: str, rows: DataFrame) -> None:
        super().attach(job_name, rows)
        self._opened, self._newest, self._token, self._lineage = None, None, secrets.token_hex(8), ""
        self._needed = Needed(job_name)

    def adopt(self, job_id: str) -> None:
        self._lineage = job_id

    # --- writing -----------------------------------------------------------------------------------------------------

    def begin(self, run: SinkRun) -> None:
        """Claim the table for this start, if a rollback has not done so; a table that is not there is created.

        Raises:
            InvalidConfiguration: the sink cannot write to a table of this format, or batches were to be published by
                somebody else.
            SinkMismatch: the table was claimed by a newer epoch.
        """
        if self._newest is None:
            self._claim(run.epoch, -1)
        if run.restored is not None:
            self._record(run, batch_of(run.restored))
        self._began = self._holds
        self._run = run

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Append one batch, in a snapshot that carries the mark of the batch.

        A batch that this start has written is not written again.

        Raises:
            Fenced: a newer run has taken the job over; nothing was written.
            RestoreRefused: the query was not started by this library.
            SinkMismatch: another start has claimed the table, or the table was set back; nothing was written.
        """
        run = self.begun(self._run, batch)
        run.check_owner()
        # Staging takes long, and a later start may attach this sink meanwhile, while a thread of this start lives on.
        mark, last = replace(self._mark(run.epoch, batch), before=_told(self._holds)), self._newest
        files = self._table.stage(rows, self._options)

        def plan(history: History, *, with_branch: bool) -> Change | int:
            newest, found = history.newest_of(self._job)
            if newest is not None and found == mark:
                return newest
            if newest != last:
                run.check_owner()
                raise self._set_back() if found is None or found.epoch <= run.epoch else Overtaken(found.epoch)
            summary = {**self._properties, **mark.summary(self._job)}
            return Change(summary, files, branch=self._branch(run, history) if with_branch else None)

        try:
            try:
                self._newest, self._identifier = self._table.commit(partial(plan, with_branch=True))
            except CheckpointFailure as error:
                self._newest, self._identifier = self._table.commit(partial(plan, with_branch=False))
                _log.warning(
                    "Batch %d is in the Iceberg table %s, but not in its branch %s: %s. Until a batch moves the "
                    "branch, snapshots that retained checkpoints need may expire. Leave the name to the job; if the "
                    "catalog has no branches, write by IcebergSink(..., keep_snapshots=False).",
                    batch,
                    self._path,
                    self._branch_name,
                    error.message,
                )
        except Overtaken as error:
            raise self._not_ours(error.epoch, run.epoch) from None
        self._needed.written_after(self._holds)
        self._holds = self._newest
        self._record(run, batch)

    @property
    def _branch_name(self) -> str:
        return f"dagster_ckpt_{self._job}"

    def _branch(self, run: SinkRun, history: History) -> Branch:
        """The branch that has what retained checkpoints need; it moves with each batch, in the same commit."""
        if not self._keep_snapshots:
            return Branch(self._branch_name, None)
        positions = (checkpoint.sink for checkpoint in run.retained())
        own = (each for each in positions if each and (each.get("kind"), each.get("path")) == (self.kind, self._path))
        return Branch(self._branch_name, self._needed.of([*map(_snapshot_of, own), self._began], history))

    def _mark(self, epoch: int, batch: int) -> Mark:
        return Mark(self._token, epoch, batch, self._lineage)

    def _set_back(self) -> SinkMismatch:
        return SinkMismatch(
            f"The current snapshot of the Iceberg table {self._path} does not come from snapshot {self._newest}, this "
            "run's newest: somebody has set the table back or replaced it.",
            hint="Nothing was written. Set the table to that snapshot again, or launch from a checkpoint whose "
            "snapshot the table still has.",
        )

    def _record(self, run: SinkRun, batch: int) -> None:
        RecordedPositions(run.directory).record(batch, self._position(batch, self._holds, self._identifier))

    # --- the position, and going back to it --------------------------------------------------------------------------

    def _position(self, batch: int, snapshot: int | None, table: str | None) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "path": self._path,
            "batch": batch,
            "snapshot": snapshot,
            "table": table,
            "application": self._application,
        }

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        """Make sure that the rollback is possible, without a change.

        Raises:
            SinkMismatch: the table is another one, a snapshot has expired, or the rollback would lose what another
                writer did.
        """
        del files  # `_metadata` holds the whole position
        self._table.check(plan_rollback(self._table.history(), self._checked(position), self._job))
        return ""

    def _checked(self, position: Mapping[str, Json]) -> int | None:
        """The snapshot of a position, if this is its table."""
        with believed(*_RECORDED):
            given, table = position["snapshot"], position["table"]
            snapshot = None if given is None else whole(given, "a snapshot")
        self._check_application(position)
        identifier = self._table.identifier
        if table is not None and identifier != table:
            now = "no table" if identifier is None else f"a table with the id {identifier}"
            raise self._another_table(f"{table} at snapshot {snapshot}", now)
        return snapshot

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Take back all that the job wrote after the position, in one commit that also claims the table.

        Raises:
            SinkMismatch: as :meth:`check`, or a newer start has claimed the table; nothing was touched.
        """
        del files
        snapshot = self._checked(position)
        return self._claim(
            epoch, batch_of(position), lambda history: plan_rollback(history, snapshot, self._job), held=snapshot
        )

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        """Take back all that the lineage wrote, in one commit that also claims the table.

        Raises:
            SinkMismatch: as :meth:`rollback_to`; nothing was touched.
        """
        del began, first  # the marks tell
        return self._claim(epoch, -1, lambda history: plan_rollback_to_nothing(history, self._job, self._lineage))

    def _claim(
        self,
        epoch: int,
        batch: int,
        undo: Callable[[History], Rollback] = lambda _: Rollback(),
        *,
        held: int | None = None,
    ) -> str:
        """Make a snapshot for a start that begins after ``batch``, and take back what ``undo`` says.

        Args:
            epoch: of the start.
            batch: the batch before its first.
            undo: tells what is taken back.
            held: the snapshot that the start goes back to, ``None`` for the table before its first.
        """
        table = self._table
        if not table.exists:
            table.create(self._attached, self._partition_by)
        table.check_format()
        table.check_unpublished()
        mark = replace(self._mark(epoch, batch), held=_told(held))
        done = Rollback()

        def plan(history: History) -> Change | int:
            nonlocal done
            newest, found = history.newest_of(self._job)
            if newest is not None and found == mark:
                return newest
            if found is not None and found.epoch >= epoch:
                raise Overtaken(found.epoch)
            done = undo(history)
            return Change(mark.summary(self._job, is_first=newest is None), rollback=done)

        try:
            self._newest, self._identifier = table.commit(plan)
        except Overtaken as error:
            raise self._not_ours(error.epoch, epoch) from None
        self._holds = held
        if done.to is not None:
            return f"set back to snapshot {done.to}, by snapshot {self._newest}"
        return f"files of {len(done.undone)} snapshots removed, by snapshot {self._newest}" if done.undone else ""

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position before anything of the fork: the table as it is now."""
        del files, session
        return self._position(batch, self._table.history().head, self._table.identifier)

    def newest_batch(self) -> int | None:
        mark = self._table.history().newest_of(self._job)[1]
        return None if mark is None or mark.batch < 0 else mark.batch

    def first_data(self) -> str | None:
        batch = self.newest_batch()
        is_there = batch is not None and self._table.has_data and self._table.history().may_hold_rows_of(self._job)
        return f"batch {batch} of job {self._job!r}" if is_there else None

    @property
    def _table(self) -> IcebergTable:
        if self._opened is None:
            self._opened = IcebergTable(self._attached.sparkSession, self._path)
        return self._opened
