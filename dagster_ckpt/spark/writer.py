"""What a ``DataStreamWriter`` that was not started yet is going to do: its sink and options.

PySpark has no getters for them, so the private fields of Spark's own writer are read. They are private to Spark,
but have had these names since 2.0; a test fails if they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.errors import InvalidConfiguration, RestoreRefused
from dagster_ckpt.spark.sinks.sink import Sink, attached_sink
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["WriterPlan", "java_field", "plan_of"]

_FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text"})
#: Sinks that keep nothing a restore could disagree with.
_TRANSIENT = frozenset({"noop", "console"})


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """Where a query is going to write.

    Attributes:
        format: the sink's short name, ``foreachBatch`` or ``foreach``.
        path: the ``path`` option.
        checkpoint_location: the option, if the user set it.
        query_name: the name, if the user set one.
        continuous: whether the trigger is a continuous one.
        attached: what ``sink_to`` attached to the writer.
    """

    format: str
    path: str | None
    checkpoint_location: str | None
    query_name: str | None
    continuous: bool
    attached: Sink | None = None

    @property
    def is_transient(self) -> bool:
        """Whether it writes to a sink that keeps nothing."""
        return self.attached is None and self.format in _TRANSIENT

    def sink(self) -> Sink | None:
        """The sink when it is one that a checkpoint covers, else ``None``.

        Raises:
            InvalidConfiguration: it is a file sink that is not on a local path.
        """
        if self.attached is not None:
            return self.attached
        if self.format not in _FILE_FORMATS or self.path is None:
            return None
        return SparkFileSink(self.path)

    def check(self, job_name: str, mode: CheckpointingMode) -> None:
        """Refuse what cannot be checkpointed as promised.

        Raises:
            InvalidConfiguration: a checkpointLocation or continuous trigger was set.
            RestoreRefused: the sink cannot be brought back to a checkpoint, as ``EXACTLY_ONCE`` promises.
        """
        if self.checkpoint_location is not None:
            raise InvalidConfiguration(
                f"The query of job {job_name!r} sets checkpointLocation to {self.checkpoint_location}; "
                "the live location is managed here, a fresh one for every start.",
                hint="Remove the checkpointLocation option from the query.",
            )
        if self.continuous:
            raise InvalidConfiguration(
                f"The query of job {job_name!r} has a continuous trigger, which has no micro-batch to checkpoint at.",
                hint="Use trigger(processingTime=...) or trigger(availableNow=True).",
            )
        exact = self.attached is not None or self.format in _FILE_FORMATS or self.format in _TRANSIENT
        if mode is CheckpointingMode.EXACTLY_ONCE and not exact:
            raise RestoreRefused(
                f"The {self.format} sink of job {job_name!r} cannot be rolled back to a checkpoint, so a restore "
                "would not be exactly-once.",
                hint="Write to a file sink (parquet, orc, json, csv, text), or say by "
                "sink_to(rows, ForeachBatchSink(...)) how the sink goes back, or set "
                "CheckpointConfig(mode='AT_LEAST_ONCE') and let the sink bear repeated rows.",
            )


def plan_of(writer: DataStreamWriter) -> WriterPlan:
    """Read the plan of a writer.

    Raises:
        InvalidConfiguration: it is not a ``DataStreamWriter`` of a classic (not Connect) session.
    """
    java = getattr(writer, "_jwrite", None)
    if java is None:
        raise InvalidConfiguration(
            f"The job's function must return a DataStreamWriter that is not started, not {type(writer).__name__}.",
            hint="Return df.writeStream....option('path', ...) without calling start(); Spark Connect sessions are "
            "not supported.",
        )
    options = java_field(java, "extraOptions")

    def option(name: str) -> str | None:
        found = options.get(name)
        return str(found.get()) if found.isDefined() else None

    trigger = java_field(java, "trigger")
    return WriterPlan(
        format=str(java_field(java, "source")).lower().replace("foreachbatch", "foreachBatch"),
        path=option("path"),
        checkpoint_location=option("checkpointLocation"),
        query_name=option("queryName"),
        continuous="ContinuousTrigger" in trigger.getClass().getName(),
        attached=attached_sink(writer),
    )


def java_field(java: Any, name: str) -> Any:
    """The value of a private field of a Java object."""
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)
