"""The data files of a batch: Spark writes them for an Iceberg table, and no reader sees them before a commit.

``foreachBatch`` gives the rows of a batch as a table that is there already. To write that, Spark would plan a second
query for each batch, and copy each row. So the plan that Spark has made of the batch itself is written, as by a
streaming query of Iceberg's, wherever the table takes the rows as they are. All others go by Spark's writer.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ["STAGED_TABLES", "Staging"]

_log = logging.getLogger(__name__)

STAGED_TABLES = "org.apache.iceberg.spark.SparkTableCache"
#: With Spark 4.0, Spark's writer stages files under this option; later it does so for every staged table.
_STAGED = "rewritten-file-scan-task-set-id"
#: What the sinks of this library record in a table with each commit; it changes nothing of how files are written.
_OWN_PROPERTIES = r"dagster_ckpt\..*"
#: Settings that name listeners of Spark's, which know a write by the query that Spark's writer makes of it.
_LISTENERS = ("spark.extraListeners", "spark.sql.queryExecutionListeners")
#: What a thread of a streaming query says of itself: the query, and its run.
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"
_EXECUTION = "org.apache.spark.sql.execution."
_GIVEN_ROWS, _COMPILED = f"{_EXECUTION}RDDScanExec", f"{_EXECUTION}WholeStageCodegenExec"
_APPENDED = f"{_EXECUTION}datasources.v2.AppendDataExec"
_ANYHOW = "org.apache.spark.sql.connector.distributions.UnspecifiedDistributionImpl$"


class _Batch(NamedTuple):
    """A batch as Spark gave it to ``foreachBatch``.

    Attributes:
        query: Spark's query, which may be stopped meanwhile.
        plan: the plan that Spark has made of the batch.
    """

    query: Any
    plan: Any


class _Write(NamedTuple):
    """How Spark writes the rows of a query to the table, without a plan of their own.

    Attributes:
        settings: what the table and the columns of the rows were when Spark planned it.
        staged: the name under which the files of a batch are found.
        refresh: what Spark calls after a write.
        files: Iceberg's ``Write``, which makes the writers of each batch.
    """

    settings: str
    staged: str
    refresh: Any
    files: Any


class Staging:
    """Has Spark write the data files of the batches of one query.

    Args:
        session: the session that the query was started in, with Iceberg's classes.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        jvm: Any = session._jvm  # noqa: SLF001 - Iceberg has no Python interface to its writers
        # By reflection, because the class has an instance method of the same name.
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        loaded = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(STAGED_TABLES)
        nothing = (gateway.new_array(kind, 0) for kind in (jvm.java.lang.Class, jvm.java.lang.Object))
        self._staged_tables = loaded.getMethod("get", next(nothing)).invoke(None, next(nothing))
        # Once: the JVM looks for a class by its name in all jars, and is asked for a static method before each call.
        self._coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        self._schemas = jvm.org.apache.iceberg.spark.SparkSchemaUtil
        self._table_of, self._copy = jvm.org.apache.iceberg.BaseTable, jvm.java.util.HashMap
        self._own = jvm.java.util.regex.Pattern.compile(_OWN_PROPERTIES).asPredicate()
        self._sql = jvm.org.apache.spark.sql
        self._append_data_exec = self._sql.execution.datasources.v2.AppendDataExec
        self._listened = any(session.conf.get(name, None) for name in _LISTENERS)
        #: What only the table has, by the id of its schema: all rows that a query writes have the same columns.
        self._missing: dict[int, Mapping[str, DataType]] = {}
        self._kept: _Write | None = None
        #: The settings with which the rows go by Spark's writer.
        self._by_writer = ""
        #: Held while files are under the name of the kept write. Another thread stages by Spark's writer meanwhile.
        self._in_use = threading.Lock()

    def files(self, table: Any, rows: DataFrame, options: Mapping[str, str]) -> Sequence[Any]:
        """Write the data files of ``rows``.

        The table may have another schema or partitioning by now: such files can be added, so nobody looks before.

        Args:
            table: Iceberg's table.
            rows: one batch, or any rows.
            options: options for Spark's ``DataFrameWriter``, the same each time.
        """
        # Every writer adds a reporter of metrics to the table that it is given, for good.
        table = self._table_of(table.operations(), table.name())
        batch = self._known_batch(rows)
        if batch is not None and self._in_use.acquire(blocking=False):
            try:
                write = self._write(table, rows, options, batch)
                if write is not None:
                    return self._written(table, write, batch)
            finally:
                self._in_use.release()
        return self._by_sparks_writer(table, rows, options)

    def _by_sparks_writer(self, table: Any, rows: DataFrame, options: Mapping[str, str]) -> Sequence[Any]:
        staged = self._stage(table)
        try:
            writer = self._of_all_columns(table, rows).write.format("iceberg").options(**options)
            writer.option(_STAGED, staged).mode("append").save(staged)
            return self._staged_files(table, staged)
        finally:
            self._staged_tables.remove(staged)
            self._coordinator.clearRewrite(table, staged)

    def _stage(self, table: Any) -> str:
        staged = f"dagster_ckpt-{uuid.uuid4().hex}"
        self._staged_tables.add(staged, table)
        return staged

    # --- the plan of a batch -----------------------------------------------------------------------------------------

    def _known_batch(self, rows: DataFrame) -> _Batch | None:
        from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - it comes with PySpark

        try:
            return self._batch(rows)
        except Py4JJavaError:
            raise
        except Py4JError as error:
            _log.debug("Batches go by Spark's writer, because this Spark does not tell their plans: %s", error)
            return None

    def _batch(self, rows: DataFrame) -> _Batch | None:
        """The batch whose rows these are, if they are all of it, as Spark gave it."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - PySpark is loaded where it runs

        context, execution = self._session.sparkContext, None
        identifier = None if self._listened else context.getLocalProperty(_QUERY)
        if identifier:
            query: Any = self._session._jsparkSession.streams().get(identifier)  # noqa: SLF001
            # A thread of an earlier run of the query may have rows of that run.
            if query is not None and query.runId().toString() == context.getLocalProperty(_RUN):
                execution = query.streamingQuery().lastExecution()
        # Rows that somebody keeps in memory are not read again. And Spark needs an active session to execute a plan.
        if execution is None or _kept_in_memory(rows) or SparkSession.getActiveSession() is None:
            return None
        given = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
        if given.getClass().getSimpleName() != "LogicalRDD" or not given.rdd().equals(execution.toRdd()):
            return None
        return _Batch(query, execution.executedPlan())

    def _write(self, table: Any, rows: DataFrame, options: Mapping[str, str], batch: _Batch) -> _Write | None:
        """How the rows are written, ``None`` if they are not written as they are."""
        settings = self._settings(table, rows)
        if settings != self._by_writer and (self._kept is None or self._kept.settings != settings):
            self._kept = self._planned(table, rows, options, settings, batch)
            self._by_writer = "" if self._kept else settings
        return self._kept if settings != self._by_writer else None

    def _settings(self, table: Any, rows: DataFrame) -> str:
        metadata = table.operations().current()
        properties = self._copy(metadata.properties())
        properties.keySet().removeIf(self._own)
        numbers = metadata.currentSchemaId(), metadata.defaultSpecId(), metadata.defaultSortOrderId()
        columns = rows._jdf.schema().json()  # noqa: SLF001
        return f"{metadata.uuid()} {metadata.formatVersion()} {numbers} {properties.toString()} {columns}"

    def _planned(
        self, table: Any, rows: DataFrame, options: Mapping[str, str], settings: str, batch: _Batch
    ) -> _Write | None:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - it comes with PySpark
        from pyspark.errors import PySparkException  # noqa: PLC0415

        staged = self._stage(table)
        try:
            relation = rows.sparkSession.read.format("iceberg").options(**options).option(_STAGED, staged).load(staged)
            return self._taken_as_they_are(self._physical(relation, rows), settings, staged, batch)
        except (Py4JError, PySparkException, TypeError) as error:
            if not batch.query.isActive():
                raise  # the query was stopped in the middle of this
            # Spark's writer tells what is wrong, if anything is.
            _log.debug("Batches go by Spark's writer, because no plan of theirs can be written: %s", error)
            return None
        finally:
            self._staged_tables.remove(staged)

    def _physical(self, relation: DataFrame, rows: DataFrame) -> Any:
        """The plan by which Spark's writer would append the rows."""
        to, given = (each._jdf.queryExecution().analyzed() for each in (relation, rows))  # noqa: SLF001
        no_options: Any = self._session._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})  # type: ignore[union-attr]  # noqa: SLF001
        append = self._sql.catalyst.plans.logical.AppendData.byName(to, given, no_options)
        modes = getattr(self._sql.execution, "CommandExecutionMode$")
        state: Any = rows.sparkSession._jsparkSession.sessionState()  # noqa: SLF001
        return state.executePlan(append, modes.__getattr__("MODULE$").SKIP()).executedPlan()

    def _taken_as_they_are(self, physical: Any, settings: str, staged: str, batch: _Batch) -> _Write | None:
        if physical.getClass().getName() != _APPENDED:
            return None
        source, files = physical.query(), physical.write()
        # This batch may be in order by its plan, so that Spark does not sort it, and the next one may not.
        if len(files.requiredOrdering()) or files.requiredDistribution().getClass().getName() != _ANYHOW:
            return None
        source = source.child() if source.getClass().getName() == _COMPILED else source
        if source.getClass().getName() != _GIVEN_ROWS:
            return None
        write = _Write(settings, staged, physical.refreshCache(), files)
        self._appending(write, batch)  # here it is known whether Spark has such a plan
        return write

    def _appending(self, write: _Write, batch: _Batch) -> Any:
        return self._append_data_exec(batch.plan, write.refresh, write.files)

    def _written(self, table: Any, write: _Write, batch: _Batch) -> Sequence[Any]:
        try:
            self._appending(write, batch).executeCollect()
            return self._staged_files(table, write.staged)
        finally:
            self._coordinator.clearRewrite(table, write.staged)

    def _staged_files(self, table: Any, staged: str) -> Sequence[Any]:
        # An array: in Python an iterator of Java's ends by an exception, which PySpark looks at for long.
        return list(self._coordinator.fetchNewFiles(table, staged).toArray())

    def _of_all_columns(self, table: Any, rows: DataFrame) -> DataFrame:
        """``rows`` with a null for each column that only the table has."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is loaded where it runs
        from pyspark.sql.types import StructType  # noqa: PLC0415

        schema = table.schema()
        identifier = int(schema.schemaId())
        if identifier not in self._missing:
            stored = json.loads(self._schemas.convert(schema).json())
            there = {name.lower() for name in rows.columns}
            self._missing[identifier] = {
                field.name: field.dataType for field in StructType.fromJson(stored) if field.name.lower() not in there
            }
        missing = self._missing[identifier]
        return rows.withColumns({name: f.lit(None).cast(kind) for name, kind in missing.items()}) if missing else rows


def _kept_in_memory(rows: DataFrame) -> bool:
    level: Any = rows._jdf.storageLevel()  # noqa: SLF001
    return bool(level.useMemory() or level.useDisk())
