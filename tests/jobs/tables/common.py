"""Queries into a table of any format, and starts of a job as the table's sink sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.sink import BatchSink, SinkRun, sink_to
from tests.jobs.harness import Bench, Launch, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.stored_json import Json

__all__ = [
    "Starts",
    "a_batch_is_left_out",
    "a_claim_is_no_data",
    "committed",
    "dying",
    "into",
    "run_without_checkpoint",
    "unique",
]

_Sink = TypeVar("_Sink", bound=BatchSink)


def unique(bench: Bench, session: SparkSession) -> DataFrame:
    return bench.read(session).dropDuplicates(["id"]).select("id", "v")


def into(sink: BatchSink, bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Stateful: each id once."""
    writer = sink_to(unique(bench, session), sink)
    return writer.trigger(availableNow=True) if bench.until_done else writer


def dying(sink: _Sink) -> _Sink:
    """Its process dies, as it were, when a batch is in the table and not yet in Spark's commit log."""
    write_batch = sink.write_batch

    def write_and_die(rows: DataFrame, batch: int) -> None:
        write_batch(rows, batch)
        raise ZeroDivisionError(f"dead after the commit of batch {batch}")

    sink.write_batch = write_and_die  # type: ignore[method-assign]
    return sink


def committed(live: Path) -> int:
    return max((int(path.name) for path in (live / "commits").glob("[0-9]*")), default=-1)


def run_without_checkpoint(bench: Bench, files: int) -> Launch:
    """Land files, let their batches commit, and cancel."""
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    wanted = committed(bench.live()) + files
    for _ in range(files):
        bench.land(1)
    eventually(f"batch {wanted} commits", lambda: committed(bench.live()) >= wanted, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    bench.until_done = True
    return launch


class Starts(Generic[_Sink]):
    """Starts of a job as its sink sees them; none of them knows of the others."""

    def __init__(self, root: Path, rows: DataFrame, make: Callable[[], _Sink], job: str = "orders") -> None:
        self._root = root
        self._rows = rows
        self._make = make
        self._job = job

    def begun(self, epoch: int, restored: Mapping[str, Json] | None = None) -> _Sink:
        sink = self.attached()
        if restored is not None:
            sink.rollback_to(restored, self._root, epoch)
        self.begin(sink, epoch, restored)
        return sink

    def attached(self) -> _Sink:
        """The sink of a start that has not touched the table yet."""
        sink = self._make()
        sink.attach(self._job, self._rows)
        return sink

    def begin(self, sink: _Sink, epoch: int, restored: Mapping[str, Json] | None = None) -> None:
        sink.begin(SinkRun(self._directory(epoch), epoch, restored, lambda: None, lambda _: None))

    def position(self, sink: _Sink, epoch: int, batch: int) -> Mapping[str, Json]:
        reader = sink.position_reader(self._directory(epoch), CheckpointLocation(self._root))
        return reader.pin_position(batch, lambda path, _: path)

    def _directory(self, epoch: int) -> Path:
        return self._root / str(epoch)


def a_claim_is_no_data(bench: Bench, rows: DataFrame, starts: Starts[Any]) -> None:
    """A move into a table with rows of others fails before its first batch, and is tried again."""
    for epoch in (1, 2):
        first = starts.attached()
        assert first.first_data() is None
        starts.begun(epoch, first.seed(7, bench.root, bench.spark))
    sink = starts.begun(3, starts.attached().seed(7, bench.root, bench.spark))
    sink.write_batch(rows, 8)
    assert starts.attached().first_data() == "batch 8 of job 'orders'"
    starts.begun(4, starts.position(sink, 3, 8))
    assert starts.attached().first_data() == "batch 8 of job 'orders'"


def a_batch_is_left_out(rows: DataFrame, starts: Starts[Any], count: Callable[[], int], root: Path) -> None:
    """A start goes on after the batch of a repartition, from which the table has nothing; later ones go back.

    Args:
        rows: of each batch.
        starts: of the job.
        count: how many rows the table has.
        root: a directory.
    """
    each = rows.count()
    first = starts.begun(1)
    first.write_batch(rows, 0)
    before = starts.position(first, 1, 0)
    first.write_batch(rows, 1)

    # The checkpoint of the repartition has the position of the batch before, and its start begins after batch 1.
    second = starts.attached()
    second.rollback_to(second.skipped(before, root, 1, rows.sparkSession), root, 2)
    assert count() == each
    starts.begin(second, 2, {**before, "batch": 1})
    after = starts.position(second, 2, 1)
    with pytest.raises(SinkMismatch, match="claimed by epoch 2"):
        first.write_batch(rows, 2)
    for batch in (2, 3):
        second.write_batch(rows, batch)
    covered = starts.position(second, 2, 2)
    assert count() == 3 * each

    for epoch, position, kept in ((3, covered, 2), (4, after, 1), (5, before, 1)):
        sink = starts.begun(epoch, position)
        assert count() == kept * each
        sink.write_batch(rows, int(str(position["batch"])) + 1)
        assert count() == (kept + 1) * each
