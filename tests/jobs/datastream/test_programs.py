"""Whole programs in PyFlink's spelling, and what each setting does to the query that Spark runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.state_backend import HDFS_PROVIDER, ROCKSDB_PROVIDER
from dagster_ckpt.datastream import (
    CheckpointingMode,
    Configuration,
    ExternalizedCheckpointCleanup,
    FlinkDifference,
    FsStateBackend,
    PredefinedOptions,
    RestartStrategies,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TimeCharacteristic,
)
from dagster_ckpt.errors import InvalidConfiguration, QueryFailed, QueryMismatch, RestoreWithLoss
from tests.jobs.datastream.programs import query_of, run_until, watched
from tests.jobs.failing.test_restarts import failing
from tests.jobs.harness import Bench, copied, deduplicated, eventually, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint
    from tests.jobs.harness import Query


def in_pyflink(bench: Bench, build: Query) -> StreamExecutionEnvironment:
    """A program as one would write it for Flink, but for the query."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(50, CheckpointingMode.EXACTLY_ONCE)
    env.get_checkpoint_config().enable_externalized_checkpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)
    backend = RocksDBStateBackend(f"file://{bench.storage}/", True)
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    env.set_state_backend(backend)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 1))
    env.set_parallelism(3)
    env.add_query(query_of(bench, build))
    return env


def test_a_program_fails_is_restarted_interrupted_and_gone_on_with(bench: Bench) -> None:
    bench.land(4)
    bench.until_done = False
    build = failing(1, bench.root / "failed")
    lines = run_until(
        lambda: in_pyflink(bench, build).execute("tiny"),
        lambda line: "completed at batch 3" in line and bench.in_sink_log() == bench.expected(),
    )
    assert [line for line in lines if "row 12 is bad" in line and "restart 1 of 2" in line]
    assert [line.partition(" of lineage")[0] for line in lines if " starts " in line] == [
        "tiny: Epoch 1",
        "tiny: Epoch 2",
    ]
    end = bench.catalog.records.epochs.read_end(2)
    assert end is not None
    assert end.status == "CANCELED"
    (newest,) = bench.checkpoints()  # Flink retains one
    assert newest.facts.state_store_provider == ROCKSDB_PROVIDER
    assert newest.facts.partitions == 3, "not the two of the session"
    assert (bench.storage / "tiny" / newest.job_id / newest.name / "_metadata").is_file()
    assert bench.spark.conf.get("spark.sql.shuffle.partitions") == "2", "a query has a session of its own"

    other = in_pyflink(bench, build).set_parallelism(2)
    before = bench.photograph()
    with pytest.raises(QueryMismatch, match=r"has 3 partitions, and the job is to have 2"):
        other.execute("tiny")
    before.assert_untouched(bench)

    bench.until_done = True
    bench.land(2)
    with watched() as lines:
        result = in_pyflink(bench, build).execute("tiny")
    assert [line for line in lines if f"starts from {newest.reference}" in line]
    (query,) = result.queries
    assert (query.job_name, query.job_id, query.status) == ("tiny", newest.job_id, JobStatus.FINISHED)
    assert query.checkpoint is None
    assert not bench.checkpoints(), "Flink keeps no checkpoints of a job that finishes"
    bench.assert_exact()


def test_no_restart_is_none(bench: Bench) -> None:
    bench.land(4)
    env = in_pyflink(bench, failing(1, bench.root / "failed")).set_restart_strategy(RestartStrategies.no_restart())
    with pytest.raises(QueryFailed, match="row 12 is bad"):
        env.execute("tiny")
    assert bench.checkpoints(), "RETAIN_ON_CANCELLATION keeps those of a job that fails, too"


def watermarked(bench: Bench, session: SparkSession) -> DataStreamWriter:
    rows = bench.read(session).withWatermark("ts", "1 hour").dropDuplicates(["id"])
    return bench.write(rows.filter("v >= 0").select("id", "v"))


class _Inspected:
    """The running query of a program as Spark has it: its plan and its trigger."""

    def __init__(self, bench: Bench, build: Query) -> None:
        self._build = build
        self._bench = bench
        self._session: SparkSession | None = None
        self.plan = self.trigger = ""

    def build(self, bench: Bench, session: SparkSession) -> DataStreamWriter:
        self._session = session
        return self._build(bench, session)

    def look(self, line: str) -> bool:
        if "completed at batch" not in line:
            return False
        assert self._session is not None
        (query,) = self._session.streams.active
        self.plan = query._jsq.explainInternal(False)
        self.trigger = str(query._jsq.streamingQuery().trigger().toString())
        return True


