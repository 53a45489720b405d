"""Sinks of the user's own: what a checkpoint needs of them is said by callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointFailure, RestoreRefused
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import BatchSink, Pin, PositionReader, Sink, SinkRun, SinkStart, batch_of
from dagster_ckpt.stored_json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CustomSink", "ForeachBatchSink"]

_VALUE = "value"
#: Of a fork: what it went on from has written nothing here.
_NOTHING = "holds_nothing"
_ITS_OWN = "It is the sink's own callable that raised this."


class _UserSink(Sink):
    """A sink that goes back by a callable of the user's."""

    kind = "custom"

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

    @property
    def path(self) -> str:
        return self._name

    def position_of(self, batch: int, value: Json) -> dict[str, Json]:
        """What ``_metadata`` says of the position after ``batch``."""
        return {"kind": self.kind, "path": self.path, "batch": batch, _VALUE: value}

    def check(self, position: Mapping[str, Json], files: Path) -> None:
        """Only the user's system can tell, and it is asked when it is rolled back."""

    def rollback_to(self, position: Mapping[str, Json], files: Path, epoch: int) -> str:
        del files, epoch
        batch = batch_of(position)
        if position.get(_NOTHING):
            return self._roll_back(-1, None, "nothing")
        return self._roll_back(batch, position.get(_VALUE), f"batch {batch}")

    def seed(self, batch: int, files: Path, session: SparkSession) -> dict[str, Json]:
        """The user's system is told of no batch of another job's: it goes back to nothing."""
        del files, session
        return {**self.position_of(batch, None), _NOTHING: True}

    def rollback_to_nothing(self, began: float, epoch: int) -> str:
        del began, epoch
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
        """The newest batch that the sink holds something of, as the user's callable says.

        Raises:
            CheckpointFailure: it raised.
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
    """The sink of a writer that remembers no batch, with two callables that tell its position and set it back.

    The writer is one of ``writeStream.format(...)``, ``foreach`` or ``foreachBatch``. It must not keep by itself which
    batches of a query it has seen, unless ``rollback_to`` takes that back, too: batches that run again after a rollback
    have the numbers of those before, and the writer would skip them. So Delta, Iceberg, Hudi and Spark's file sink are
    refused.

    .. code-block:: python

        sink = CustomSink("orders", position=lambda batch: f"{batch}.jsonl", rollback_to=remove_files_of_later_batches)
        return sink_to(rows.writeStream.format("orders").option("path", path), sink)

    Args:
        name: where it writes to; a restore refuses another name.
        position: given a committed batch, tells in JSON values where the sink was after it. The batch after that may
            be under way. It must read past caches.
        rollback_to: given a batch and what ``position`` said of it, removes everything that later batches wrote; given
            -1 and ``None``, everything. Called again after a crash, it must end the same.
        newest_batch: tells the newest batch the sink holds something of, ``None`` for an empty one. With it a start
            from nothing into a sink with data is refused.
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
        del directory, location, start  # the user's system remembers
        return self

    def look(self, committed: int) -> None:
        """Nothing to look at: the user's system knows who writes to it."""

    def pin_position(self, batch: int, pin: Pin) -> dict[str, Json]:
        """The position after ``batch``.

        Raises:
            CheckpointFailure: the user's callable raised.
        """
        del pin  # it goes into `_metadata` whole
        try:
            value = self._position(batch)
        except Exception as error:
            raise CheckpointFailure(
                f"The position of sink {self.path!r} after batch {batch} is not known: {_said(error)}", hint=_ITS_OWN
            ) from error
        return self.position_of(batch, value)


class ForeachBatchSink(_UserSink, BatchSink):
    """A sink that a function of the user's writes, batch by batch, and that is exact after every restore.

    With ``rollback_to`` everything after the checkpoint is removed at a restore, before any batch runs. Without it,
    ``write`` must *replace* what it has written under the same batch id before; then a restore runs every batch that
    may have been written with exactly the same rows again, because their boundaries are durable before ``write`` is
    called.

    .. code-block:: python

        def write(rows, batch):
            rows.withColumn("batch", lit(batch)).write.jdbc(url, "delays", "append")

        def rollback_to(batch, _):
            execute("DELETE FROM delays WHERE batch > %s", batch)

        return sink_to(rows, ForeachBatchSink("delays", write, rollback_to=rollback_to))

    Args:
        name: where it writes to; a restore refuses another name.
        write: given the rows and the id of a batch. It must read all rows: Spark commits no state otherwise.
        rollback_to: given a batch and what ``position`` said of it, removes everything that later batches wrote; given
            -1 and ``None``, everything. Called again after a crash, it must end the same.
        position: given a batch that was just written, tells in JSON values where the sink is now. It must read past
            caches: ``write`` runs in a copy of the session, which has a catalog of its own.
        newest_batch: tells the newest batch the sink holds something of, ``None`` for an empty one. With it a start
            from nothing into a sink with data is refused.
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

    def begin(self, run: SinkRun) -> None:
        self._run = run
        if run.restored is not None:
            RecordedPositions(run.directory).record(batch_of(run.restored), run.restored)

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Write one batch, unless a newer run has taken the job over.

        Raises:
            Fenced: one has; nothing was written.
            RestoreRefused: the query was not started by this library.
            StorageError: the boundaries of the batch could not be made durable.
        """
        run = self._run
        if run is None:
            raise RestoreRefused(
                f"Sink {self.path!r} is written by a query that was started by hand, and nothing could restore it.",
                hint="Return the writer of sink_to() from the function of a checkpointed streaming asset.",
            )
        if not self.can_roll_back:
            run.archive(batch)
        # After the archiving: whoever takes the job over from here on finds this batch among those to be replayed.
        run.check_owner()
        self._write(rows, batch)
        value = None if self._position is None else self._position(batch)
        RecordedPositions(run.directory).record(batch, self.position_of(batch, value))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
