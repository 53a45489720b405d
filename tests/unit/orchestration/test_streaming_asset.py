from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, assert_type

import dagster as dg
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    CheckpointingMode,
    Configuration,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointCleanup,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt import spark as spark_door
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.restart import ExponentialDelayRestart, FixedDelayRestart
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.spark.events import CheckpointCompleted, EpochClaimed, Event
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.spark.run.job_run import StreamingRun
from tests.helpers.orchestration.stored_job import StoredJob, run_id

_RESOURCES: Mapping[str, Any] = {
    "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="unused"),
    "spark": SparkSessionResource(),
}


@dg.asset
def landed() -> None:
    pass


def delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Counts delays."""
    raise AssertionError("no test runs this query")


def test_the_function_gives_its_name_and_description() -> None:
    asset = checkpointed_streaming_asset()(delays)
    assert isinstance(asset, CheckpointedStreamingAsset)
    assert asset.key == dg.AssetKey(["delays"])
    assert asset.checkpoints_key == dg.AssetKey(["delays_checkpoints"])
    assert (asset.name, asset.job_name, asset.op_name) == ("delays", "delays_job", "delays")
    assert asset.partitions_name == "delays_checkpoints"
    assert asset.descriptions_by_key[asset.key] == "Counts delays."


def test_it_may_stand_without_brackets() -> None:
    @checkpointed_streaming_asset
    def bare(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        """Counts delays."""
        raise AssertionError("no test runs this query")

    @checkpointed_streaming_asset(name="bare")
    def named(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        """Counts delays."""
        raise AssertionError("no test runs this query")

    assert_type(bare, CheckpointedStreamingAsset)
    assert_type(named, CheckpointedStreamingAsset)
    assert bare.get_asset_spec() == named.get_asset_spec()
    assert (bare.name, bare.config, bare.restart) == (named.name, named.config, named.restart)
    assert inspect.signature(checkpointed_streaming_asset).parameters.keys() >= {"name", "deps", "config"}


def test_no_option_is_given_by_position_or_misspelt() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        checkpointed_streaming_asset("delays")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="positional argument"):
        checkpointed_streaming_asset(delays, name="other")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="nmae"):
        checkpointed_streaming_asset(nmae="delays")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "given",
    [
        {"job_name": "my-job"},
        {"job_name": "a.b"},
        {"job_name": "a" * 64},
        {"name": "a" * 64},
        {"key_prefix": ["of-the-shop"]},
        {"key_prefix": ["a" * 30, "b" * 30]},
    ],
)
def test_a_name_that_dagster_does_not_take_is_refused_with_the_way_on(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be the name of a job in Dagster") as raised:
        checkpointed_streaming_asset(**given)(delays)
    assert "job_name of at most 63" in raised.value.hint
    checkpointed_streaming_asset(**{**given, "job_name": "a" * 63})(delays)


@pytest.mark.parametrize("prefix", ["flights", ["flights"]])
def test_a_prefix_is_part_of_every_name(prefix: str | list[str]) -> None:
    asset = checkpointed_streaming_asset(name="late", key_prefix=prefix)(delays)
    assert asset.key == dg.AssetKey(["flights", "late"])
    assert asset.checkpoints_key == dg.AssetKey(["flights", "late_checkpoints"])
    assert (asset.name, asset.job_name) == ("flights__late", "flights__late_job")
    job = build_checkpoint_definitions([asset], _RESOURCES).resolve_job_def("flights__late_job")
    config = {"ops": {asset.op_name: {"config": {"restore_from": "chk-3"}}}}
    assert dg.validate_run_config(job, config)


def test_the_defaults_are_the_safe_ones() -> None:
    asset = checkpointed_streaming_asset()(delays)
    assert asset.config == CheckpointConfig()
    assert asset.restart == ExponentialDelayRestart()
    assert (asset.storage_key, asset.spark_key) == ("checkpoint_storage", "spark")


def test_what_the_user_chooses_is_used() -> None:
    asset = checkpointed_streaming_asset(
        config=CheckpointConfig(interval="3 s"),
        restart=RestartStrategies.no_restart(),
        storage_key="store",
        spark_key="cluster",
        group_name="flights",
        kinds={"pyspark"},
        description="Late.",
        owners=["team:data"],
        tags={"tier": "1"},
        metadata={"note": "n"},
    )(delays)
    spec = asset.get_asset_spec(asset.key)
    assert (spec.group_name, spec.kinds, spec.description) == ("flights", {"pyspark"}, "Late.")
    assert (spec.owners, spec.tags["tier"], spec.metadata["note"]) == (["team:data"], "1", "n")
    assert asset.required_resource_keys >= {"store", "cluster"}
    assert asset.checkpoints.group_name == "flights"
    assert asset.config.interval == timedelta(seconds=3)


def test_lineage_goes_from_what_is_read_to_the_output_and_to_its_checkpoints() -> None:
    asset = checkpointed_streaming_asset(deps=[landed])(delays)
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], _RESOURCES), dg.Definitions(assets=[landed])
    )
    graph = definitions.resolve_asset_graph()
    assert graph.get(asset.key).parent_keys == {landed.key}
    assert graph.get(asset.checkpoints_key).parent_keys == {asset.key}
    assert not graph.get(asset.checkpoints_key).is_materializable, "checkpoints come of running the stream"
    assert asset.checkpoints.tags[names.JOB_TAG] == "delays"


def test_it_is_an_asset_like_any_other() -> None:
    stream = checkpointed_streaming_asset(deps=iter([landed]))(delays)

    @dg.asset(deps=[stream])
    def report() -> None:
        pass

    alone = dg.Definitions(assets=[landed, stream, report], resources=_RESOURCES)
    graph = alone.resolve_asset_graph()
    assert graph.get(stream.key).parent_keys == {landed.key}
    assert graph.get(report.key).parent_keys == {stream.key}
    dg.Definitions.validate_loadable(alone)

    module = ModuleType("project")
    vars(module).update(stream=stream, report=report)
    assert {asset.key for asset in dg.load_assets_from_modules([module])} == {stream.key, report.key}  # type: ignore[union-attr]

    @dg.run_failure_sensor(monitored_jobs=[stream.job])
    def alert(context: dg.RunFailureSensorContext) -> None:
        pass

    operated = dg.Definitions.merge(
        build_checkpoint_definitions([stream], _RESOURCES), dg.Definitions(assets=[landed, report], sensors=[alert])
    )
    dg.Definitions.validate_loadable(operated)


def test_what_any_asset_takes_reaches_the_asset_and_its_job() -> None:
    @dg.success_hook
    def told(context: dg.HookContext) -> None:
        pass

    condition = dg.AutomationCondition.on_missing()
    freshness = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
    stream = checkpointed_streaming_asset(
        code_version="7",
        automation_condition=condition,
        freshness_policy=freshness,
        pool="spark",
        op_tags={"dagster-k8s/config": {"job_spec_config": {"ttl_seconds_after_finished": 5}}},
        run_tags={"team": "data"},
        hooks={told},
    )(delays)
    spec = stream.get_asset_spec(stream.key)
    assert (spec.code_version, spec.automation_condition) == ("7", condition)
    assert spec.freshness_policy == freshness
    assert stream.op.pool == "spark"
    assert "dagster-k8s/config" in stream.op.tags
    assert stream.hook_defs == {told}
    assert (stream.job.tags or {})["team"] == "data"


class _Limits(dg.Config):
    shops: int = 3


class _Wrong(dg.Config):
    restore_from: str


class _Feed(dg.ConfigurableResource["_Feed"]):
    url: str


def _run(function: Callable[..., Any], config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A run that builds the query once, and does nothing else."""

    def build(start: Callable[[Callable[[Event], None]], StreamingRun], *_: Any, **__: Any) -> RunResult:
        start(lambda _: None)._job.query("the session")  # type: ignore[arg-type]
        return RunResult(JobStatus.FINISHED, None)

    monkeypatch.setattr(spark_door, "supervise", build)
    stream = checkpointed_streaming_asset()(function)
    job = build_checkpoint_definitions([stream], {**_RESOURCES, **more}).resolve_job_def(stream.job_name)
    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process({"ops": {stream.op_name: {"config": config}}}, instance=instance)


