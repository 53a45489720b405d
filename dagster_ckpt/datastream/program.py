"""The queries and settings of an environment as jobs: each setting at its place in a :class:`StreamingJob`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import layout
from dagster_ckpt.config import Configuration, NoRestart, RestartStrategy
from dagster_ckpt.datastream.checkpoint_config import CheckpointConfig
from dagster_ckpt.datastream.checkpoint_storage import CheckpointStorage, configured_storage
from dagster_ckpt.datastream.enums import TimeCharacteristic, warn
from dagster_ckpt.datastream.kryo import check_kryo
from dagster_ckpt.datastream.state_backend import StateBackend
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import SparkSessionResource
from dagster_ckpt.spark import StreamingJob, has_let_go, has_watermark, plan_nodes, streaming_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Query = Callable[[SparkSession], DataStreamWriter]

__all__ = ["Program", "SharedSpark"]

_OWN_TRIGGER = -1


class SharedSpark:
    """The Spark session of all queries of an environment: the session of this process, or a new local session.

    A local session whose JVM is lost is replaced by another one. A session that the program has made is not: nobody
    here knows how it was made.

    Args:
        chosen: threads of a local Spark, if the user chose them.
        threads: threads of a local Spark.
        kryo: settings that Spark must have been started with.
    """

    def __init__(self, chosen: int | None, threads: int, kryo: Mapping[str, str]) -> None:
        self._chosen = chosen
        self._master = f"local[{threads}]"
        self._kryo = kryo
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._is_local = False

    def session(self, app_name: str, launch_conf: Mapping[str, str]) -> SparkSession:
        """Start Spark, or join the session of this process; each call returns the same session while its JVM runs.

        Raises:
            JavaNotFound: no usable Java.
            InvalidConfiguration: Spark already runs without the required ``kryo`` settings.
        """
        from pyspark import SparkContext  # noqa: PLC0415 - half a second that only a driver has to pay

        with self._lock:
            if self._session is not None and self._is_local and has_let_go(self._session) is not None:
                self._session = None
            if self._session is None:
                self._is_local = SparkContext._active_spark_context is None  # noqa: SLF001 - there is no public way
                resource = SparkSessionResource(master=self._master)
                spark = resource.session(app_name, {**launch_conf, **self._kryo})
                check_kryo(spark, self._kryo)
                if self._chosen is not None and spark.sparkContext.master != self._master:
                    warn(
                        f"set_default_local_parallelism({self._chosen}) changes nothing: Spark already runs with the "
                        f"master {spark.sparkContext.master}."
                    )
                self._session = spark
            return self._session


@dataclass(frozen=True, slots=True)
class Program:
    """The queries of an environment and their settings.

    Attributes:
        queries: by the names of their functions.
        configuration: Flink's string keys, for values that are not set otherwise.
        checkpoint_config: when checkpoints are taken and kept, and where, unless the state backend sets where.
        state_backend: how state is kept.
        restart: what happens after a failure.
        partitions: of a query and its state.
        time: ``EventTime`` for queries that must have a watermark.
        buffer_timeout: milliseconds between the starts of two batches, 0 for no pause; -1 for the query's trigger.
        chaining: whether Spark generates common code for the operators of a stage.
        spark: the session that runs the queries.
    """

    queries: Mapping[str, Query]
    configuration: Configuration
    checkpoint_config: CheckpointConfig
    state_backend: StateBackend | None
    restart: RestartStrategy
    partitions: int | None
    time: TimeCharacteristic
    buffer_timeout: int
    chaining: bool
    spark: SharedSpark

    def jobs(self, job_name: str | None) -> list[StreamingJob]:
        """A job for each query.

        Raises:
            InvalidConfiguration: a name is not a possible directory name, or a setting cannot be used.
        """
        if job_name is None:
            names = {name: name for name in self.queries}
        elif len(self.queries) == 1:
            names = dict.fromkeys(self.queries, job_name)
        else:
            names = {name: f"{job_name}__{name}" for name in self.queries}
        config = self.checkpoint_config.to_config()
        for sentence in config.warnings:
            warn(sentence)
        backend = None if self.state_backend is None else self.state_backend.configured(self.configuration)
        launch_conf = {} if backend is None else backend.launch_conf()
        storage = self._storage().configured(self.configuration)
        return [
            StreamingJob.stored_in(
                storage,
                storage.filesystem(),
                name=layout.validate_job_name(name),
                query=self._as_set(name, query),
                session=partial(self.spark.session, job_name or next(iter(self.queries)), launch_conf),
                config=config,
                restart=self._restart_strategy(),
                state_backend=backend,
                partitions=self.partitions,
                poison_batch_attempts=None,  # as in Flink, the restart strategy alone decides
            )
            for name, query in ((names[function], query) for function, query in self.queries.items())
        ]

    def plan(self) -> list[dict[str, Any]]:
        """The operators of all queries in Flink's form. Calls into the JVM."""
        nodes: list[dict[str, Any]] = []
        for job in self.jobs(None):
            session = streaming_session(job.session(), None, job.state_backend, job.partitions)
            first = len(nodes) + 1
            for number, node in enumerate(plan_nodes(job.query(session)), first):
                pact = "Data Sink" if node.sink else "Operator" if node.inputs else "Data Source"
                predecessors = [{"id": first + place} for place in node.inputs]
                described = {"id": number, "type": node.name, "pact": pact, "contents": node.text}
                nodes.append({**described, **({"predecessors": predecessors} if predecessors else {})})
        return nodes

    def _as_set(self, name: str, query: Query) -> Query:
        def built(session: SparkSession) -> DataStreamWriter:
            if not self.chaining:
                session.conf.set("spark.sql.codegen.wholeStage", "false")
            writer = query(session)
            if self.time is TimeCharacteristic.EventTime and not has_watermark(writer):
                raise InvalidConfiguration(
                    f"The query of job {name!r} has no watermark, which TimeCharacteristic.EventTime needs.",
                    hint="Add .withWatermark(column, delay) to it, or set TimeCharacteristic.ProcessingTime.",
                )
            if self.buffer_timeout != _OWN_TRIGGER:
                writer = writer.trigger(processingTime=f"{self.buffer_timeout} milliseconds")
            return writer

        return built

    def _storage(self) -> CheckpointStorage:
        """The storage, in Flink's order: the state backend's, the storage that was set, the configured storage."""
        of_backend = None if self.state_backend is None else self.state_backend.checkpoint_storage
        chosen = self.checkpoint_config.get_checkpoint_storage()
        if of_backend is not None and chosen is not None:
            warn(
                f"The checkpoint storage {chosen} is not used: that of {self.state_backend} wins over it, as in Flink."
            )
        return of_backend or chosen or configured_storage(self.configuration)

    def _restart_strategy(self) -> RestartStrategy:
        configured = self.configuration.restart_strategy()
        if configured is None and not self.checkpoint_config.is_checkpointing_enabled():
            configured = NoRestart()
        return self.restart.resolve(configured)
