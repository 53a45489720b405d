"""What the sinks of table formats share: the session of the query reads and writes the table, and the table names jobs.

A start first *claims* the table by a commit of its own. The format refuses what an older start commits afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from dagster_ckpt.errors import CheckpointError, CheckpointFailure, RestoreRefused, SinkMismatch
from dagster_ckpt.shown_text import first_line_of_java
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import BatchSink, PositionReader, SinkRun, SinkStart
from dagster_ckpt.stored_json import Json, believed, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Overtaken", "TableSink", "explained"]


class Overtaken(Exception):
    """Another start has claimed the table; nothing was written.

    Attributes:
        epoch: the epoch of that start.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


class _Table(Protocol):
    """A table of a format, by its path or name."""

    format: str
    path: str


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")
_Of = TypeVar("_Of", bound=_Table)


def explained(method: Callable[Concatenate[_Of, _Given], _Found]) -> Callable[Concatenate[_Of, _Given], _Found]:
    """A method whose errors of the table format and its storage name the table."""

    @functools.wraps(method)
    def explaining(table: _Of, /, *given: _Given.args, **named: _Given.kwargs) -> _Found:
        try:
            return method(table, *given, **named)
        except (CheckpointError, Overtaken):
            raise
        except Exception as error:
            raise CheckpointFailure(
                f"The {table.format} table {table.path} could not be used: {first_line_of_java(error)}",
                hint="Make the table reachable; the job's restart strategy tries again. If this was in the middle of a "
                "commit, the table may have it: the next start looks, and takes back what no checkpoint covers.",
            ) from error

    return explaining


class TableSink(BatchSink):
    """A table of a format.

    Args:
        path: the path or the name of the table.

    Attributes:
        format: the name of the format, for people.
    """

    format: str
    #: A mark has to be above the earlier ones, and need not follow the one before.
    can_skip_a_batch = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._job = ""
        self._rows: DataFrame | None = None
        self._run: SinkRun | None = None

    @classmethod
    def of_record(cls, path: str) -> None:
        """Nothing: the table is read with the session of the query."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def to_empty(self) -> str:
        return f"delete all rows of {self._path} by DELETE FROM"

    def attach(self, job_name: str, rows: DataFrame) -> None:
        self._job, self._rows, self._run = job_name, rows, None

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        del location, start
        return RecordedPositions(directory)

    @property
    def _application(self) -> str:
        return f"dagster_ckpt:{self._job}"

    @property
    def _attached(self) -> DataFrame:
        if self._rows is None:
            raise RestoreRefused(
                f"The {self.format} table {self._path} can be looked at only with the query of its job.",
                hint="Return the writer of sink_to() from the function of a checkpointed streaming asset.",
            )
        return self._rows

    def _check_application(self, position: Mapping[str, Json]) -> None:
        """Make sure that a position is of this job: the commits in the table name the job.

        Raises:
            SinkMismatch: the position is of a job with another name.
        """
        with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
            application = text(position["application"], "an application")
        if application != self._application:
            raise SinkMismatch(
                f"The checkpoint was taken of {application!r}, and this is {self._application!r}: nobody can tell the "
                f"rows of the two in the {self.format} table {self._path} apart.",
                hint="Launch under the earlier name, or begin with fork_from and a table of its own.",
            )

    def _another_table(self, was: str, now: str) -> SinkMismatch:
        return SinkMismatch(
            f"{self._path} was the {self.format} table {was} when the checkpoint was taken, and now there is {now}.",
            hint="Nothing was touched. Put the table back, or write elsewhere and start from nothing with "
            "restore_from: none.",
        )

    def _not_ours(self, claimed: int, epoch: int) -> SinkMismatch:
        return SinkMismatch(
            f"The {self.format} table {self._path} was claimed by epoch {claimed} of job {self._job!r}, and this run "
            f"has epoch {epoch}.",
            hint="Nothing was written. If a newer run has taken the job over, nothing is to be done. If the job's "
            "storage was emptied or changed, launch with the storage of that run, or give the job another name.",
        )
