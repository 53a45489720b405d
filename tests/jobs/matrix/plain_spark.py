"""The same cases on Spark alone, with copies of its checkpoint directory: what one has without this library.

It is given the best chance: every copy is made while the query is idle, is put back at the same path, and is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.query.tasks import await_tasks
from tests.jobs.harness import copy_tree, eventually, remove_tree
from tests.jobs.matrix.cases import BEYOND, BY_FIVE, BY_ONE, CHECKPOINTED, KEPT, LATER, SAME, Case, Outcome, compare
from tests.jobs.matrix.streams import (
    BACKENDS,
    CLOSING,
    CLOSING_FILES,
    DELTA,
    FILE,
    FOREACH_BATCH,
    ICEBERG,
    NO_DATA,
    QUERIES,
    REPLACING,
    SCHEMA,
    TRIES,
    FailureFree,
    Started,
    Target,
    batches_of,
    between_ticks,
    in_step,
    land,
    paced,
)
from tests.jobs.matrix.topics import FILES, KAFKA, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.testing.kafka import KafkaServer

__all__ = ["SINKS", "PlainBase"]

#: Spark alone has no transactional file sink, and none for PostgreSQL. Its foreachBatch has no rollback: it appends, or
#: replaces by batch id.
SINKS = (FILE, FOREACH_BATCH, REPLACING, DELTA, ICEBERG)


class PlainBase:
    """A query that stopped in the middle of a batch, some batches after the newest copy of its checkpoint directory.

    Args:
        spark: a session.
        directory: for its files.
        query: see :data:`~tests.jobs.matrix.streams.QUERIES`.
        backend: see :data:`~tests.jobs.matrix.streams.BACKENDS`.
        sink: one of :data:`SINKS`.
        source: one of :data:`~tests.jobs.matrix.topics.SOURCES`.
        kafka: the broker for a topic as the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        query: str,
        backend: str,
        sink: str,
        source: str = FILES,
        kafka: KafkaServer | None = None,
    ) -> None:
        self._spark = spark
        self._backup = directory / "backup"
        self._query = query
        self._backend = backend
        for number in range(TRIES):
            self._root = directory / f"job-{number}"
            self._topic = Topic(kafka) if source == KAFKA and kafka is not None else None
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
                self._land(number)
            for number in range(CLOSING, CLOSING + CLOSING_FILES):
                self._land(number)
            writer, start = self._writer(1 if case.size == SAME else 3, is_last=True)
            running = start(writer.trigger(availableNow=True))
            try:
                running.awaitTermination()
            except Exception as error:
                return Outcome(failed=str(error).partition("\n")[0])
            if self._topic is None:
                batches = batches_of(self._live / "sources", self._source)
            else:
                batches = self._topic.batches(self._live, self._root / "batches")
            return compare(self._target.rows(), failure_free.answer(case.query, batches))

    def _stop_in_the_middle(self) -> None:
        writer, start = self._writer(1)
        running = start(paced(self._query, writer))
        try:
            for number in range(CHECKPOINTED + BEYOND):
                between_ticks(self._query)
                self._land(number)
                running.processAllAvailable()
                if number < CHECKPOINTED:
                    copy_tree(self._live, self._copies / str(number))
            location = CheckpointLocation(self._live)
            between_ticks(self._query)
            self._land(CHECKPOINTED + BEYOND)
            eventually("the last file is planned", lambda: location.planned() is not None)
        finally:
            running.stop()
            await_tasks(self._spark, str(running.runId))

    def _land(self, number: int) -> None:
        land(self._source, number)
        if self._topic is not None:
            self._topic.send(number)

    def _writer(self, files_per_trigger: int, *, is_last: bool = False) -> Started:
        session = self._spark.newSession()
        for key, value in [*BACKENDS[self._backend].items(), NO_DATA]:
            session.conf.set(key, value)

        def read() -> DataFrame:
            if self._topic is not None:
                return self._topic.read(session, files_per_trigger, at_once=not is_last)
            stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
            return stream.json(str(self._source))

        writer, start = self._target.plain(QUERIES[self._query](read))
        return writer.option("checkpointLocation", str(self._live)), start

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        try:
            yield
        finally:
            remove_tree(self._root)
            copy_tree(self._backup, self._root)
            if self._target.kind == DELTA:  # it remembers the table as it was before
                jvm: Any = self._spark._jvm
                jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
