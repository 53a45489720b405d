"""The batch after a checkpoint, computed on a copy of the checkpoint; its rows go nowhere.

Spark acknowledges a batch to its source when Spark plans the next batch, and the query ends before that. If Spark plans
the batch itself, Spark acknowledges the previous batch. So Spark plans the batch only for sources that ignore this; for
all other sources the batch is empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import CheckpointMetadata, PlannedBatch
from dagster_ckpt.errors import QueryFailed
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.spark.batches import forget_plan, lay_out
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.query import await_tasks, bounded, failure_of, keeps_its_input, stop_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["BatchOnCopy"]

#: What the batch has read.
AS_PLANNED, NEW, NOTHING = "as planned", "new input", "nothing new"
#: Seconds between two looks whether the query is to end early.
_LOOK = 0.1


class BatchOnCopy:
    """One batch of a query.

    Args:
        spark: the session that Spark was started with.
        writer: of the job's query; its sink and its trigger are replaced.
        restored: the checkpoint.
        location: the copy.
        name: of the query, for people who look at Spark's UI.
        timeout: how long the batch may take.
        in_batches: go on with new input in batches of the job's size, where sources ignore what they are told.
        is_enough: asked again and again whether the query is to end now, whatever it has done.
    """

    def __init__(
        self,
        spark: SparkSession,
        writer: DataStreamWriter,
        restored: CheckpointMetadata,
        location: CheckpointLocation,
        *,
        name: str,
        timeout: timedelta,
        in_batches: bool = False,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spark = spark
        self._restored = restored
        self._location = location
        self._timeout = timeout
        self._is_enough = is_enough
        self._keeps_its_input = keeps_its_input(writer)
        self._writer = writer.format("noop").queryName(name).option("checkpointLocation", hadoop_path(location.path))
        self._in_batches = in_batches and self._keeps_its_input

    def run(self, known: Sequence[PlannedBatch]) -> tuple[str, dict[str, Any]]:
        """Commit the batch after the checkpoint: what it read, and Spark's report of it.

        Args:
            known: the batches that were planned after the checkpoint, the first one first.

        Raises:
            QueryFailed: the batch failed, or was not done in time.
            QueryMismatch: the checkpoint was taken of another query.
            QueryNotBuilt: Spark cannot plan the query.
            CorruptCheckpoint: the plan is not what Spark writes.
        """
        following = self._restored.batch + 1
        if known and known[0].batch == following:
            lay_out(known[0], self._location.path)
        if self._location.planned() == following:
            return AS_PLANNED, self._once()
        report = self._once() if self._keeps_its_input else {}
        if (self._location.last_committed() or 0) >= following or self._is_enough():
            return NEW if report.get("numInputRows") else NOTHING, report
        # Spark runs no batch without input; a plan that ends where the last batch ended opens the state all the same.
        (self._location.path / "offsets" / str(following)).write_bytes(
            (self._location.path / "offsets" / str(self._restored.batch)).read_bytes()
        )
        return NOTHING, self._once()

    def undo(self) -> None:
        """Have the copy as a query leaves it that dies in the batch, which is planned: :meth:`run` repeats it."""
        following = self._restored.batch + 1
        for later in range(self._location.newest(), following, -1):
            forget_plan(self._location.path, later)
        for commit in (self._location.path / "commits").iterdir():
            name = commit.name.lstrip(".").partition(".")[0]
            if name.isdecimal() and int(name) >= following:
                commit.unlink()

    def _once(self) -> dict[str, Any]:
        """Run the query for one batch at most; Spark's last report."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is loaded where it runs

        job_name = self._restored.job_name
        try:
            with bounded(self._writer, available_now=self._in_batches):
                query = self._writer.start()
        except PySparkException as error:
            raise failure_of(error, job_name, self._restored) from error
        try:
            until = monotonic() + self._timeout.total_seconds()
            # PySpark takes parts of a second, too.
            while not (done := query.awaitTermination(_LOOK) or self._is_enough()) and monotonic() < until:  # type: ignore[arg-type]
                pass
        except PySparkException as error:
            raise failure_of(error, job_name, self._restored) from error
        finally:
            stop_query(query)
            await_tasks(self._spark, str(query.runId))
        if not done:
            raise QueryFailed(
                f"Batch {self._restored.batch + 1} of job {job_name!r} was not done within {self._timeout} after "
                f"a restore of {self._restored.name}.",
                hint="Give the drill more cores or more time.",
            )
        progress = query.lastProgress
        return {} if progress is None else dict(json.loads(progress.json))
