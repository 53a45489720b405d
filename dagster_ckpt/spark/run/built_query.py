"""The query of a start, which the job's own function builds in a separate session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata, Facts
from dagster_ckpt.errors import CheckpointError, QueryMismatch
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.preflight import read_before
from dagster_ckpt.spark.query import (
    WriterPlan,
    check_state_format,
    failure_of,
    fingerprint_of,
    ignored_partitions,
    ignored_settings,
    listed_sources,
    make_active,
    not_built,
    plan_of,
    state_keys,
    streaming_session,
    time_zone_of,
    try_query,
)
from dagster_ckpt.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["BuiltQuery", "Queries"]


@dataclass(frozen=True, slots=True)
class BuiltQuery:
    """The query of a start.

    Attributes:
        session: of the query.
        writer: the query.
        plan: of the writer.
        sink: the query's sink, if checkpoints cover it.
        ignored: the settings that cannot take effect.
        fingerprint: by which a later start knows the query.
        facts: what the session and the plan tell: each checkpoint has it.
    """

    session: SparkSession
    writer: DataStreamWriter
    plan: WriterPlan
    sink: Sink | None
    ignored: Sequence[str]
    fingerprint: str
    facts: Facts


class Queries:
    """Builds the query of one start.

    Args:
        job: the job.
        spark: the session that Spark was started with.
        is_live_on_disk: whether the query's live location lies on a disk, where snapshots of the state cost nothing.
    """

    def __init__(self, job: StreamingJob, spark: SparkSession, *, is_live_on_disk: bool = False) -> None:
        self._job = job
        self._spark = spark
        self._interval = job.config.effective_interval if is_live_on_disk else None

    def build(self, restored: CheckpointMetadata | None) -> BuiltQuery:
        """Build the query, and check that its sink is usable as the job requires."""
        session = self._session(restored)
        ignored = ignored_settings(self._job.state_backend, self._spark, restored)
        writer = self._writer(session)
        if restored is None:
            check_state_format(session)
        if self._job.partitions is None:
            ignored += ignored_partitions(session, restored)
        plan = plan_of(writer)
        plan.check(self._job.name, self._job.config.mode)
        sink = plan.sink()
        if sink is not None:
            sink.attach(self._job.name, writer._df)  # noqa: SLF001 - PySpark's writer has no getter for it
        if plan.query_name is None:
            writer = writer.queryName(self._job.name)
        told = {
            "time_zone": time_zone_of(session),
            "state_keys": state_keys(writer),
            "read_sources": read_before(restored, listed_sources(writer)),
        }
        facts = Facts().model_copy(update={name: fact for name, fact in told.items() if fact is not None})
        return BuiltQuery(session, writer, plan, sink, ignored, fingerprint_of(writer), facts)

    def check_on_copy(self, restored: CheckpointMetadata, location: str, cancel: Flag) -> None:
        """Check that the query can resume from ``location``, a disposable copy of a checkpoint.

        Raises:
            QueryMismatch: the checkpoint was taken of another query.
        """
        failure = try_query(self.for_trial(restored), location, cancel)
        error = None if failure is None else failure_of(failure, self._job.name, restored)
        if isinstance(error, QueryMismatch):
            raise error from failure

    def for_trial(self, restored: CheckpointMetadata) -> DataStreamWriter:
        """A writer of the query whose sink and location the caller replaces; the query's own sink is not told."""
        return self._writer(self._session(restored))

    def _writer(self, session: SparkSession) -> DataStreamWriter:
        """The query that the job's own function builds.

        Raises:
            QueryNotBuilt: the function raised; its exception is the cause.
        """
        try:
            return self._job.query(session)
        except CheckpointError:  # it explains itself: an error of a sink or a storage, for example
            raise
        except Exception as error:
            raise not_built(error, self._job.name) from error

    def _session(self, restored: CheckpointMetadata | None) -> SparkSession:
        facts = None if restored is None else restored.facts
        session = streaming_session(
            self._spark, facts, self._job.state_backend, self._job.partitions, snapshots_each=self._interval
        )
        make_active(session)  # the query is built and started on this thread
        return session
