from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.config.restart import ExponentialDelayRestart
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names

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
    assert asset.checkpoints_key == dg.AssetKey(["delays", "checkpoints"])
    assert (asset.name, asset.job_name, asset.op_name) == ("delays", "delays_job", "delays")
    assert asset.partitions_name == "delays/checkpoints"
    assert asset.definition.descriptions_by_key[asset.key] == "Counts delays."


@pytest.mark.parametrize("prefix", ["flights", ["flights"]])
def test_a_prefix_is_part_of_every_name(prefix: str | list[str]) -> None:
    asset = checkpointed_streaming_asset(name="late", key_prefix=prefix)(delays)
    assert asset.key == dg.AssetKey(["flights", "late"])
    assert asset.checkpoints_key == dg.AssetKey(["flights", "late", "checkpoints"])
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
    spec = asset.definition.get_asset_spec(asset.key)
    assert (spec.group_name, spec.kinds, spec.description) == ("flights", {"pyspark"}, "Late.")
    assert (spec.owners, spec.tags["tier"], spec.metadata["note"]) == (["team:data"], "1", "n")
    assert asset.definition.required_resource_keys >= {"store", "cluster"}
    assert asset.checkpoints.group_name == "flights"
    assert asset.config.interval.total_seconds() == 3


def test_lineage_goes_from_what_is_read_to_the_output_and_to_its_checkpoints() -> None:
    asset = checkpointed_streaming_asset(deps=[landed])(delays)
    definitions = dg.Definitions.merge(
        build_checkpoint_definitions([asset], _RESOURCES), dg.Definitions(assets=[landed])
    )
    graph = definitions.resolve_asset_graph()
    assert graph.get(asset.key).parent_keys == {landed.key}
    assert graph.get(asset.checkpoints_key).parent_keys == {landed.key}
    assert not graph.get(asset.checkpoints_key).is_materializable, "checkpoints come of running the stream"
    assert asset.checkpoints.tags[names.JOB_TAG] == "delays"


def test_dependencies_given_as_an_iterator_reach_both_assets() -> None:
    asset = checkpointed_streaming_asset(deps=iter([landed]))(delays)
    assert asset.definition.asset_deps[asset.key] == {landed.key}
    assert [dep.asset_key for dep in asset.checkpoints.deps] == [landed.key]


def test_partitions_of_the_checkpoints_are_dynamic_and_the_stream_has_none() -> None:
    asset = checkpointed_streaming_asset()(delays)
    assert isinstance(asset.checkpoints.partitions_def, dg.DynamicPartitionsDefinition)
    assert asset.checkpoints.partitions_def.name == asset.partitions_name
    assert asset.definition.partitions_def is None


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


@pytest.mark.parametrize("name", ["control", "a b", "..", "ä"])
def test_a_name_that_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises((InvalidConfiguration, dg.DagsterInvalidDefinitionError), match="name"):
        checkpointed_streaming_asset(name=name)(delays)
