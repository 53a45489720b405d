"""What Dagster's own functions make of a stream, and what is no stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    SparkSessionResource,
    build_checkpoint_definitions,
    build_job_report,
    build_restore_drill,
    build_savepoint_schedule,
    checkpointed_streaming_asset,
    on_job_failed,
)
from dagster_ckpt import spark as spark_door
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.events import CheckpointCompleted, CheckpointFailed, EpochClaimed, Event, Restarting
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.standalone.project import find_asset
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_RESOURCES = {
    "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="unused"),
    "spark": SparkSessionResource(),
}


@dg.asset
def landed() -> None:
    pass


@checkpointed_streaming_asset(
    deps=[landed], standby=True, owners=["team:data"], tags={"tier": "1"}, run_tags={"cost": "data"}
)
def x(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    raise AssertionError("no test runs this query")


_PROJECT = ModuleType("project")
_PROJECT.x = x  # type: ignore[attr-defined]


def _loaded(**given: Any) -> CheckpointedStreamingAsset:
    (asset,) = dg.load_assets_from_modules([_PROJECT], **given)
    assert isinstance(asset, CheckpointedStreamingAsset)
    return asset


def _tagged(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec.merge_attributes(tags={"more": "2"}, deps=["elsewhere"])


@pytest.mark.parametrize(
    "transformed",
    [
        _loaded,
        lambda: _loaded(group_name="flights"),
        lambda: _loaded(automation_condition=dg.AutomationCondition.eager()),
        lambda: next(iter(dg.map_asset_specs(_tagged, [x]))),
        lambda: x.with_attributes(tags_by_key={}),
        lambda: x.with_hooks(set()),
    ],
)
def test_a_transformed_stream_is_operated_as_before(transformed: Callable[[], CheckpointedStreamingAsset]) -> None:
    asset = transformed()
    assert isinstance(asset, CheckpointedStreamingAsset)
    assert asset is not x
    assert (asset.name, asset.key, asset.op_name) == ("x", x.key, "x")
    for kept in ("function", "settings", "versions", "checkpoints_key", "savepoints_key", "storage_key", "spark_key"):
        assert getattr(asset, kept) == getattr(x, kept)
    for same in ("job", "standby", "rollback", "checkpoint_now", "healthy", "restorable", "fresh"):
        assert getattr(asset, same) is getattr(x, same), "monitored_jobs=[x.job] means this one too"
    spec = asset.get_asset_spec(asset.key)
    assert (spec.owners, spec.tags["tier"]) == (["team:data"], "1")
    assert asset.checkpoints.group_name == spec.group_name
    assert asset.savepoints.get_asset_spec().group_name == spec.group_name
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], _RESOURCES), build_restore_drill(asset), dg.Definitions(assets=[landed])
    )
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resolve_asset_graph().get(x.key).parent_keys >= {landed.key}


def test_what_a_transformation_sets_is_set() -> None:
    assert _loaded(group_name="flights").get_asset_spec().group_name == "flights"
    (tagged,) = dg.map_asset_specs(_tagged, [x])
    assert tagged.get_asset_spec().tags["more"] == "2"
    eager = _loaded(automation_condition=dg.AutomationCondition.eager())
    assert eager.get_asset_spec().automation_condition is not None


def test_definitions_that_are_mapped_keep_the_class_for_drivers_that_dagster_does_not_start() -> None:
    with warnings.catch_warnings(action="ignore"):  # Dagster calls it a preview
        mapped = build_checkpoint_definitions([x], _RESOURCES).map_resolved_asset_specs(func=lambda spec: spec)
    found = find_asset(mapped, "project:defs", "x")
    assert found is not x
    assert found.key == x.key
    (given,) = dg.with_resources([x], {key: dg.ResourceDefinition.none_resource() for key in _RESOURCES})
    assert isinstance(given, CheckpointedStreamingAsset)
    assert given.job is x.job


@pytest.mark.parametrize("explicit", [None, "stable"])
def test_a_prefix_given_while_loading_is_a_prefix_given_at_the_decorator(explicit: str | None) -> None:
    def query(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        raise AssertionError("no test runs this query")

    module = ModuleType("project")
    module.it = checkpointed_streaming_asset(name="x", job_name=explicit)(query)  # type: ignore[attr-defined]
    (loaded,) = dg.load_assets_from_modules([module], key_prefix="p")
    there = checkpointed_streaming_asset(name="x", key_prefix="p", job_name=explicit)(query)
    assert isinstance(loaded, CheckpointedStreamingAsset)
    assert loaded.name == (explicit or "p__x")
    for same in ("key", "name", "job_name", "checkpoints_key", "savepoints_key", "partitions_name"):
        assert getattr(loaded, same) == getattr(there, same)
    jobs = [f"{loaded.name}_{job}" for job in ("job", "rollback", "checkpoint")]
    found, expected = (build_checkpoint_definitions([asset], _RESOURCES) for asset in (loaded, there))
    assert [found.resolve_job_def(job).name for job in jobs] == [expected.resolve_job_def(job).name for job in jobs]
    assert _keys(found) == _keys(expected)


def _keys(definitions: dg.Definitions) -> set[str]:
    graph = definitions.resolve_asset_graph()
    return {
        key.to_user_string() for key in (*graph.get_all_asset_keys(), *(k.asset_key for k in graph.asset_check_keys))
    }


def test_a_run_of_an_asset_that_was_loaded_with_a_prefix_reports_under_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = _loaded(key_prefix="p")
    stored = StoredJob(tmp_path, "p__x")

    def drive(start: object, on_event: Callable[[Event], None], *, on_turn: Callable[[], None], **_: Any) -> RunResult:
        claim = stored.claim(run_id())
        on_event(EpochClaimed(claim.epoch))
        store = stored.choose(claim)
        metadata = stored.checkpoint(store, 1)
        on_event(CheckpointCompleted(metadata, store.retained))
        on_event(CheckpointFailed(2, "the disk is full", 1))
        on_event(Restarting("the table is gone", "attempt 1", 1.0))
        on_turn()
        return RunResult(JobStatus.FINISHED, metadata)

    monkeypatch.setattr(spark_door, "supervise", drive)
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], {**_RESOURCES, "checkpoint_storage": stored.storage}),
        dg.Definitions(assets=[landed]),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert definitions.resolve_job_def("p__x_job").execute_in_process(instance=instance).success
        told = {key.to_user_string() for key in instance.all_asset_keys()}
        assert told == {"p/x", "p/x_checkpoints"}
        (failed,) = instance.fetch_observations(dg.AssetKey(["p", "x"]), limit=9).records
        assert "the disk is full" in str(failed.asset_observation)
        assert len(instance.get_dynamic_partitions("p__x_checkpoints")) == 1
        healthy = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey(["p", "x"]), "healthy"), limit=1
        )
    assert healthy


def test_all_streams_in_one_run_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream has no end, so the last of several may wait for ever."""
    stored = StoredJob(tmp_path)
    monkeypatch.setattr(spark_door, "supervise", lambda *_, **__: RunResult(JobStatus.FINISHED, None))
    streams = [make_asset("one"), make_asset("two")]

    @dg.asset
    def report() -> None:
        pass

    for selected, warned in ((streams, True), (streams[:1], False), ([streams[0], report], False)):
        with dg.DagsterInstance.ephemeral() as instance:
            done = dg.materialize(
                [*streams, report],
                selection=[asset.key for asset in selected],
                resources={**_RESOURCES, "checkpoint_storage": stored.storage},
                instance=instance,
            )
            assert done.success
            messages = [entry.user_message for entry in instance.all_logs(done.run_id)]
            told = [found for found in messages if "This run also has the streams" in found]
        assert bool(told) is warned
        if warned:
            assert any("the streams two" in found for found in told)
            assert all("launch one_job, two_job" in found for found in told)


