"""Sinks of the user's own systems: callables tell what a checkpoint needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointFailure, SinkMismatch
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import (
    BatchSink,
    Pin,
    PlainQuery,
    PositionReader,
    Sink,
    SinkRun,
    SinkStart,
    TakenOver,
    batch_of,
)
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CustomSink", "ForeachBatchSink"]

_VALUE = "value"
#: In a fork's first position: the forked job has written nothing to this sink.
_NOTHING = "holds_nothing"
_ITS_OWN = "It is the sink's own callable that raised this."


class _UserSink(Sink):
    """A sink that is rolled back by a callable of the user."""

    kind = "custom"
    can_skip_a_batch = True
    seeds_alike = True

    def __init__(
        self,
        name: str,
        rollback_to: Callable[[int, Json], object] | None,
        newest_batch: Callable[[], int | None] | None,
    ) -> None:
        self._name = name
        self._rollback_to = rollback_to
        self._newest_batch = newest_batch
        self.can_roll_back = rollback_to is not None
        self.tells_data = newest_batch is not None

    @classmethod
    def of_record(cls, path: str) -> None:
        """``None``: the user's callables are in the query."""
        del path

    @property
    def path(self) -> str:
        return self._name

    def position_of(self, batch: int, value: Json) -> dict[str, Json]:
        """The content of ``_metadata`` for the position after ``batch``."""
        return {"kind": self.kind, "path": self.path, "batch": batch, _VALUE: value}

    def check(self, position: Mapping[str, Json], files: Path) -> str:
        """Tell nothing: only the user's system can tell, and that is called at the rollback."""
        del position, files
        return ""

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        del files, epoch
        batch = batch_of(position)
        if position.get(_NOTHING):
            return self._roll_back(-1, None, "nothing")
        return self._roll_back(batch, position.get(_VALUE), f"batch {batch}")

    def take_over(self, query: PlainQuery, files: Path) -> TakenOver | None:
        """The position after the query's last batch; ``None`` where ``newest_batch`` tells that the sink is empty.

        Without ``newest_batch`` the sink counts as the one that the query wrote to.

        Raises:
            SinkMismatch: the user's system has a batch that the query has not planned.
        """
        del files
        newest = self.newest_batch()
        if newest is None and self.tells_data:
            return None
        if newest is not None and newest > query.newest:
            raise SinkMismatch(
                f"Sink {self.path!r} has batch {newest}, and the query has come to batch {query.newest}.",
                hint="Nothing was touched. Name the sink that the query wrote to, as the query has left it.",
            )
        return TakenOver(self._position_after(query))

    def _position_after(self, query: PlainQuery) -> dict[str, Json]:
        return self.position_of(query.batch, None)

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """A position without a batch of the forked job: the user's system goes back to nothing."""
        del files, session
        return {**self.position_of(batch, None), _NOTHING: True}

    def rollback_to_nothing(self, began: float, epoch: int, first: int = 0) -> str:
        del began, epoch, first
        return self._roll_back(-1, None, "nothing")

    def _roll_back(self, batch: int, value: Json, where: str) -> str:
        if self._rollback_to is None:
            return ""
        try:
            self._rollback_to(batch, value)
        except Exception as error:
            raise CheckpointFailure(
                f"Sink {self.path!r} could not be set back to {where}: {_said(error)}", hint=_ITS_OWN
            ) from error
        return f"{self.path} was told to go back to {where}"

    def newest_batch(self) -> int | None:
        """The newest batch with data in the sink, according to the user's callable.

        Raises:
            CheckpointFailure: the callable raised an error.
        """
        if self._newest_batch is None:
            return None
        try:
            return self._newest_batch()
        except Exception as error:
            raise CheckpointFailure(
                f"Sink {self.path!r} could not tell its newest batch: {_said(error)}", hint=_ITS_OWN
            ) from error

    def first_data(self) -> str | None:
        batch = self.newest_batch()
        return None if batch is None else f"batch {batch}"


