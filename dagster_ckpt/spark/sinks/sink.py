"""What a sink must be able to do for checkpoints to cover it: tell its position, and go back to a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration, RestoreRefused, SinkMismatch
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "BatchSink",
    "Pin",
    "PlainQuery",
    "PositionReader",
    "Sink",
    "SinkRun",
    "SinkStart",
    "TakenOver",
    "attached_sink",
    "batch_of",
    "refusal_of_batch",
    "sink_to",
]

#: Pins a file of the sink under a name in the checkpoint's ``sink/``; returns the path where its bytes stay unchanged.
Pin: TypeAlias = Callable[[Path, str], Path]

_ATTRIBUTE = "dagster_ckpt_sink"
_REFUSALS = "dagster_ckpt_refusals"


def batch_of(position: Mapping[str, Json]) -> int:
    """The batch of a recorded position of a sink.

    Raises:
        SinkMismatch: the position has no batch.
    """
    with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
        return whole(position["batch"], "its batch", least=-1)


class PositionReader(Protocol):
    """Tells the position of a sink at a batch."""

    def look(self, committed: int) -> None:
        """Check that no other query writes to the sink; called beside the running query, about once a second.

        Args:
            committed: the newest batch that the query has committed.

        Raises:
            SinkOverlap: another query writes to the sink.
        """

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position after ``batch``: its ``kind`` and ``path``, and all else that goes into ``_metadata``.

        Raises:
            CaptureIncomplete: the position at ``batch`` is not known (not yet, or no longer).
        """