_TAKERS: list[Callable[[Any], object]] = [
    build_checkpoint_definitions,
    lambda given: on_job_failed(given, print),
    build_restore_drill,
    lambda given: build_savepoint_schedule(given, "0 3 * * *", name="nightly"),
    build_job_report,
]


@pytest.mark.parametrize("take", _TAKERS, ids=["definitions", "alert", "drill", "schedule", "report"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "was given None"),
        ("x", "was given 'x'"),
        ([None], "None"),
        (["x"], "'x'"),
        (landed, "was given the asset landed"),
        ([x, landed], "asset"),
        (7, "was given 7"),
    ],
)
def test_what_is_no_stream_is_refused_in_words(take: Callable[[Any], object], given: Any, told: str) -> None:
    with pytest.raises(InvalidConfiguration, match="takes") as caught:
        take(given)
    assert told in caught.value.message
    assert caught.value.hint


def test_a_stream_without_brackets_is_told_to_have_some() -> None:
    for take in _TAKERS[:2]:
        with pytest.raises(InvalidConfiguration, match=r"\[turnover\]"):
            take(x)


def test_other_assets_of_a_module_are_told_how_to_leave_out() -> None:
    with pytest.raises(InvalidConfiguration, match=r"isinstance\(asset, CheckpointedStreamingAsset\)"):
        build_checkpoint_definitions([x, landed])  # type: ignore[list-item]