def test_its_function_takes_resources_and_configuration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def delays(context: Any, spark: Any, feed: _Feed, *, limits: _Limits) -> None:
        seen.extend([spark, feed.url, limits.shops])

    storage = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path))
    _run(delays, {"shops": 9}, monkeypatch, checkpoint_storage=storage, feed=_Feed(url="http://x"))
    _run(delays, {}, monkeypatch, checkpoint_storage=storage, feed=_Feed(url="http://y"))
    assert seen == ["the session", "http://x", 9, "the session", "http://y", 3]


def _takes_nothing() -> None: ...


def _takes_one(context: Any) -> None: ...


def _takes_any(context: Any, spark: Any, *more: Any) -> None: ...


def _takes_any_name(context: Any, spark: Any, **more: Any) -> None: ...


def _names_the_session_only(context: Any, *, spark: Any) -> None: ...


def _takes_two_configurations(context: Any, spark: Any, one: _Limits, two: _Limits) -> None: ...


def _repeats_a_field(context: Any, spark: Any, one: _Wrong) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        _takes_nothing,
        _takes_one,
        _takes_any,
        _takes_any_name,
        _names_the_session_only,
        _takes_two_configurations,
        _repeats_a_field,
    ],
)
def test_a_function_that_no_run_could_call_is_refused_when_it_is_defined(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=function.__name__) as refused:
        checkpointed_streaming_asset()(function)
    assert f"def {function.__name__}(context, spark)" in refused.value.hint


