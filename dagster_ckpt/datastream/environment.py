"""``StreamExecutionEnvironment``: PyFlink's way to configure checkpoints of queries, and to run the queries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING

from dagster_ckpt import config
from dagster_ckpt.datastream.checkpoint_config import CheckpointConfig
from dagster_ckpt.datastream.common import ExecutionConfig
from dagster_ckpt.datastream.enums import CheckpointingMode, TimeCharacteristic, member, warn
from dagster_ckpt.datastream.execution import JobExecutionResult, run_jobs
from dagster_ckpt.datastream.kryo import kryo_conf
from dagster_ckpt.datastream.program import Program, SharedSpark
from dagster_ckpt.datastream.restart import RestartStrategies
from dagster_ckpt.datastream.rocksdb_state_backend import configured_backend
from dagster_ckpt.datastream.state_backend import StateBackend
from dagster_ckpt.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["StreamExecutionEnvironment"]

_OWN_TRIGGER = -1


class StreamExecutionEnvironment:
    """Collects queries and their settings, with Flink's defaults, and runs the queries.

    .. code-block:: python

        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(30_000)
        env.get_checkpoint_config().set_checkpoint_storage_dir("/data/checkpoints")
        env.add_query(turnover)  # def turnover(spark: SparkSession) -> DataStreamWriter, not started
        env.execute("turnover")

    The environment joins the Spark session of this process, or starts a local session. To run on a cluster, or with
    your own Spark settings, start the session first.

    Args:
        configuration: settings by Flink's string keys; setters of the environment override them.
    """

    def __init__(self, configuration: config.Configuration | None = None) -> None:
        self._configuration = config.Configuration()
        self._checkpoint_config = CheckpointConfig()
        self._config = ExecutionConfig()
        self._state_backend: StateBackend | None = None
        self._restart_strategy: RestartStrategies.RestartStrategyConfiguration = RestartStrategies.fall_back_restart()
        self._time = TimeCharacteristic.ProcessingTime
        self._buffer_timeout = _OWN_TRIGGER
        self._chaining = True
        self._local_parallelism: int | None = None
        self._types: list[str] = []
        self._registrators: list[str] = []
        self._queries: dict[str, Callable[[SparkSession], DataStreamWriter]] = {}
        if configuration is not None:
            self.configure(configuration)

    @staticmethod
    def get_execution_environment(configuration: config.Configuration | None = None) -> StreamExecutionEnvironment:
        """A new environment."""
        return StreamExecutionEnvironment(configuration)

    def configure(self, configuration: config.Configuration) -> StreamExecutionEnvironment:
        """Take over settings by Flink's string keys: each key that is set overrides what the environment has.

        Raises:
            InvalidConfiguration: a value is out of range, or two values exclude each other; nothing has changed.
        """
        for sentence in configuration.warnings:
            warn(sentence)
        updated = self._configuration.updated(configuration)
        state_backend = configured_backend(configuration) or self._state_backend
        execution = copy(self._config)
        if configuration.parallelism is not None:
            execution.set_parallelism(configuration.parallelism)
        if configuration.max_parallelism is not None:
            execution.set_max_parallelism(configuration.max_parallelism)
        restarts = configuration.restart_strategy() is not None
        self._checkpoint_config.configure(configuration)  # refuses all or nothing, and nothing after it refuses
        self._configuration, self._state_backend = updated, state_backend
        vars(self._config).update(vars(execution))
        if restarts:
            self._restart_strategy = RestartStrategies.fall_back_restart()
        if configuration.buffer_timeout is not None:
            self.set_buffer_timeout(configuration.buffer_timeout)
        if configuration.operator_chaining is not None:
            self._chaining = configuration.operator_chaining
        return self

    def get_config(self) -> ExecutionConfig:
        """How many partitions the queries have."""
        return self._config

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The checkpoint configuration, to be changed in place."""
        return self._checkpoint_config

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> StreamExecutionEnvironment:
        """Take a checkpoint every ``interval`` milliseconds; ``mode`` sets what a restore promises."""
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between the starts of two checkpoints; -1 while checkpointing is off."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """What a restore promises."""
        return self._checkpoint_config.get_checkpointing_mode()

    def set_state_backend(self, state_backend: StateBackend) -> StreamExecutionEnvironment:
        """Set how the queries keep their state.

        Raises:
            TypeError: ``state_backend`` is not a state backend of this package.
        """
        if not isinstance(state_backend, StateBackend):
            raise TypeError(
                f"{state_backend!r} is no dagster_ckpt.datastream.StateBackend; one of dagster_ckpt is wrapped by "
                "CustomStateBackend(state_backend)."
            )
        self._state_backend = state_backend
        return self

    def get_state_backend(self) -> StateBackend | None:
        """How the queries keep their state; ``None`` for Spark's configuration, else RocksDB."""
        return self._state_backend

    def set_restart_strategy(
        self, restart_strategy_configuration: RestartStrategies.RestartStrategyConfiguration
    ) -> StreamExecutionEnvironment:
        """Set what happens after a failure.

        Raises:
            TypeError: the strategy was not made by :class:`RestartStrategies`.
        """
        if not isinstance(restart_strategy_configuration, RestartStrategies.RestartStrategyConfiguration):
            raise TypeError(
                f"{restart_strategy_configuration!r} is not one of dagster_ckpt.datastream.RestartStrategies."
            )
        self._restart_strategy = restart_strategy_configuration
        return self

    def get_restart_strategy(self) -> RestartStrategies.RestartStrategyConfiguration:
        """What happens after a failure."""
        return self._restart_strategy

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """See :meth:`ExecutionConfig.set_parallelism`."""
        self._config.set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        """See :meth:`ExecutionConfig.get_parallelism`."""
        return self._config.get_parallelism()

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """See :meth:`ExecutionConfig.set_max_parallelism`."""
        self._config.set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """See :meth:`ExecutionConfig.get_max_parallelism`."""
        return self._config.get_max_parallelism()

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the threads of a Spark that is started here: the master becomes ``local[parallelism]``.

        Raises:
            InvalidConfiguration: ``parallelism`` is no number of threads.
        """
        if not 1 <= parallelism <= config.GREATEST_INT:
            raise InvalidConfiguration(
                f"The default local parallelism must be from 1 to {config.GREATEST_INT}, not {parallelism}."
            )
        self._local_parallelism = parallelism

    def get_default_local_parallelism(self) -> int:
        """The threads of a Spark that is started here; by default the processors of this machine."""
        return self._local_parallelism or os.cpu_count() or 1

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """Set how long rows wait until they are passed on: Spark collects rows in batches, so this sets the trigger.

        Args:
            timeout_millis: a positive number begins a batch every so many milliseconds; 0 begins a batch as soon as the
                previous batch has ended; -1, the default, leaves the trigger to the query. In Flink -1 waits for a full
                buffer; here the query itself limits a batch (``maxFilesPerTrigger``, ``availableNow``).

        Raises:
            InvalidConfiguration: ``timeout_millis`` is less than -1, or longer than any duration.
        """
        if timeout_millis < _OWN_TRIGGER:
            raise InvalidConfiguration(f"The buffer timeout must be zero or positive, or -1, not {timeout_millis}.")
        try:
            config.milliseconds(timeout_millis)
        except ValueError as error:
            raise InvalidConfiguration(f"The buffer timeout cannot be used: {error}.") from None
        self._buffer_timeout = timeout_millis
        return self

    def get_buffer_timeout(self) -> int:
        """The value given to :meth:`set_buffer_timeout`; by default -1, the query's own trigger."""
        return self._buffer_timeout

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Run each operator by itself: Spark generates no common code for the operators of a stage."""
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Whether Spark generates common code for the operators of a stage."""
        return self._chaining

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> None:
        """Set which time the queries use; see :class:`TimeCharacteristic`."""
        chosen = member(TimeCharacteristic, characteristic)
        if chosen is TimeCharacteristic.IngestionTime:
            warn(
                "TimeCharacteristic.IngestionTime changes nothing: Spark gives rows no time of their own when they "
                "come in. Add one in the query, with current_timestamp(), and a watermark on it."
            )
        self._time = chosen

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        """Which time the queries use."""
        return self._time

    def register_type(self, type_class_name: str) -> None:
        """Register a Java class with Kryo, which becomes the serializer of a Spark that is started here.

        Kryo does not serialize rows and state: Spark has its own format for them.
        """
        self._types.append(type_class_name)

    def register_type_with_kryo_serializer(self, type_class_name: str, serializer_class_name: str) -> None:
        """Register a Java class with Kryo, and a registrator that sets its serializer.

        Args:
            type_class_name: the class.
            serializer_class_name: a class that extends ``org.apache.spark.serializer.KryoRegistrator`` and sets the
                serializer. Flink's own serializer classes are refused when Spark starts: Spark has no setting for the
                serializer of a type.
        """
        self.register_type(type_class_name)
        self._registrators.append(serializer_class_name)

    def add_default_kryo_serializer(self, type_class_name: str, serializer_class_name: str) -> None:
        """As :meth:`register_type_with_kryo_serializer`: the registrator also sets default serializers."""
        self.register_type_with_kryo_serializer(type_class_name, serializer_class_name)

    def add_query(
        self, function: Callable[[SparkSession], DataStreamWriter]
    ) -> Callable[[SparkSession], DataStreamWriter]:
        """Add a query in Spark's own API, which replaces Flink's sources, transformations and sinks.

        Args:
            function: takes a session and returns a ``DataStreamWriter`` that is not started and has no
                ``checkpointLocation``. May be called more than once.

        Returns:
            ``function``, so that the method also works as a decorator.

        Raises:
            InvalidConfiguration: a query of this name exists.
        """
        name = function.__name__
        if name in self._queries:
            raise InvalidConfiguration(
                f"There is a query {name!r} already.", hint="The name of a query is that of its function; rename one."
            )
        self._queries[name] = function
        return function

    def get_execution_plan(self) -> str:
        """The queries as JSON in Flink's form: ``nodes``, each after the nodes it reads from.

        A node is an operator of Spark's logical plan or a sink, and has ``id``, ``type``, ``pact``, ``contents`` and
        ``predecessors``. Nodes have no ``parallelism``, which Spark chooses for each stage at run time. The method
        starts Spark if necessary, but no query.

        Raises:
            InvalidConfiguration: there is no query, or a setting cannot be used.
        """
        program = self._program()
        with ThreadPoolExecutor(1, "dagster-ckpt-plan") as worker:
            # Ask on another thread: an interrupt of this thread would leave an answer of the JVM unread.
            return json.dumps({"nodes": worker.submit(program.plan).result()})

    def execute(
        self,
        job_name: str | None = None,
        *,
        replay_to: str | int | None = None,
        allow_loss: bool = False,
        fork_from: str | None = None,
        state_partitions: int | None = None,
        start_sources: config.StartSources | None = None,
    ) -> JobExecutionResult:
        """Run the queries until they end, each as its own job that continues from its newest checkpoint.

        ``execution.state-recovery.path`` of the configuration names another beginning: ``none``, ``chk-12``, or the
        path of a checkpoint or savepoint; ``execution.state-recovery.claim-mode`` sets who owns that checkpoint. Events
        are logged under ``dagster_ckpt.datastream``.

        Args:
            job_name: must stay the same, because it names the directory of the checkpoints. With several queries each
                job is ``{job_name}__{function}``. By default a job has the name of its query's function.
            replay_to: up to which batch those after the checkpoint are run again as they were: ``latest``, ``none``, or
                a batch.
            allow_loss: restore although rows would be lost or doubled.
            fork_from: a checkpoint or savepoint of any job, for a single query that has no checkpoint of its own and
                begins with a copy.
            state_partitions: the number of partitions that the state of a single query gets in the restored copy.
            start_sources: where topics of Kafka are read from in the restored copy, for a single query.

        Raises:
            InvalidConfiguration: there is no query, or a setting cannot be used.
            CheckpointError: a query failed and is not restarted; all other queries have ended by then.
        """
        jobs = self._program().jobs(job_name)
        return run_jobs(
            jobs,
            config.RestoreRequest(
                self._configuration.restore_path or config.LATEST,
                self._configuration.claim_mode,
                replay_to,
                allow_loss=allow_loss,
                fork_from=fork_from,
                state_partitions=state_partitions,
                start_sources=start_sources,
            ),
        )

    def _program(self) -> Program:
        if not self._queries:
            raise InvalidConfiguration(
                "There is no query to execute.", hint="Add one with add_query: a function that returns a writer."
            )
        return Program(
            queries=self._queries,
            configuration=self._configuration,
            checkpoint_config=self._checkpoint_config,
            state_backend=self._state_backend,
            restart=self._restart_strategy.to_config(),
            partitions=self._config.partitions,
            time=self._time,
            buffer_timeout=self._buffer_timeout,
            chaining=self._chaining,
            spark=SharedSpark(
                self._local_parallelism,
                self.get_default_local_parallelism(),
                kryo_conf(self._types, self._registrators),
            ),
        )
