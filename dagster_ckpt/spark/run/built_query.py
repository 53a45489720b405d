"""The query of a start, as the job's own function builds it, in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import CheckpointError, QueryMismatch
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query import (
    WriterPlan,
    failure_of,
    ignored_settings,
    make_active,
    not_built,
    plan_of,
    streaming_session,
    try_query,
)
from dagster_ckpt.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["BuiltQuery", "Queries"]


@dataclass(frozen=True, slots=True)
class BuiltQuery:
    """The query of a start: its session, its writer, what the writer does, its sink, and settings it does not get."""

    session: SparkSession
    writer: DataStreamWriter
    plan: WriterPlan
    sink: Sink | None
    ignored: Sequence[str]


class Queries:
    """Builds the query of one start.

    Args:
        job: the job.
        spark: the session Spark was started with.
    """

    def __init__(self, job: StreamingJob, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark

    def build(self, restored: CheckpointMetadata | None) -> BuiltQuery:
        """The query, with a sink that can be used as the job asks for."""
        session = self._session(restored)
        ignored = ignored_settings(self._job.state_backend, self._spark, restored)
        writer = self._writer(session)
        plan = plan_of(writer)
        plan.check(self._job.name, self._job.config.mode)
        sink = plan.sink()
        if plan.query_name is None:
            writer = writer.queryName(self._job.name)
        return BuiltQuery(session, writer, plan, sink, ignored)

    def check_on_copy(self, restored: CheckpointMetadata, location: str, cancel: Flag) -> None:
        """Find out whether the query can go on from ``location``, a copy of a checkpoint that may be spoilt.

        Raises:
            QueryMismatch: it is not the query the checkpoint was taken of.
        """
        failure = try_query(self._writer(self._session(restored)), location, cancel)
        error = None if failure is None else failure_of(failure, self._job.name, restored)
        if isinstance(error, QueryMismatch):
            raise error from failure

    def _writer(self, session: SparkSession) -> DataStreamWriter:
        """The query as the job's own function builds it.

        Raises:
            QueryNotBuilt: the function raised; its exception is the cause.
        """
        try:
            return self._job.query(session)
        except CheckpointError:  # which names itself: a sink, for example, or a storage that the function reads
            raise
        except Exception as error:
            raise not_built(error, self._job.name) from error

    def _session(self, restored: CheckpointMetadata | None) -> SparkSession:
        facts = None if restored is None else restored.facts
        session = streaming_session(self._spark, facts, self._job.state_backend, self._job.partitions)
        make_active(session)  # the query is built and started on this thread
        return session