def test_partitions_of_the_checkpoints_are_dynamic_and_the_stream_has_none() -> None:
    asset = checkpointed_streaming_asset()(delays)
    assert isinstance(asset.checkpoints.partitions_def, dg.DynamicPartitionsDefinition)
    assert asset.checkpoints.partitions_def.name == asset.partitions_name
    assert asset.partitions_def is None


def test_restore_from_is_the_launchpads_to_choose_and_latest_by_default() -> None:
    asset = checkpointed_streaming_asset()(delays)
    job = build_checkpoint_definitions([asset], _RESOURCES).resolve_job_def(asset.job_name)

    def restore_from(config: Mapping[str, Any]) -> str:
        ops = dg.validate_run_config(job, config)["ops"]
        return str(ops[asset.op_name]["config"]["restore_from"])

    assert restore_from({}) == "latest"
    assert restore_from({"ops": {asset.op_name: {"config": {"restore_from": "none"}}}}) == "none"
    with pytest.raises(dg.DagsterInvalidConfigError, match="restore_form"):
        restore_from({"ops": {asset.op_name: {"config": {"restore_form": "chk-1"}}}})


def test_settings_by_flinks_keys_go_over_the_others() -> None:
    asset = checkpointed_streaming_asset(
        config=CheckpointConfig(interval="3 s", num_retained=4),
        configuration={"execution.checkpointing.interval": "5 s", "restart-strategy": "none"},
    )(delays)
    assert asset.config == CheckpointConfig(interval="5 s", num_retained=4)
    assert asset.restart == RestartStrategies.no_restart()
    with pytest.raises(InvalidConfiguration, match="dir belongs to the checkpoint storage"):
        checkpointed_streaming_asset(configuration=Configuration({"execution.checkpointing.dir": "/data"}))


def test_a_run_can_be_configured_in_the_launchpad_with_the_types_of_yaml() -> None:
    asset = checkpointed_streaming_asset()(delays)
    job = build_checkpoint_definitions([asset], _RESOURCES).resolve_job_def(asset.job_name)
    keys = yaml.safe_load(
        "execution.checkpointing.interval: 5 s\nexecution.checkpointing.num-retained: 3\n"
        "execution.checkpointing.unaligned: true\nrestart-strategy: {type: off}\n"
    )
    launched = {"ops": {asset.op_name: {"config": {"configuration": keys}}}}
    op_config = dg.validate_run_config(job, launched)["ops"][asset.op_name]["config"]
    run = asset.settings.of_run(op_config)
    assert run.config == CheckpointConfig(interval="5 s", num_retained=3, unaligned=True)
    assert run.restart == RestartStrategies.no_restart()
    assert run.request.restore_from == "latest"