class CustomSink(_UserSink):
    """The sink of a writer that remembers no batches, with two callables that tell its position and roll it back.

    The writer is one of ``writeStream.format(...)``, ``foreach`` or ``foreachBatch``. The writer must not remember
    which batches of a query it has seen, unless ``rollback_to`` also resets that memory: batches that run again after a
    rollback have the same numbers as before, and the writer would skip them. So Delta, Iceberg, Hudi and Spark's file
    sink are refused.

    .. code-block:: python

        sink = CustomSink("orders", position=lambda batch: f"{batch}.jsonl", rollback_to=remove_files_of_later_batches)
        return sink_to(rows.writeStream.format("orders").option("path", path), sink)

    Args:
        name: where the writer writes to; a restore refuses another name.
        position: given a committed batch, tells in JSON values where the sink was after that batch. The next batch may
            be under way. The callable must bypass caches.
        rollback_to: given a batch and the value of ``position`` for that batch, removes everything that later batches
            wrote; given -1 and ``None``, removes everything. A second call after a crash must have the same result.
        newest_batch: tells the newest batch with data in the sink, ``None`` for an empty sink. With this callable, a
            start from nothing into a sink with data is refused. A fork into this sink needs the callable.
    """

    def __init__(
        self,
        name: str,
        *,
        position: Callable[[int], Json],
        rollback_to: Callable[[int, Json], object],
        newest_batch: Callable[[], int | None] | None = None,
    ) -> None:
        super().__init__(name, rollback_to, newest_batch)
        self._position = position

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        del directory, location, start  # the user's system knows its positions
        return self

    def look(self, committed: int) -> None:
        """Do nothing: the user's system knows what writes to the sink."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position after ``batch``.

        Raises:
            CheckpointFailure: the user's callable raised an error.
        """
        del pin  # `_metadata` holds the whole position
        return self._position_at(batch)

    def _position_after(self, query: PlainQuery) -> dict[str, Json]:
        return self._position_at(query.batch)

    def _position_at(self, batch: int) -> dict[str, Json]:
        try:
            value = self._position(batch)
        except Exception as error:
            raise CheckpointFailure(
                f"The position of sink {self.path!r} after batch {batch} is not known: {_said(error)}", hint=_ITS_OWN
            ) from error
        return self.position_of(batch, value)


class ForeachBatchSink(_UserSink, BatchSink):
    """A sink that the user's function writes batch by batch, exact after every restore.

    With ``rollback_to``, a restore removes everything after the checkpoint before any batch runs. Without it,
    ``write`` must *replace* what it wrote earlier under the same batch id. A restore then runs every batch that may
    have been written again with exactly the same rows, because the boundaries of a batch are durable before ``write``
    is called.

    .. code-block:: python

        def write(rows, batch):
            rows.withColumn("batch", lit(batch)).write.jdbc(url, "delays", "append")

        def rollback_to(batch, _):
            execute("DELETE FROM delays WHERE batch > %s", batch)

        return sink_to(rows, ForeachBatchSink("delays", write, rollback_to=rollback_to))

    Args:
        name: where ``write`` writes to; a restore refuses another name.
        write: given the rows and the id of a batch. The function must read all rows: Spark commits no state otherwise.
        rollback_to: given a batch and the value of ``position`` for that batch, removes everything that later batches
            wrote; given -1 and ``None``, removes everything. A second call after a crash must have the same result.
        position: given a batch that was just written, tells in JSON values where the sink is now. The callable must
            bypass caches: ``write`` runs in a copy of the session, which has a catalog of its own.
        newest_batch: tells the newest batch with data in the sink, ``None`` for an empty sink. With this callable, a
            start from nothing into a sink with data is refused. A fork into a sink with ``rollback_to`` needs the
            callable.
    """

    kind = "foreachBatch"

    def __init__(
        self,
        name: str,
        write: Callable[[DataFrame, int], object],
        *,
        rollback_to: Callable[[int, Json], object] | None = None,
        position: Callable[[int], Json] | None = None,
        newest_batch: Callable[[], int | None] | None = None,
    ) -> None:
        super().__init__(name, rollback_to, newest_batch)
        self._write = write
        self._position = position
        self._run: SinkRun | None = None

    def position_reader(
        self, directory: Path, location: CheckpointLocation, start: SinkStart | None = None
    ) -> PositionReader:
        del location, start
        return RecordedPositions(directory)

    def _position_after(self, query: PlainQuery) -> dict[str, Json]:
        if self._position is None:
            return self.position_of(query.batch, None)
        if query.planned_ms is not None:
            raise SinkMismatch(
                f"Sink {self.path!r} tells where it is now, and not where it was after batch {query.batch}: the batch "
                "after that was planned, and may have been written.",
                hint="Let plain Spark finish the batch and stop the query again; then launch again.",
            )
        return self.position_of(query.batch, self._position(query.batch))

    def begin(self, run: SinkRun) -> None:
        self._run = run
        if run.restored is not None:
            RecordedPositions(run.directory).record(batch_of(run.restored), run.restored)

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch, unless a newer run has taken the job over.

        Raises:
            Fenced: a newer run has taken the job over; nothing was written.
            RestoreRefused: the query was not started by this library.
            StorageError: the boundaries of the batch could not be made durable.
        """
        run = self.begun(self._run, batch)
        # Check after archiving: a run that takes the job over from here on finds this batch among those to replay.
        run.check_owner()
        self._write(rows, batch)
        value = None if self._position is None else self._position(batch)
        RecordedPositions(run.directory).record(batch, self.position_of(batch, value))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