@dataclass(frozen=True, slots=True)
class SinkStart:
    """One start of a query, known even after its death: separates its data in the sink from the data of others.

    Attributes:
        token: the token of the start's claim.
        after: the batch before the start's first, or a later batch up to which all data is known to be the start's own;
            -1 for none.
        ran: whether the start's query has run a batch; ``None`` when unknown. A batch that the query skipped, because
            the sink already had it, does not count as run.
    """

    token: str
    after: int
    ran: Callable[[int], bool | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class SinkRun:
    """One start of a query, as its sink sees the start.

    Attributes:
        directory: the start's directory, on the driver's disk (or shared with the executors).
        epoch: the epoch of the start.
        check_owner: raises :class:`~dagster_ckpt.errors.Fenced` when a newer start has taken the job over.
        restored: the position that the sink was rolled back to, ``None`` for a start from nothing.
        archive: makes the boundaries of a batch under way durable before it returns, so that the batch can be replayed.
        retained: the checkpoints that the lineage retains now, the newest last.
        input_stays: no source deletes or acknowledges the input of a batch that is done.
    """

    directory: Path
    epoch: int
    restored: Mapping[str, Json] | None
    check_owner: Callable[[], None]
    archive: Callable[[int], None]
    retained: Callable[[], Sequence[CheckpointMetadata]] = lambda: ()
    input_stays: bool = True


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """A stopped query of plain Spark, as the sink sees it that a job takes over with the query.

    Attributes:
        batch: the last batch that the query has committed.
        planned_ms: when the batch after that was planned, milliseconds since the epoch; ``None`` if it was not. The
            sink may hold this batch, or a part.
        query_id: the id of the query, by which a sink may know what the query has written.
    """

    batch: int
    planned_ms: int | None
    query_id: str = ""

    @property
    def newest(self) -> int:
        """The newest batch that the sink may hold."""
        return self.batch if self.planned_ms is None else self.batch + 1


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A sink that a query of plain Spark wrote to, as the job begins with it.

    Attributes:
        position: the position after the query's last batch.
        removes: files that a rollback to this position removes and that may not be the query's, for people.
    """

    position: dict[str, Json]
    removes: Sequence[str] = ()


class Sink(ABC):
    """A sink that checkpoints cover.

    ``recorded_sinks.py`` has each kind of sink in its table; a salvage passes over a kind that is not in it.

    Attributes:
        kind: the kind of sink, as recorded in checkpoints.
        can_roll_back: whether the sink can go back to a position. If not, a restore must replay every batch that the
            sink may have seen, with the same boundaries.
        tells_data: whether :meth:`first_data` knows that the sink is empty.
        can_skip_a_batch: whether the batch after the next one may follow a position that :meth:`skipped` has changed: a
            repartition of the state takes the number of a batch, and writes nothing.
        seeds_alike: whether :meth:`seed` tells the same position whatever the sink holds: each restart before the first
            checkpoint of a job that moves there asks anew. Of another sink the choice of the start keeps the position.
        others_delete: whether others delete old files, so that files that are gone are no loss; on record, too.
    """

    kind: str
    can_roll_back: bool = True
    tells_data: bool = True
    can_skip_a_batch: bool = False
    seeds_alike: bool = False
    others_delete: bool = False

    @classmethod
    @abstractmethod
    def of_record(cls, path: str) -> Sink | None:
        """The sink at a recorded path, without its query; ``None`` if only the query can make the sink.

        A salvage reads the positions of such a sink from ``recorded_positions.py``.
        """

    @property
    @abstractmethod
    def path(self) -> str:
        """Where the sink writes to; with :attr:`kind` this identifies the sink."""

    @property
    def to_empty(self) -> str:
        """What to do for an empty sink, as the beginning of a sentence."""
        return f"empty {self.path} (with every hidden directory in it)"

    @abstractmethod
    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        """A reader for the positions of the start in ``directory``, while the start runs and after its death.

        Args:
            directory: the start's directory, on the machine that ran it.
            location: the start's live location.
            start: tells what this start has written; ``None`` for a start of a release without marks.
        """

    def writer_options(self, token: str) -> Mapping[str, str]:
        """The options of the query's writer that mark what the start with this claim's token writes."""
        del token
        return {}

    @abstractmethod
    def check(self, position: Mapping[str, Json], files: Path) -> str:
        """Make sure, without touching anything, that :meth:`rollback_to` will work.

        Args:
            position: the recorded position.
            files: the directory of the files that were pinned with the position.

        Returns:
            Which data of the position is gone, for people; empty for none. :meth:`rollback_to` goes on without it.

        Raises:
            SinkMismatch: the sink does not hold the data of the position.
        """

    @abstractmethod
    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Put the sink back to a position; repeating an interrupted rollback completes it.

        Args:
            position: the recorded position.
            files: the directory of the files that were pinned with the position.
            epoch: the epoch of the current start; from now on, everything that an older epoch does is void.

        Returns:
            What was done, for people; empty for nothing.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
        """

    @abstractmethod
    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        """Put the sink back to its content before the first batch of a lineage without a checkpoint.

        Args:
            began: when the lineage began, seconds since the epoch.
            epoch: as in :meth:`rollback_to`.
            first: the epoch of the lineage's first start with this sink, 0 if unknown.
        """

    @abstractmethod
    def newest_batch(self) -> int | None:
        """The newest batch with data in the sink, ``None`` when there is none or the sink cannot tell."""

    @abstractmethod
    def first_data(self) -> str | None:
        """An example of the sink's data for messages; ``None`` when the sink is empty or cannot tell."""

    def attach(self, job_name: str, rows: DataFrame) -> None:  # noqa: B027 - most sinks have nothing to do
        """Learn of the query that will write to this sink; called before anything else of a start.

        Args:
            job_name: the name of the job.
            rows: the streaming rows that will be written; their session is the session of the query.
        """

    def adopt(self, job_id: str) -> None:  # noqa: B027
        """Learn the lineage of the next start; called before the sink is rolled back."""

    def begin(self, run: SinkRun) -> None:  # noqa: B027
        """Prepare for a query that is about to start and write to this sink."""

    def completed(self, metadata: CheckpointMetadata) -> None:  # noqa: B027
        """React to a completed checkpoint of the running query."""

    def take_over(self, query: PlainQuery, files: Path) -> TakenOver | None:
        """This sink after the last batch of a query of plain Spark; ``None`` where none has written to it.

        Args:
            query: the query.
            files: a directory that does not exist, for the files that are pinned with the position.

        Raises:
            SinkMismatch: the sink does not hold what the query has written. Nothing was touched.
        """
        del query, files
        return None

    def skipped(self, position: Mapping[str, Json], files: Path, batch: int, session: SparkSession) -> dict[str, Json]:
        """The position after ``batch``, which follows a position and has written nothing to this sink.

        Nothing is written to the sink: :meth:`rollback_to` the returned position does that.

        Args:
            position: the position after the batch before.
            files: the files that are pinned with the position; those of the returned position are put there.
            batch: the number that the query goes on after.
            session: the session of the query.
        """
        del files, batch, session
        return dict(position)

    def rows_of(self, session: SparkSession, after: int, until: int) -> DataFrame:
        """The rows that the batches after ``after`` up to ``until`` have written, of those that a checkpoint covers.

        Raises:
            InvalidConfiguration: the sink does not tell which rows a batch has written.
            SinkMismatch: rows of these batches are no longer there.
        """
        del session, after, until
        raise InvalidConfiguration(
            f"The {self.kind} sink {self.path} does not tell which rows a batch has written.",
            hint="Compare what a TransactionalFileSink, a PostgresSink or a DeltaSink has written, or query both.",
        )

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position of this empty sink for a fork, whose first batch is ``batch + 1``.

        Nothing is written to the sink: :meth:`rollback_to` that position prepares the sink.

        Args:
            batch: the last batch of the job that was forked.
            files: a directory that does not exist, for the files that are pinned with the position.
            session: the session of the query.
        """
        del files, session
        return {"kind": self.kind, "path": self.path, "batch": batch}


class BatchSink(Sink):
    """A sink that is written batch by batch, through Spark's ``foreachBatch``."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch; called by Spark, on a thread of its own."""

    def begun(self, run: SinkRun | None, batch: int) -> SinkRun:
        """The start that :meth:`begin` was called for, and that is about to write ``batch``.

        Its boundaries are durable on return if the sink must get it again as it was, or if its input may go.

        Raises:
            RestoreRefused: the query was not started by this library.
        """
        if run is None:
            raise RestoreRefused(
                f"The sink {self.path} is written by a query that was started by hand, and nothing could restore it.",
                hint="Return the writer of sink_to() from the function of a checkpointed streaming asset.",
            )
        if not (self.can_roll_back and run.input_stays):
            run.archive(batch)
        return run


def sink_to(rows: DataFrame | DataStreamWriter, sink: Sink) -> DataStreamWriter:
    """An unstarted writer of ``rows`` to ``sink``, for a streaming asset to return.

    Args:
        rows: a streaming DataFrame; or, for a :class:`~dagster_ckpt.spark.sinks.user_sinks.CustomSink`, a writer whose
            format and options say where it writes to.
        sink: the sink to write to.

    Raises:
        InvalidConfiguration: the sink cannot be written in this way.
    """
    if isinstance(sink, BatchSink):
        if not hasattr(rows, "writeStream"):
            raise InvalidConfiguration(
                f"A {type(sink).__name__} is given the rows, not a writer.",
                hint="Call sink_to(rows, sink) with a streaming DataFrame, and set its trigger on the result.",
            )
        refusals: list[CheckpointError] = []

        def write_batch(batch: DataFrame, number: int) -> None:
            try:
                sink.write_batch(batch, number)
            except CheckpointError as error:
                if not error.recoverable:
                    refusals.append(error)  # Spark hands on its text alone
                raise

        writer = rows.writeStream.foreachBatch(write_batch)
        setattr(writer, _REFUSALS, refusals)
    elif hasattr(rows, "writeStream"):
        raise InvalidConfiguration(
            f"A {type(sink).__name__} does not write rows itself.",
            hint="Call sink_to(rows.writeStream.format(...), sink) with a writer that is not started.",
        )
    else:
        writer = rows
    setattr(writer, _ATTRIBUTE, sink)
    return writer


def attached_sink(writer: DataStreamWriter) -> Sink | None:
    """The sink that :func:`sink_to` attached to a writer."""
    sink: Sink | None = getattr(writer, _ATTRIBUTE, None)
    return sink


def refusal_of_batch(writer: DataStreamWriter) -> CheckpointError | None:
    """The error by which a batch of :func:`sink_to` has ended the query, if no restart can help."""
    refusals: list[CheckpointError] = getattr(writer, _REFUSALS, [])
    return refusals[0] if refusals else None