def test_a_run_goes_by_its_own_configuration_and_says_what_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven: list[StreamingRun] = []

    def drive(
        start: Callable[[Callable[[Event], None]], StreamingRun], on_event: Callable[[Event], None], **_: Any
    ) -> RunResult:
        driven.append(start(on_event))
        return RunResult(JobStatus.FINISHED, None)

    monkeypatch.setattr(spark_door, "supervise", drive)
    asset = checkpointed_streaming_asset(
        config=CheckpointConfig(num_retained=4, unaligned=True),
        restart=RestartStrategies.no_restart(),
        configuration={"execution.checkpointing.unaligned.forced": "true"},
    )(delays)
    resources = {**_RESOURCES, "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(tmp_path))}
    job = build_checkpoint_definitions([asset], resources).resolve_job_def(asset.job_name)
    keys = {
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.state-recovery.path": "/savepoints/x",
        "restart-strategy.type": "fixed-delay",
    }
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {asset.op_name: {"config": {"configuration": keys}}}}
        result = job.execute_in_process(config, instance=instance)
        log = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert result.success
    (run,) = driven
    assert run._job.config == CheckpointConfig(num_retained=4, unaligned=True, mode=CheckpointingMode.AT_LEAST_ONCE)
    assert run._job.restart == FixedDelayRestart()
    assert run._state.request.restore_from == "/savepoints/x"
    assert [line.partition(" ")[0] for line in log] == ["execution.checkpointing.unaligned.forced", "unaligned"]