def test_code_generation_and_trigger_of_the_running_query(bench: Bench) -> None:
    bench.land(2)
    bench.until_done = False
    found = []
    for chaining, timeout in ((True, -1), (False, 250), (True, 0)):
        inspected = _Inspected(bench, watermarked)
        env = in_pyflink(bench, inspected.build).set_buffer_timeout(timeout)
        env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
        if not chaining:
            env.disable_operator_chaining()
        bench.land(1)
        run_until(lambda: env.execute("tiny"), inspected.look)  # noqa: B023 - called at once
        found.append(("*(1)" in inspected.plan, inspected.trigger))
        assert "EventTimeWatermark" in inspected.plan
    assert found == [
        (True, "ProcessingTimeTrigger(0)"),
        (False, "ProcessingTimeTrigger(250)"),
        (True, "ProcessingTimeTrigger(0)"),
    ]


def test_a_buffer_timeout_takes_the_place_of_the_querys_trigger(bench: Bench) -> None:
    bench.land(1)
    assert bench.until_done
    inspected = _Inspected(bench, copied)
    run_until(lambda: in_pyflink(bench, inspected.build).set_buffer_timeout(0).execute("tiny"), inspected.look)
    assert inspected.trigger == "ProcessingTimeTrigger(0)"


def test_event_time_needs_a_watermark(bench: Bench) -> None:
    bench.land(1)
    env = in_pyflink(bench, copied)
    env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
    with pytest.raises(InvalidConfiguration, match="'tiny' has no watermark"):
        env.execute("tiny")
    assert not bench.sink.exists(), "nothing was started"
    env.set_stream_time_characteristic(TimeCharacteristic.ProcessingTime)
    env.execute("tiny")
    assert bench.in_raw_directory()


def test_the_plan_of_a_query_that_has_not_started(bench: Bench) -> None:
    bench.land(1)
    env = in_pyflink(bench, watermarked)
    nodes: list[dict[str, Any]] = json.loads(env.get_execution_plan())["nodes"]
    assert [node["id"] for node in nodes] == list(range(1, len(nodes) + 1))
    source, *operators, sink = nodes
    assert source["pact"] == "Data Source"
    assert "predecessors" not in source
    assert {"EventTimeWatermark", "Deduplicate"} <= {node["type"] for node in operators}
    assert {node["pact"] for node in operators} == {"Operator"}
    assert (sink["pact"], sink["type"], sink["contents"]) == ("Data Sink", "parquet", f"parquet file:{bench.sink}")
    for node in [*operators, sink]:
        assert node["predecessors"] == [{"id": node["id"] - 1}], "it is a chain"
    assert not bench.sink.exists()
    assert not bench.storage.exists()


def test_a_program_replays_forks_and_goes_back_with_loss(bench: Bench) -> None:
    def run(name: str, last: int, build: Query = deduplicated, path: str | None = None, **asked: Any) -> list[str]:
        keys = {"state.checkpoints.num-retained": "50", **({"execution.state-recovery.path": path} if path else {})}
        env = in_pyflink(bench, build).configure(Configuration(keys))
        return run_until(lambda: env.execute(name, **asked), lambda line: f"completed at batch {last}:" in line)

    bench.until_done = False
    for files in (2, 3):
        bench.land(files)
        run("tiny", bench.landed - 1)
    first, *_ = bench.checkpoints()
    again = f"Running batches {first.batch + 1} to 4 again"
    assert [line for line in run("tiny", 4, path="chk-1", replay_to="latest") if again in line]
    bench.assert_exact()

    fork = Bench(bench.spark, bench.root / "fork", until_done=False)
    run(
        "fork",
        4,
        lambda _, session: fork.write(bench.read(session).dropDuplicates(["id"]).select("id", "v")),
        fork_from=f"{bench.storage}/tiny/{first.reference}",
    )
    assert set(fork.in_sink_log()) == {row for row in bench.expected() if row[0] >= 5 * first.batch + 8}

    (bench.source / "0004.json").unlink()
    with pytest.raises(RestoreWithLoss):
        run("tiny", 3, path="chk-1")
    bench.assert_exact()
    run("tiny", 3, path="chk-1", allow_loss=True)
    assert bench.in_sink_log() != bench.expected()


