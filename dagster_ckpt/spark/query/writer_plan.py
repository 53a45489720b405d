"""What an unstarted ``DataStreamWriter`` will do: its sink and options.

PySpark has no getters for these, so the private fields of Spark's own writer are read. The fields have had these names
since Spark 2.0; a test fails if the names change. Spark itself is asked which class a format names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.config import CheckpointingMode
from dagster_ckpt.errors import InvalidConfiguration, RestoreRefused
from dagster_ckpt.spark.query.session import check_characters
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks import BatchSink, CustomSink, Sink, SparkFileSink, attached_sink

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["WriterPlan", "bounded", "java_field", "java_writer", "plan_of", "qualified", "with_options"]

_FOREACH_BATCH = "foreachBatch"
_ASYNCHRONOUS = "asyncProgressTrackingEnabled"
#: Sinks that keep no data, so none that a restore could contradict.
_TRANSIENT = frozenset({"noop", "console"})
#: Table formats that have a sink of their own: the sink, and the names of the format.
_WITH_A_SINK = (
    ("DeltaSink(path)", "sink-delta", ("delta", "io.delta", "org.apache.spark.sql.delta")),
    ("IcebergSink(table)", "sink-iceberg", ("iceberg", "org.apache.iceberg")),
)
#: Table formats whose writers record in the table which batches of a query they have seen, by format, class or package.
#: A rollback of the table does not reliably remove that record.
_REMEMBERING = (
    *(name for _, _, names in _WITH_A_SINK for name in names),
    "hudi",
    "org.apache.hudi",
)
_JAVA_SQL = "org.apache.spark.sql.execution.datasources."
#: Spark uses its file sink for subclasses of these.
_FILE_CLASSES = (f"{_JAVA_SQL}FileFormat", f"{_JAVA_SQL}v2.FileDataSourceV2")


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """Where a query is going to write.

    Attributes:
        format: the given format, in lower case; ``foreachBatch`` or ``foreach``.
        provider: the Java class of the format, ``None`` where Spark knows no class.
        writes_files: whether Spark uses its file sink, whatever the name of the format.
        path: the ``path`` option.
        checkpoint_location: the option, if the user set it.
        query_name: the name, if the user set one.
        continuous: whether the trigger is continuous.
        real_time: whether the trigger is of real-time mode.
        available_now: whether the trigger is ``availableNow``.
        once: whether the trigger is the older ``once``.
        attached: the sink that ``sink_to`` attached to the writer.
    """

    format: str
    provider: str | None
    writes_files: bool
    path: str | None
    checkpoint_location: str | None
    query_name: str | None
    continuous: bool
    real_time: bool = False
    available_now: bool = False
    once: bool = False
    attached: Sink | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the query ends by itself, when it has read what is there."""
        return self.available_now or self.once

    @property
    def is_transient(self) -> bool:
        """Whether the query's sink keeps no data."""
        return self.attached is None and self.format in _TRANSIENT

    def sink(self) -> Sink | None:
        """The sink if checkpoints cover it, else ``None``.

        Raises:
            InvalidConfiguration: the sink is a file sink that is not on a local path.
        """
        if self.attached is not None:
            return self.attached
        if not self.writes_files or self.path is None:
            return None
        return SparkFileSink(self.path)

    def check(self, job_name: str, mode: CheckpointingMode) -> None:
        """Refuse a query that cannot be checkpointed as promised.

        Raises:
            InvalidConfiguration: a checkpointLocation, or a continuous or real-time trigger is set, or the writer would
                skip batches that run again after a rollback, or the query does not write to the attached sink.
            RestoreRefused: the sink cannot be rolled back to a checkpoint, which ``EXACTLY_ONCE`` requires.
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
        if self.real_time:
            raise InvalidConfiguration(
                f"The query of job {job_name!r} has a real-time trigger: Spark then plans a batch only when the "
                "batch is over, so no batch can run again as it was, and no sink that can go back takes its rows.",
                hint="Use trigger(processingTime=...) or trigger(availableNow=True).",
            )
        self._check_memory(job_name, mode)
        exact = self.attached is not None or self.writes_files or self.format in _TRANSIENT
        if mode is CheckpointingMode.EXACTLY_ONCE and not exact:
            raise RestoreRefused(
                f"The {self.format} sink of job {job_name!r} cannot be rolled back to a checkpoint, so a restore "
                "would not be exactly-once.",
                hint="Write to a file sink (parquet, orc, json, csv, text, xml), or say by "
                "sink_to(rows, ForeachBatchSink(...)) how the sink goes back, or set "
                "CheckpointConfig(mode='AT_LEAST_ONCE') and let the sink bear repeated rows.",
            )

    def _check_memory(self, job_name: str, mode: CheckpointingMode) -> None:
        """Refuse a writer whose own memory of batches survives a rollback, with or without an attached sink.

        Such a writer loses rows even without a rollback: a written batch whose boundaries are no longer known runs
        again under its number with other rows, and the writer skips that batch.
        """
        if isinstance(self.attached, BatchSink) and self.format != _FOREACH_BATCH:
            raise InvalidConfiguration(
                f"Sink {self.attached.path!r} of job {job_name!r} is written by a function, but the format of the "
                f"writer was set to {self.format} afterwards, and Spark would write by that.",
                hint="Return what sink_to() gives without calling format() on it.",
            )
        if any(self._is_named(name) for name in _REMEMBERING):
            borne = (
                "" if mode is CheckpointingMode.EXACTLY_ONCE else " AT_LEAST_ONCE bears doubled rows, not lost ones."
            )
            raise InvalidConfiguration(
                f"The {self.format} writer of job {job_name!r} keeps by itself which batches of a query it has seen, "
                "and a restore may not take that back: the writer would skip batches that run again with other rows, "
                f"and their rows would be lost.{borne}",
                hint=self._instead(),
            )
        if isinstance(self.attached, CustomSink) and self.writes_files:
            raise InvalidConfiguration(
                f"Sink {self.attached.path!r} of job {job_name!r} is a CustomSink around Spark's file sink, which "
                "keeps in _spark_metadata which batches it has seen: it would skip batches that run again after a "
                "rollback, and their rows would be lost.",
                hint="Return the writer itself, without sink_to(): a restore puts the files and _spark_metadata back.",
            )

    def _instead(self) -> str:
        """What writes the tables of the format exactly."""
        for sink, page, names in _WITH_A_SINK:
            if any(map(self._is_named, names)):
                return f"Write by sink_to(rows, {sink}); docs/how-to/{page}.md shows it."
        return (
            "Write each batch by a function of yours without the writer's transaction ids, by sink_to(rows, "
            "ForeachBatchSink(...)), or write to sink_to(rows, TransactionalFileSink(...)); "
            "docs/how-to/sink-foreach-batch.md says what the function must do."
        )

    def _is_named(self, name: str) -> bool:
        """Whether the format or its class equals ``name``, or lies in the package ``name``."""
        given = (self.format, (self.provider or "").lower())
        return any(each == name or each.startswith(f"{name}.") for each in given)


def java_writer(writer: DataStreamWriter) -> Any:
    """The writer of Spark that PySpark's writer stands for.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic (not Connect) session.
    """
    java = getattr(writer, "_jwrite", None)
    if java is None:
        raise InvalidConfiguration(
            f"The job's function must return a DataStreamWriter that is not started, not {type(writer).__name__}.",
            hint="Return df.writeStream....option('path', ...) without calling start(); Spark Connect sessions are "
            "not supported.",
        )
    return java


def plan_of(writer: DataStreamWriter) -> WriterPlan:
    """Read the plan of a writer.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic (not Connect) session.
    """
    java = java_writer(writer)
    options = java_field(java, "extraOptions")

    def option(name: str) -> str | None:
        found = options.get(name)
        return str(found.get()) if found.isDefined() else None

    trigger = java_field(java, "trigger")
    source = str(java_field(java, "source"))
    provider = _provider(writer, source)
    writes_files = provider is not None and _is_file_class(writer, provider)
    path = option("path")
    return WriterPlan(
        format=source.lower().replace("foreachbatch", _FOREACH_BATCH),
        provider=None if provider is None else str(provider.getName()),
        writes_files=writes_files,
        path=qualified(writer, path) if writes_files and path is not None else path,
        checkpoint_location=option("checkpointLocation"),
        query_name=option("queryName"),
        continuous="ContinuousTrigger" in trigger.getClass().getName(),
        real_time="RealTimeTrigger" in trigger.getClass().getName(),
        available_now="AvailableNowTrigger" in trigger.getClass().getName(),
        once="OneTimeTrigger" in trigger.getClass().getName(),
        attached=attached_sink(writer),
    )


def with_options(writer: DataStreamWriter, settings: Mapping[str, str]) -> DataStreamWriter:
    """The writer of a file sink, with settings of Hadoop for the files that the query writes.

    Where Spark does not hand a writer's options to Hadoop, the settings go to the session, whose only query this is.
    """
    session = writer._spark  # noqa: SLF001 - PySpark's writer has no getter for it
    if release_of(session.version).writer_options_are_hadoops:
        return writer.options(**settings)
    for name, value in settings.items():
        session.conf.set(name, value)
    return writer


@contextmanager
def bounded(writer: DataStreamWriter, *, available_now: bool = False) -> Iterator[None]:
    """Give the writer a trigger whose query ends by itself, and its own trigger again afterwards.

    Asynchronous progress tracking has no such trigger, so it is off as long.

    Args:
        writer: the writer.
        available_now: read all that is there, in batches of the query's size, instead of one batch.
    """
    java = java_writer(writer)
    kept = java_field(java, "trigger")
    # Spark heeds upper and lower case in the name of this option, which the map itself does not.
    asynchronous = java_field(java, "extraOptions").originalMap().get(_ASYNCHRONOUS)
    if available_now:
        writer.trigger(availableNow=True)
    else:
        writer.trigger(once=True)
    if asynchronous.isDefined():
        writer.option(_ASYNCHRONOUS, "false")
    try:
        yield
    finally:
        java.trigger(kept)
        if asynchronous.isDefined():
            writer.option(_ASYNCHRONOUS, asynchronous.get())


def _provider(writer: DataStreamWriter, source: str) -> Any:
    """The Java class that a format names.

    ``None`` for ``foreachBatch`` and the like, and for a format without a class here, because its jar is missing.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs
    from pyspark.errors import PySparkException  # noqa: PLC0415

    session = writer._spark  # noqa: SLF001 - PySpark's writer has no getter for it
    conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001
    data_source = getattr(session._jvm, f"{_JAVA_SQL}DataSource")  # noqa: SLF001
    try:
        return data_source.lookupDataSource(source, conf)
    except (Py4JError, PySparkException):
        return None


def _is_file_class(writer: DataStreamWriter, provider: Any) -> bool:
    java: Any = writer._spark._jvm  # noqa: SLF001
    return any(java.java.lang.Class.forName(name).isAssignableFrom(provider) for name in _FILE_CLASSES)


def qualified(writer: DataStreamWriter, path: str) -> str:
    """The path as Hadoop opens it: with its default file system, in the JVM's working directory, without ``..``."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    session = writer._spark  # noqa: SLF001
    check_characters(session, path)
    java: Any = session._jvm  # noqa: SLF001
    hadoop = java.org.apache.hadoop.fs
    try:
        default = hadoop.FileSystem.getDefaultUri(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
        here = hadoop.Path(java.java.lang.System.getProperty("user.dir"))
        named = hadoop.Path(path)
        return str((named if named.toUri().getScheme() else named.makeQualified(default, here)).toString())
    except Py4JJavaError:  # no Hadoop path: Spark refuses it, too
        return path


def java_field(java: Any, name: str) -> Any:
    """The value of a private field of a Java object."""
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)