@pytest.mark.parametrize("copies", ["the configuration", "the configuration and the tags of a resumed run"])
def test_a_re_execution_goes_on_where_its_run_had_begun_from_a_savepoint(
    copies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster repeats the configuration of a run, so the job would go back to the savepoint each time.

    A move of sources is told with the run that was first asked for it: another run is another request.
    """
    stored = StoredJob(tmp_path, "delays")
    asset = checkpointed_streaming_asset()(delays)
    job = build_checkpoint_definitions([asset], {**_RESOURCES, "checkpoint_storage": stored.storage}).resolve_job_def(
        asset.job_name
    )
    asked: list[tuple[str, bool, int | None]] = []
    moves: list[str | None] = []
    chooses = False

    def drive(start: Callable[[Callable[[Event], None]], StreamingRun], *_: Any, **__: Any) -> RunResult:
        run = start(lambda _: None)
        request = run._state.request
        asked.append((request.restore_from, request.allow_loss, run._claims.series))
        moves.append(request.move)
        if chooses:
            stored.choose(stored.claim(run._run_id))
        return RunResult(JobStatus.FINISHED, None)

    monkeypatch.setattr(spark_door, "supervise", drive)
    savepoint = {"restore_from": "/savepoints/a", "allow_loss": True}
    with dg.DagsterInstance.ephemeral() as instance:

        def launch(parent: str | None, config: dict[str, Any], **tags: str) -> str:
            begun = {} if parent is None else {names.PARENT_RUN_TAG: parent, names.ROOT_RUN_TAG: parent}
            run_config = {"ops": {asset.op_name: {"config": config}}}
            return job.execute_in_process(run_config, instance=instance, tags={**begun, **tags}).run_id

        tags = {} if copies == "the configuration" else {names.SERIES_TAG: "7", names.RESUMES_TAG: run_id()}
        refused = launch(None, savepoint)
        chooses = True
        repeated = launch(refused, savepoint, **tags)
        chooses = False
        went_on = launch(repeated, savepoint, **tags)
        assert launch(went_on, savepoint, **tags), "whose parent had not come to a choice"
        launch(repeated, {**savepoint, "restore_from": "/savepoints/b"}, **tags)
        launch(None, savepoint)
        launch(repeated, {}, **{names.SERIES_TAG: "7", names.RESUMES_TAG: repeated})
        older = {names.SERIES_TAG: "7", names.ATTEMPT_TAG: "2", names.RUN_KEY_TAG: f"delays:{'0a' * 6}:2"}
        resumed = launch(repeated, {}, **older)  # by the sensor of 0.1.0
        launch(resumed, {}, **older)  # whose tags Dagster has copied
        assert moves == [None] * len(asked)
        del moves[:]
        moved = {"start_sources": {"orders": "latest"}}
        first = launch(None, moved)
        launch(first, moved)  # it died before its choice
        launch(None, moved)
    assert moves[0] is not None
    assert first in moves[0]
    assert [move == moves[0] for move in moves] == [True, True, False]
    del asked[-3:]
    a, b, latest = ("/savepoints/a", True, None), ("/savepoints/b", True, None), ("latest", False, None)
    series_7 = ("latest", False, 7)
    assert asked == [a, a, latest, latest, b, a, series_7, series_7, latest]


def test_dagster_keeps_no_event_of_a_checkpoint_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would until the asset ends, and then send them all through its engine: of a stream that runs for months."""
    job = StoredJob(tmp_path, "delays")
    asset = checkpointed_streaming_asset()(delays)

    def drive(start: object, on_event: Callable[[Event], None], **_: Any) -> RunResult:
        claim = job.claim(run_id())
        on_event(EpochClaimed(claim.epoch))
        store = job.choose(claim)
        metadata = job.checkpoint(store, 1)
        on_event(CheckpointCompleted(metadata, store.retained))
        return RunResult(JobStatus.FINISHED, metadata)

    monkeypatch.setattr(spark_door, "supervise", drive)
    definitions = build_checkpoint_definitions([asset], {**_RESOURCES, "checkpoint_storage": job.storage})
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def(asset.job_name).execute_in_process(instance=instance)
        (told,) = instance.fetch_materializations(asset.checkpoints_key, limit=9).records
    assert told.run_id == result.run_id
    through_the_engine = {event.asset_key for event in result.get_asset_materialization_events()}
    assert through_the_engine == {asset.key}


def test_a_run_whose_configuration_cannot_be_used_fails_before_it_touches_the_job(tmp_path: Path) -> None:
    asset = checkpointed_streaming_asset()(delays)
    resources = {**_RESOURCES, "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(tmp_path))}
    job = build_checkpoint_definitions([asset], resources).resolve_job_def(asset.job_name)
    config = {"configuration": {"execution.checkpointing.dir": "/data"}}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(InvalidConfiguration, match="belongs to the checkpoint storage"),
    ):
        job.execute_in_process({"ops": {asset.op_name: {"config": config}}}, instance=instance)
    assert list(tmp_path.iterdir()) == []


def test_when_checkpoints_and_savepoints_are_deleted_is_shown() -> None:
    asset = checkpointed_streaming_asset(
        config=CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    )(delays)
    assert asset.checkpoints.metadata["deleted_when"] == "SUBSUMED, CANCELED"
    assert asset.savepoints.get_asset_spec(asset.savepoints_key).metadata["deleted_when"] == "never"


@pytest.mark.parametrize("name", ["control", "a b", "..", "ä"])
def test_a_name_that_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises((InvalidConfiguration, dg.DagsterInvalidDefinitionError), match="name"):
        checkpointed_streaming_asset(name=name)(delays)


def test_the_state_backend_can_be_configured_by_flinks_keys() -> None:
    keys = {"state.backend.type": "hashmap"}
    assert checkpointed_streaming_asset(configuration=keys)(delays).state_backend == HashMapStateBackend()
    given = EmbeddedRocksDBStateBackend()
    assert checkpointed_streaming_asset(configuration=keys, state_backend=given)(delays).state_backend is given
    assert checkpointed_streaming_asset()(delays).state_backend is None