class TestSeveralQueries:
    @pytest.fixture
    def pair(self, bench: Bench) -> tuple[Bench, Bench]:
        benches = Bench(bench.spark, bench.root / "one", name="one"), Bench(bench.spark, bench.root / "two", name="two")
        for each in benches:
            each.land(3)
        return benches

    def program(self, storage: Path, *queries: Callable[..., Any]) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(50).get_checkpoint_config().set_checkpoint_storage_dir(str(storage))
        env.get_checkpoint_config().enable_externalized_checkpoints(
            ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION
        )
        env.set_restart_strategy(RestartStrategies.no_restart())
        for query in queries:
            env.add_query(query)
        return env

    def test_each_is_a_job_of_its_own(self, pair: tuple[Bench, Bench], tmp_path: Path) -> None:
        one, two = pair
        with watched() as lines:
            result = self.program(tmp_path / "storage", query_of(one), query_of(two, copied)).execute("pair")
        assert [query.job_name for query in result.queries] == ["pair__one", "pair__two"]
        assert {query.status for query in result.queries} == {JobStatus.FINISHED}
        assert len({query.job_id for query in result.queries}) == 2
        one.assert_exact()
        two.query = copied
        two.assert_exact()
        began = [line.partition(":")[0] for line in lines if " starts from nothing" in line]
        assert sorted(began) == ["pair__one", "pair__two"]

    def test_one_that_fails_leaves_the_other_alone(self, pair: tuple[Bench, Bench], tmp_path: Path) -> None:
        one, two = pair
        env = self.program(tmp_path / "storage", query_of(one, failing(9, one.root / "failed")), query_of(two))
        with pytest.raises(QueryFailed, match=r"'pair__one'.*row 12 is bad"):
            env.execute("pair")
        two.assert_exact()


class TestWithoutCheckpointing:
    def program(self, bench: Bench, **keys: str) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(keys))
        env.set_state_backend(FsStateBackend(str(bench.storage), str(bench.root / "savepoints")))
        env.add_query(query_of(bench))
        return env

    def test_a_savepoint_can_be_taken_and_restored(self, bench: Bench) -> None:
        bench.land(0)
        bench.until_done = False
        taken: list[TakenSavepoint] = []

        def ask() -> None:
            eventually("the query starts", lambda: bench.catalog.choice() is not None)
            bench.land(3)
            eventually("the files are read", lambda: bench.in_sink_log() == bench.expected())
            taken.append(
                take_savepoint(
                    bench.catalog,
                    None,
                    default=str(bench.root / "savepoints"),
                    stop=True,
                    timeout="4 min",
                    clock=SystemClock(),
                    wait=threading.Event().wait,
                    report=lambda _: None,
                )
            )

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        with watched() as lines:
            result = self.program(bench).execute("tiny")
        asking.join()
        assert result.queries[0].status is JobStatus.FINISHED
        completed = [line for line in lines if "completed" in line]
        assert len(completed) == 2, "one checkpoint when the query was stopped, none before"
        assert "Savepoint of batch 2 completed" in completed[-1]
        assert not bench.checkpoints()
        saved = tree(Path(taken[0].pointer))

        bench.until_done = True
        bench.land(2)
        with watched() as lines:
            self.program(bench, **{"execution.state-recovery.path": taken[0].pointer}).execute("tiny")
        assert [line for line in lines if " starts from " in line and "(batch 2)" in line]
        bench.assert_exact()
        assert tree(Path(taken[0].pointer)) == saved

    def test_state_is_in_the_heap_where_the_backend_says_so(self, bench: Bench) -> None:
        bench.land(2)
        bench.until_done = False
        env = self.program(bench).enable_checkpointing(50)
        providers: list[object] = []

        def look(line: str) -> bool:
            if "completed at batch" in line:
                providers.append(bench.checkpoints()[-1].facts.state_store_provider)
            return bool(providers)

        run_until(lambda: env.execute("tiny"), look)
        assert providers == [HDFS_PROVIDER]


def test_what_a_running_spark_cannot_be_told_any_more(bench: Bench) -> None:
    bench.land(1)
    env = in_pyflink(bench, copied)
    env.set_default_local_parallelism(7)
    with pytest.warns(FlinkDifference, match=r"already runs with the master local\[2\]"):
        env.execute("tiny")
    bench.query = copied
    bench.assert_exact()

    late = in_pyflink(bench, copied)
    late.register_type("java.util.ArrayDeque")
    with pytest.raises(InvalidConfiguration, match=r"already runs without .*java\.util\.ArrayDeque"):
        late.execute("late")
    assert not (bench.storage / "late" / "control" / "epochs" / "e-1.choice").exists()
