"""The same cases on Spark alone, with copies of its checkpoint directory: what one has without this library.

It is given the best chance: every copy is made while the query is idle, is put back at the same path, and is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.query.tasks import await_tasks
from tests.jobs.harness import copy_tree, eventually, remove_tree
from tests.jobs.matrix.cases import BEYOND, BY_FIVE, BY_ONE, CHECKPOINTED, KEPT, LATER, SAME, Case, Outcome, compare
from tests.jobs.matrix.streams import (
    BACKENDS,
    CLOSING,
    CLOSING_FILES,
    FILE,
    FOREACH_BATCH,
    NO_DATA,
    QUERIES,
    REPLACING,
    SCHEMA,
    TRIES,
    FailureFree,
    Target,
    batches_of,
    between_ticks,
    in_step,
    land,
    paced,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["SINKS", "PlainBase"]

#: Spark alone has no transactional file sink, and its foreachBatch no rollback: it appends, or replaces by batch id.
SINKS = (FILE, FOREACH_BATCH, REPLACING)


class PlainBase:
    """A query that stopped in the middle of a batch, some batches after the newest copy of its checkpoint directory.

    Args:
        spark: a session.
        directory: for its files.
        query: see :data:`~tests.jobs.matrix.streams.QUERIES`.
        backend: see :data:`~tests.jobs.matrix.streams.BACKENDS`.
        sink: one of :data:`SINKS`.
    """

    def __init__(self, spark: SparkSession, directory: Path, query: str, backend: str, sink: str) -> None:
        self._spark = spark
        self._backup = directory / "backup"
        self._query = query
        self._backend = backend
        for number in range(TRIES):
            self._root = directory / f"job-{number}"
            self._target = Target(sink, self._root / "out")
            self._source, self._live, self._copies = (self._root / name for name in ("in", "live", "copies"))
            self._source.mkdir(parents=True)
            self._stop_in_the_middle()
            if in_step(self._live):
                copy_tree(self._root, self._backup)
                return
        raise AssertionError(f"the sources of {query} were out of step {TRIES} times")

    def go_on(self, case: Case, failure_free: FailureFree) -> Outcome:
        """Go on as the case says, to the end of the data, and compare."""
        with self._borrowed():
            if case.event != KEPT:
                remove_tree(self._live)
                back = {BY_ONE: 2, BY_FIVE: 6}.get(case.event, 1)
                copy_tree(self._copies / str(CHECKPOINTED - back), self._live)
            for number in range(CHECKPOINTED + BEYOND + 1, CHECKPOINTED + BEYOND + 1 + LATER):
                land(self._source, number)
            for number in range(CLOSING, CLOSING + CLOSING_FILES):
                land(self._source, number)
            running = self._writer(1 if case.size == SAME else 3).trigger(availableNow=True).start()
            try:
                running.awaitTermination()
            except Exception as error:
                return Outcome(failed=str(error).partition("\n")[0])
            batches = batches_of(self._live / "sources", self._source)
            return compare(self._target.rows(), failure_free.answer(case.query, batches))

    def _stop_in_the_middle(self) -> None:
        running = paced(self._query, self._writer(1)).start()
        try:
            for number in range(CHECKPOINTED + BEYOND):
                between_ticks(self._query)
                land(self._source, number)
                running.processAllAvailable()
                if number < CHECKPOINTED:
                    copy_tree(self._live, self._copies / str(number))
            location = CheckpointLocation(self._live)
            between_ticks(self._query)
            land(self._source, CHECKPOINTED + BEYOND)
            eventually("the last file is planned", lambda: location.planned() is not None)
        finally:
            running.stop()
            await_tasks(self._spark, str(running.runId))

    def _writer(self, files_per_trigger: int) -> DataStreamWriter:
        session = self._spark.newSession()
        for key, value in [*BACKENDS[self._backend].items(), NO_DATA]:
            session.conf.set(key, value)

        def read() -> DataFrame:
            stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
            return stream.json(str(self._source))

        rows = QUERIES[self._query](read)
        return self._target.plain_writer(rows).option("checkpointLocation", str(self._live))

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        try:
            yield
        finally:
            remove_tree(self._root)
            copy_tree(self._backup, self._root)
