"""``StreamExecutionEnvironment``: what it keeps, and the jobs that it makes of that, without Spark."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from dagster_ckpt.config import restart as ours
from dagster_ckpt.config import state_backend
from dagster_ckpt.datastream import (
    CheckpointingMode,
    CheckpointStorage,
    Configuration,
    EmbeddedRocksDBStateBackend,
    FileSystemCheckpointStorage,
    FlinkDifference,
    FsStateBackend,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    MemoryStateBackend,
    RestartStrategies,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TimeCharacteristic,
)
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import DriverMemory, PosixFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.spark.job import StreamingJob


def turnover(session: SparkSession) -> DataStreamWriter:
    raise NotImplementedError


def returns(session: SparkSession) -> DataStreamWriter:
    raise NotImplementedError


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def jobs(env: StreamExecutionEnvironment, job_name: str | None = "shop") -> list[StreamingJob]:
    return env._program().jobs(job_name)


def job(env: StreamExecutionEnvironment) -> StreamingJob:
    env.add_query(turnover)
    (only,) = jobs(env)
    return only


def test_defaults(env: StreamExecutionEnvironment) -> None:
    assert env.get_checkpoint_interval() == -1
    assert env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert env.get_parallelism() == env.get_max_parallelism() == -1
    assert env.get_buffer_timeout() == -1
    assert env.get_default_local_parallelism() == os.cpu_count()
    assert env.get_state_backend() is None
    assert env.get_restart_strategy() == RestartStrategies.fall_back_restart()
    assert env.get_stream_time_characteristic() is TimeCharacteristic.ProcessingTime
    assert env.is_chaining_enabled()
    made = job(env)
    assert isinstance(made.filesystem, DriverMemory)
    assert (made.partitions, made.state_backend, made.savepoint_path) == (None, None, None)
    assert StreamExecutionEnvironment.get_execution_environment() is not env


class TestConfigure:
    KEYS: ClassVar = {
        "parallelism.default": "8",
        "execution.buffer-timeout": "250",
        "pipeline.operator-chaining": "false",
        "execution.checkpointing.interval": "3 s",
        "state.backend.type": "hashmap",
        "restart-strategy.type": "none",
    }

    def test_keys_of_a_program_reach_the_environment(self) -> None:
        for env in (StreamExecutionEnvironment(Configuration(self.KEYS)), StreamExecutionEnvironment()):
            assert env.configure(Configuration(self.KEYS)) is env
            assert (env.get_parallelism(), env.get_max_parallelism()) == (8, -1)
            assert env.get_buffer_timeout() == 250
            assert not env.is_chaining_enabled()
            assert env.get_checkpoint_interval() == 3000
            made = job(env)
            assert (made.partitions, made.restart) == (8, ours.NoRestart())
            assert isinstance(env.get_state_backend(), HashMapStateBackend)

    def test_what_comes_later_wins_and_the_rest_stays(self, env: StreamExecutionEnvironment, tmp_path: Path) -> None:
        env.set_parallelism(16).set_buffer_timeout(7).set_state_backend(EmbeddedRocksDBStateBackend())
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1000))
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "first"))
        env.configure(Configuration({"pipeline.max-parallelism": "16", "execution.buffer-timeout.enabled": "false"}))
        assert (env.get_parallelism(), env.get_max_parallelism(), env.get_buffer_timeout()) == (16, 16, -1)
        assert isinstance(env.get_state_backend(), EmbeddedRocksDBStateBackend)
        assert env.get_restart_strategy() == RestartStrategies.fixed_delay_restart(3, 1000)
        later = {"execution.checkpointing.dir": str(tmp_path / "second"), "restart-strategy.type": "none"}
        env.configure(Configuration(later))
        made = job(env)
        assert made.filesystem.url == str(tmp_path / "second")
        assert made.restart == ours.NoRestart()

    @pytest.mark.parametrize(
        "refused",
        [
            {"execution.checkpointing.max-concurrent-checkpoints": "0"},
            {"state.backend.type": "no.such.Backend"},
            {"parallelism.default": "0"},
            {"pipeline.max-parallelism": "100000"},
        ],
        ids=lambda keys: list(keys)[-1],
    )
    def test_what_is_refused_changes_nothing(self, env: StreamExecutionEnvironment, refused: dict[str, str]) -> None:
        env.set_parallelism(16).set_buffer_timeout(7).enable_checkpointing(1_000)
        config, execution = env.get_checkpoint_config(), env.get_config()
        env.add_query(turnover)

        def state() -> tuple[object, ...]:
            made = jobs(env)[0]
            return (
                (made.config, made.restart, made.partitions),
                env.get_state_backend(),
                env.get_restart_strategy(),
                env.get_buffer_timeout(),
                env.is_chaining_enabled(),
                env.get_parallelism(),
                env.get_max_parallelism(),
                env.get_checkpoint_interval(),
            )

        before = state()
        with pytest.raises(InvalidConfiguration):
            env.configure(Configuration({**self.KEYS, **refused}))
        assert state() == before
        env.configure(Configuration({"pipeline.operator-chaining": "true"}))
        assert state() == before, "a later configuration brings nothing of it either"
        env.configure(Configuration(self.KEYS))
        assert env.get_checkpoint_config() is config
        assert env.get_config() is execution
        assert config.get_checkpoint_interval() == 3000
        assert execution.get_parallelism() == 8

    def test_what_has_no_effect_warns(self, env: StreamExecutionEnvironment) -> None:
        with pytest.warns(FlinkDifference, match="state.changelog.enabled = 'true' has no effect"):
            env.configure(Configuration({"state.changelog.enabled": "true"}))

    def test_a_configuration_may_change_afterwards(self, env: StreamExecutionEnvironment) -> None:
        given = Configuration(self.KEYS)
        env.configure(given)
        given.set_string("restart-strategy.type", "fixed-delay")
        assert job(env).restart == ours.NoRestart()


def test_checkpointing(env: StreamExecutionEnvironment) -> None:
    assert env.enable_checkpointing(300_000, CheckpointingMode.AT_LEAST_ONCE) is env
    assert env.get_checkpoint_interval() == env.get_checkpoint_config().get_checkpoint_interval() == 300_000
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    env.enable_checkpointing(1_000)
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE, "no mode leaves the one that is set"
    assert job(env).config == env.get_checkpoint_config().to_config()
    assert job_interval(env) == timedelta(seconds=1)


def job_interval(env: StreamExecutionEnvironment) -> timedelta | None:
    return jobs(env)[0].config.interval


class TestRestart:
    def test_none_without_checkpointing(self, env: StreamExecutionEnvironment) -> None:
        assert job(env).restart == ours.NoRestart()

    def test_exponential_delay_with_checkpointing(self, env: StreamExecutionEnvironment) -> None:
        env.enable_checkpointing(1_000)
        assert job(env).restart == ours.ExponentialDelayRestart()

    def test_what_is_configured_wins_over_both(self) -> None:
        keys = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 7}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(keys))
        assert job(env).restart == ours.FixedDelayRestart(7, timedelta(seconds=1))

    def test_what_is_set_wins_over_all(self) -> None:
        env = StreamExecutionEnvironment(Configuration({"restart-strategy.type": "fixed-delay"}))
        strategy = RestartStrategies.failure_rate_restart(2, 1_000, 1)
        assert env.set_restart_strategy(strategy).get_restart_strategy() == strategy
        assert job(env).restart == strategy.to_config()

    def test_it_must_be_one_of_this_package(self, env: StreamExecutionEnvironment) -> None:
        with pytest.raises(TypeError, match="RestartStrategies"):
            env.set_restart_strategy(ours.NoRestart())  # type: ignore[arg-type]


class TestStateBackendAndStorage:
    def test_a_backend_reaches_the_job(self, env: StreamExecutionEnvironment) -> None:
        backend = HashMapStateBackend()
        assert env.set_state_backend(backend).get_state_backend() is backend
        assert job(env).state_backend == state_backend.HashMapStateBackend()

    def test_it_must_be_one_of_this_package(self, env: StreamExecutionEnvironment) -> None:
        with pytest.raises(TypeError, match="CustomStateBackend"):
            env.set_state_backend(state_backend.HashMapStateBackend())  # type: ignore[arg-type]

    def test_a_storage_reaches_the_job(self, env: StreamExecutionEnvironment, tmp_path: Path) -> None:
        storage = FileSystemCheckpointStorage(f"file://{tmp_path}", 2_048, savepoint_path="/savepoints")
        env.get_checkpoint_config().set_checkpoint_storage(storage)
        made = job(env)
        assert isinstance(made.filesystem, PosixFileSystem)
        assert made.filesystem.local("shop") == tmp_path / "shop"
        assert (made.inline_threshold, made.savepoint_path) == (2_048, "/savepoints")

    def test_an_old_backend_wins_over_a_storage(self, env: StreamExecutionEnvironment, tmp_path: Path) -> None:
        env.set_state_backend(FsStateBackend(str(tmp_path / "backend")))
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "storage"))
        env.add_query(turnover)
        env.add_query(returns)
        with pytest.warns(FlinkDifference, match="wins over it") as told:
            made = jobs(env)
        assert len(told) == 1, "one warning, however many queries there are"
        for one in made:
            assert isinstance(one.filesystem, PosixFileSystem)
            assert one.filesystem.local("x") == tmp_path / "backend" / "x"

    def test_a_newer_backend_leaves_the_storage(self, env: StreamExecutionEnvironment, tmp_path: Path) -> None:
        env.set_state_backend(EmbeddedRocksDBStateBackend())
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
        made = job(env)
        assert isinstance(made.filesystem, PosixFileSystem)
        assert isinstance(made.state_backend, state_backend.EmbeddedRocksDBStateBackend)

    def test_a_limit_of_state_in_the_drivers_memory(self, env: StreamExecutionEnvironment) -> None:
        env.set_state_backend(MemoryStateBackend(max_state_size=1_000))
        assert job(env).max_state_size == 1_000

    def test_string_keys_say_what_nothing_else_says(self, tmp_path: Path) -> None:
        keys = {
            "execution.checkpointing.dir": str(tmp_path),
            "execution.checkpointing.savepoint-dir": "/savepoints",
            "execution.checkpointing.incremental": True,
            "state.backend.type": "rocksdb",
        }
        made = job(StreamExecutionEnvironment.get_execution_environment(Configuration(keys)))
        assert isinstance(made.filesystem, PosixFileSystem)
        assert made.savepoint_path == "/savepoints"
        assert made.state_backend == state_backend.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)

    def test_string_keys_fill_in_what_an_old_backend_leaves_open(self, tmp_path: Path) -> None:
        keys = {
            "state.checkpoints.dir": str(tmp_path),
            "state.savepoints.dir": "/savepoints",
            "state.backend.fs.memory-threshold": "1 kb",
        }
        memory = StreamExecutionEnvironment(Configuration(keys)).set_state_backend(MemoryStateBackend())
        made = job(memory)
        assert isinstance(made.filesystem, PosixFileSystem), "else the driver's memory"
        assert made.filesystem.local("x") == tmp_path / "x"
        assert (made.savepoint_path, made.max_state_size) == ("/savepoints", 5_242_880)
        files = StreamExecutionEnvironment(Configuration(keys)).set_state_backend(FsStateBackend("/own"))
        made = job(files)
        assert isinstance(made.filesystem, PosixFileSystem)
        assert made.filesystem.local("x") == Path("/own/x")
        assert (made.savepoint_path, made.inline_threshold) == ("/savepoints", 1_024)

    def test_the_example_of_the_document(self, env: StreamExecutionEnvironment, tmp_path: Path) -> None:
        env.set_state_backend(RocksDBStateBackend("file://var/checkpoints/"))
        with pytest.raises(InvalidConfiguration, match="names a host") as raised:
            job(env)
        assert "Did you forget a slash? Write file:///var/checkpoints" in raised.value.hint, "Flink's jobs end so, too"
        env.set_state_backend(RocksDBStateBackend(f"file://{tmp_path}/var/checkpoints/"))
        (made,) = jobs(env)
        assert made.state_backend == state_backend.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False)
        assert isinstance(made.filesystem, PosixFileSystem)
        assert made.filesystem.local("x") == tmp_path / "var" / "checkpoints" / "x"

    def test_keys_without_an_effect_are_warned_about(self) -> None:
        with pytest.warns(FlinkDifference, match="forced"):
            StreamExecutionEnvironment(Configuration({"execution.checkpointing.unaligned.forced": True}))


class TestRemoteDirectories:
    """Refused when the jobs are built: before Spark is started and anything is touched."""

    @pytest.mark.parametrize("scheme", ["maprfs", "alluxio", "ceph"])
    def test_each_scheme_is_refused_by_name(self, env: StreamExecutionEnvironment, scheme: str) -> None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(f"{scheme}:///checkpoints-data/")
        env.add_query(turnover)
        with pytest.raises(InvalidConfiguration, match=f"has the scheme '{scheme}'") as raised:
            env.execute("shop")
        assert raised.value.hint.startswith("Use an absolute path, a file:// URL, or one like gs://bucket/directory")

    @pytest.mark.parametrize(
        "storage",
        [
            FileSystemCheckpointStorage("hdfs://checkpoints"),
            JobManagerCheckpointStorage("hdfs://checkpoints/"),
        ],
    )
    def test_a_storage_of_one(self, env: StreamExecutionEnvironment, storage: CheckpointStorage) -> None:
        env.get_checkpoint_config().set_checkpoint_storage(storage)
        env.add_query(turnover)
        with pytest.raises(InvalidConfiguration, match="takes 'checkpoints' for a NameNode"):
            env.execute("shop")

    def test_a_configured_one(self) -> None:
        env = StreamExecutionEnvironment(Configuration({"state.checkpoints.dir": "ceph:///checkpoints/"}))
        env.add_query(turnover)
        with pytest.raises(InvalidConfiguration, match="has the scheme 'ceph'"):
            env.execute("shop")

    def test_hdfs(self, env: StreamExecutionEnvironment) -> None:
        env.get_checkpoint_config().set_checkpoint_storage(
            FileSystemCheckpointStorage("hdfs:///checkpoints-data/", 2_048)
        )
        assert job(env).filesystem.url == "hdfs:///checkpoints-data"


class TestParallelism:
    def test_either_is_the_number_of_partitions(self, env: StreamExecutionEnvironment) -> None:
        assert env.set_parallelism(4).get_parallelism() == env.get_config().get_parallelism() == 4
        assert job(env).partitions == 4
        other = StreamExecutionEnvironment()
        assert other.set_max_parallelism(8).get_max_parallelism() == other.get_config().get_max_parallelism() == 8
        assert job(other).partitions == 8

    def test_the_maximum_is_what_stays(self, env: StreamExecutionEnvironment) -> None:
        env.set_parallelism(4)
        with pytest.warns(FlinkDifference, match="one number for both") as told:
            env.set_max_parallelism(8)
        assert len(told) == 1
        assert job(env).partitions == 8

    def test_equal_numbers_are_no_matter(self, env: StreamExecutionEnvironment) -> None:
        assert job(env.set_parallelism(4).set_max_parallelism(4)).partitions == 4

    def test_no_more_than_the_maximum(self, env: StreamExecutionEnvironment) -> None:
        env.set_parallelism(9).set_max_parallelism(8)
        with pytest.raises(InvalidConfiguration, match="greater than the max parallelism"):
            job(env)

    @pytest.mark.parametrize("wrong", [0, -2, 2**31])
    def test_out_of_range(self, env: StreamExecutionEnvironment, wrong: int) -> None:
        with pytest.raises(InvalidConfiguration, match="from 1 to 2147483647"):
            env.set_parallelism(wrong)
        with pytest.raises(InvalidConfiguration, match="from 1 to 2147483647"):
            env.set_default_local_parallelism(wrong)
        for number in (wrong, 32_768):
            with pytest.raises(InvalidConfiguration, match="32767"):
                env.set_max_parallelism(number)
        assert env.set_max_parallelism(32_767).get_max_parallelism() == 32_767

    def test_minus_one_takes_it_back(self, env: StreamExecutionEnvironment) -> None:
        assert job(env.set_parallelism(4).set_parallelism(-1)).partitions is None

    def test_local_parallelism(self, env: StreamExecutionEnvironment) -> None:
        env.set_default_local_parallelism(3)
        assert env.get_default_local_parallelism() == 3


def test_types_are_what_spark_is_started_with(env: StreamExecutionEnvironment) -> None:
    env.register_type("com.aaa.bbb.TypeClass")
    env.register_type_with_kryo_serializer("com.aaa.bbb.Another", "com.aaa.bbb.Registrator")
    env.add_default_kryo_serializer("com.aaa.bbb.Third", "com.aaa.bbb.Defaults")
    env.add_query(turnover)
    assert env._program().spark._kryo == {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.classesToRegister": "com.aaa.bbb.TypeClass,com.aaa.bbb.Another,com.aaa.bbb.Third",
        "spark.kryo.registrator": "com.aaa.bbb.Registrator,com.aaa.bbb.Defaults",
    }


def test_a_watermark_moves_with_the_batch(env: StreamExecutionEnvironment) -> None:
    config = env.get_config()
    assert config.get_auto_watermark_interval() == 0
    with pytest.warns(FlinkDifference, match="once a batch"):
        config.set_auto_watermark_interval(200)
    assert config.get_auto_watermark_interval() == 200


class TestTime:
    def test_numbers_are_flinks(self) -> None:
        assert [(time.name, time.value) for time in TimeCharacteristic] == [
            ("ProcessingTime", 0),
            ("IngestionTime", 1),
            ("EventTime", 2),
        ]

    def test_it_is_returned(self, env: StreamExecutionEnvironment) -> None:
        env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
        assert env.get_stream_time_characteristic() is TimeCharacteristic.EventTime
        with pytest.raises(InvalidConfiguration, match=r"TimeCharacteristic\.EventTime"):
            env.set_stream_time_characteristic(3)  # type: ignore[arg-type]

    def test_spark_has_no_ingestion_time(self, env: StreamExecutionEnvironment) -> None:
        with pytest.warns(FlinkDifference, match=r"current_timestamp\(\)") as told:
            env.set_stream_time_characteristic(TimeCharacteristic.IngestionTime)
        assert len(told) == 1


@pytest.mark.parametrize("timeout", [-1, 0, 250])
def test_a_buffer_timeout_is_returned(env: StreamExecutionEnvironment, timeout: int) -> None:
    assert env.set_buffer_timeout(timeout).get_buffer_timeout() == timeout
    with pytest.raises(InvalidConfiguration, match="-2"):
        env.set_buffer_timeout(-2)
    with pytest.raises(InvalidConfiguration, match="is longer than 36500 d"):
        env.set_buffer_timeout(10**13)


def test_chaining_is_switched_off_for_good(env: StreamExecutionEnvironment) -> None:
    assert not env.disable_operator_chaining().is_chaining_enabled()


class TestQueries:
    def test_one_has_the_name_of_the_job(self, env: StreamExecutionEnvironment) -> None:
        assert env.add_query(turnover) is turnover
        assert [made.name for made in jobs(env, "shop")] == ["shop"]
        assert [made.name for made in jobs(env, None)] == ["turnover"]

    def test_several_have_their_own(self, env: StreamExecutionEnvironment) -> None:
        env.add_query(turnover)
        env.add_query(returns)
        assert [made.name for made in jobs(env, "shop")] == ["shop__turnover", "shop__returns"]
        assert [made.name for made in jobs(env, None)] == ["turnover", "returns"]

    def test_two_of_one_name(self, env: StreamExecutionEnvironment) -> None:
        env.add_query(turnover)
        with pytest.raises(InvalidConfiguration, match="'turnover' already"):
            env.add_query(turnover)

    def test_a_name_must_be_a_directory_name(self, env: StreamExecutionEnvironment) -> None:
        env.add_query(turnover)
        with pytest.raises(InvalidConfiguration, match="becomes a directory"):
            env.execute("My job / 1")

    def test_there_must_be_one(self, env: StreamExecutionEnvironment) -> None:
        with pytest.raises(InvalidConfiguration, match="add_query"):
            env.execute("shop")
        with pytest.raises(InvalidConfiguration, match="add_query"):
            env.get_execution_plan()

    def test_a_checkpoint_is_one_querys(self) -> None:
        env = StreamExecutionEnvironment(Configuration({"execution.state-recovery.path": "chk-12"}))
        env.add_query(turnover)
        env.add_query(returns)
        with pytest.raises(InvalidConfiguration, match="of one job, and there are 2"):
            env.execute("shop")
