"""What a sink must be able to do so that a checkpoint covers it: tell its position, and go back to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.stored_json import Json, believed, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "BatchSink",
    "Pin",
    "PositionReader",
    "Sink",
    "SinkRun",
    "SinkStart",
    "attached_sink",
    "batch_of",
    "sink_to",
]

#: Pins a file of the sink under a name in the checkpoint's ``sink/``; returns where its bytes stay.
Pin: TypeAlias = Callable[[Path, str], Path]

_ATTRIBUTE = "dagster_ckpt_sink"


def batch_of(position: Mapping[str, Json]) -> int:
    """The batch after which a sink had a recorded position.

    Raises:
        SinkMismatch: it tells none.
    """
    with believed("The recorded position of the sink", "Restore another checkpoint.", SinkMismatch):
        return whole(position["batch"], "its batch", least=-1)


class PositionReader(Protocol):
    """What can tell the position of a sink at a batch."""

    def look(self, committed: int) -> None:
        """Look, beside the running query and about once a second, whether nobody else writes to the sink.

        Args:
            committed: the newest batch that the query has committed.

        Raises:
            SinkOverlap: another query writes to it.
        """

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position after ``batch``: its ``kind`` and ``path``, and what else goes into ``_metadata``.

        Raises:
            CaptureIncomplete: the position at ``batch`` is not known (yet, or any more).
        """


@dataclass(frozen=True, slots=True)
class SinkStart:
    """One start of a query, as it is known when it is dead, too: to tell what it has written from what others have.

    Attributes:
        token: of its claim.
        after: the batch that it began after, or a later one up to which all is known to be its own; -1 for none.
        ran: whether its query has run a batch; ``None`` where that is not known. A batch that the query has skipped,
            because the sink had it already, was not run.
    """

    token: str
    after: int
    ran: Callable[[int], bool | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class SinkRun:
    """One start of a query, as its sink sees it.

    Attributes:
        directory: of this start, on the driver's disk (or shared with the executors).
        epoch: of the start.
        check_owner: raises :class:`~dagster_ckpt.errors.Fenced` when a newer start has taken the job over.
        restored: the position that the sink was put back to, ``None`` for a start from nothing.
        archive: makes the boundaries of a batch that is under way durable, so that it can be replayed; returns then.
    """

    directory: Path
    epoch: int
    restored: Mapping[str, Json] | None
    check_owner: Callable[[], None]
    archive: Callable[[int], None]


class Sink(ABC):
    """A sink that a checkpoint covers.

    Attributes:
        kind: what kind of sink it is, as checkpoints say.
        can_roll_back: whether it can be put back to a position. If not, a restore must replay, with the same
            boundaries, every batch it may have seen.
    """

    kind: str
    can_roll_back: bool = True

    @property
    @abstractmethod
    def path(self) -> str:
        """Where it writes to; with :attr:`kind` it tells one sink from another."""

    @abstractmethod
    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        """What tells positions of the start in ``directory``, while it runs and when it is dead.

        Args:
            directory: of the start, on the machine it ran on.
            location: its live checkpointLocation.
            start: tells what is of this start; ``None`` where that cannot be told, as its query was started by a
                release that did not mark what it wrote.
        """

    def writer_options(self, token: str) -> Mapping[str, str]:
        """What options of the query's writer mark what the start with this claim's token writes."""
        del token
        return {}

    @abstractmethod
    def check(self, position: Mapping[str, Json], files: Path) -> None:
        """Make sure, touching nothing, that :meth:`rollback_to` will work.

        Args:
            position: as it was recorded.
            files: the directory of what was pinned with it.

        Raises:
            SinkMismatch: the sink does not hold what it held then.
        """

    @abstractmethod
    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        """Put the sink back to what it was; broken off anywhere, doing it again completes it.

        Args:
            position: as it was recorded.
            files: the directory of what was pinned with it.
            epoch: of the start that does it; everything an older one does from now on is void.

        Returns:
            What was done, for people; empty when there was nothing to do.

        Raises:
            SinkMismatch: as :meth:`check`; nothing was touched.
        """

    @abstractmethod
    def rollback_to_nothing(self, began: float, epoch: int) -> str:
        """Put the sink back to what it was before the first batch of a lineage that has no checkpoint yet.

        Args:
            began: when the lineage began, seconds since the epoch.
            epoch: as in :meth:`rollback_to`.
        """

    @abstractmethod
    def newest_batch(self) -> int | None:
        """The newest batch it may hold something of, ``None`` when it holds none or cannot tell."""

    @abstractmethod
    def first_data(self) -> str | None:
        """Something it holds, to be named to a user; ``None`` when it is empty or cannot tell."""

    def begin(self, run: SinkRun) -> None:  # noqa: B027 - most sinks have nothing to do
        """A query is about to be started that writes to this sink."""

    def completed(self, metadata: CheckpointMetadata) -> None:  # noqa: B027
        """A checkpoint of the running query completed."""

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The position of this sink, which is empty, for a query whose first batch is ``batch + 1``: a fork of another.

        Nothing is written to the sink: :meth:`rollback_to` that position prepares it.

        Args:
            batch: the last batch of the other query.
            files: a directory that does not exist, for what is pinned with the position.
            session: of the query.
        """
        del files, session
        return {"kind": self.kind, "path": self.path, "batch": batch}


class BatchSink(Sink):
    """A sink that is written batch by batch, by Spark's ``foreachBatch``."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch; called by Spark, on a thread of its own."""


def sink_to(rows: DataFrame | DataStreamWriter, sink: Sink) -> DataStreamWriter:
    """A writer of ``rows`` to ``sink``, not started, for a streaming asset to return.

    Args:
        rows: a streaming DataFrame; or, for a :class:`~dagster_ckpt.spark.sinks.user_sinks.CustomSink`, a writer whose
            format and options say where it writes to.
        sink: where they go.

    Raises:
        InvalidConfiguration: the sink is not one that can be written in this way.
    """
    if isinstance(sink, BatchSink):
        if not hasattr(rows, "writeStream"):
            raise InvalidConfiguration(
                f"A {type(sink).__name__} is given the rows, not a writer.",
                hint="Call sink_to(rows, sink) with a streaming DataFrame, and set its trigger on the result.",
            )
        writer = rows.writeStream.foreachBatch(sink.write_batch)
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
