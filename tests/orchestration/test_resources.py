# No `from __future__ import annotations`: Dagster must find real types on nested asset functions.

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource
from dagster_ckpt.errors import InvalidConfiguration


class Platform(dg.ConfigurableResource["Platform"]):
    """A user's resource with a storage inside."""

    storage: dg.ResourceDependency[FileSystemCheckpointStorage]


def _inside_a_run(storage: Any, run_config: Mapping[str, Any] | None = None) -> FileSystemCheckpointStorage:
    """The storage as an asset is given it."""
    seen: list[FileSystemCheckpointStorage] = []

    @dg.asset(required_resource_keys={"checkpoint_storage"})
    def looks(context: dg.AssetExecutionContext) -> None:
        seen.append(context.resources.checkpoint_storage)

    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize(
            [looks], resources={"checkpoint_storage": storage}, instance=instance, run_config=run_config
        ).success
    return seen[0]


def test_a_path_is_enough(tmp_path: Path) -> None:
    storage = _inside_a_run(FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / "checkpoints")))
    assert storage.filesystem().url == str(tmp_path / "checkpoints")
    assert storage.catalog("orders").job_ids() == []
    assert not (tmp_path / "checkpoints").exists(), "looking creates nothing"


def test_a_path_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_PATH", f"file://{tmp_path}/from%20environment")
    storage = _inside_a_run(FileSystemCheckpointStorage(checkpoint_path=dg.EnvVar("CHECKPOINT_PATH")))
    assert storage.filesystem().url == str(tmp_path / "from environment")


def test_a_path_can_be_given_in_the_launchpad(tmp_path: Path) -> None:
    config = {
        "resources": {
            "checkpoint_storage": {"config": {"checkpoint_path": str(tmp_path), "file_state_size_threshold": 0}}
        }
    }
    storage = _inside_a_run(FileSystemCheckpointStorage.configure_at_launch(), config)
    assert storage.filesystem().url == str(tmp_path)
    assert storage.inline_threshold == 0


def test_a_storage_can_be_a_part_of_another_resource(tmp_path: Path) -> None:
    seen: list[str] = []

    @dg.asset
    def looks(platform: Platform) -> None:
        seen.append(platform.storage.filesystem().url)

    storage = FileSystemCheckpointStorage.configure_at_launch()
    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize(
            [looks],
            resources={"checkpoint_storage": storage, "platform": Platform(storage=storage)},
            instance=instance,
            run_config={"resources": {"checkpoint_storage": {"config": {"checkpoint_path": str(tmp_path)}}}},
        ).success
    assert seen == [str(tmp_path)]


@pytest.mark.parametrize(("threshold", "inline"), [(-1, 20 * 1024), (0, 0), (1 << 20, 1 << 20)])
def test_threshold_within_its_limits(threshold: int, inline: int) -> None:
    storage = FileSystemCheckpointStorage(checkpoint_path="x", file_state_size_threshold=threshold)
    assert storage.inline_threshold == inline


@pytest.mark.parametrize("threshold", [-2, (1 << 20) + 1])
def test_threshold_beyond_its_limits_is_refused(threshold: int) -> None:
    with pytest.raises(ValidationError, match="must be between 0 and 1048576 bytes, or -1 for the default"):
        FileSystemCheckpointStorage(checkpoint_path="x", file_state_size_threshold=threshold)


@pytest.mark.parametrize(("path", "why"), [("", "is empty"), ("gs://b/c", "scheme 'gs'"), ("/", "root directory")])
def test_a_path_that_cannot_be_used_is_refused_with_the_way_on(path: str, why: str) -> None:
    storage = FileSystemCheckpointStorage(checkpoint_path=path)
    with pytest.raises(InvalidConfiguration, match=why) as caught:
        storage.filesystem()
    assert caught.value.hint


@pytest.mark.parametrize("working_directory", [None, "/ssd", "taskowned"])
def test_live_locations_of_two_storages_and_two_jobs_do_not_meet(tmp_path: Path, working_directory: str | None) -> None:
    one, two = (
        FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / name), working_directory=working_directory)
        for name in ("one", "two")
    )
    places = {storage.live_directory(job) for storage in (one, two) for job in ("orders", "payments")}
    assert len(places) == 4
    assert one.live_directory("orders") == one.live_directory("orders")


def test_live_locations_can_be_put_elsewhere_or_into_the_storage(tmp_path: Path) -> None:
    elsewhere = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), working_directory=str(tmp_path / "ssd"))
    assert tmp_path / "ssd" in elsewhere.live_directory("orders").parents
    inside = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), working_directory="taskowned")
    assert inside.live_directory("orders") == tmp_path / "orders" / "taskowned"


def test_a_missing_path_is_named() -> None:
    with pytest.raises(ValidationError, match="checkpoint_path"):
        FileSystemCheckpointStorage.model_validate({})


def test_a_misspelt_field_is_named() -> None:
    with pytest.raises(ValidationError, match="checkpont_path"):
        FileSystemCheckpointStorage.model_validate({"checkpoint_path": "x", "checkpont_path": "y"})


def test_spark_is_configured_in_code_and_in_the_launchpad() -> None:
    seen: list[SparkSessionResource] = []

    @dg.asset
    def looks(spark: SparkSessionResource) -> None:
        seen.append(spark)

    with dg.DagsterInstance.ephemeral() as instance:
        for spark, config in (
            (SparkSessionResource(master="local[3]", conf={"spark.ui.enabled": "false"}), {}),
            (
                SparkSessionResource.configure_at_launch(),
                {"resources": {"spark": {"config": {"master": "spark://host:7077", "conf": {"a.b": "c"}}}}},
            ),
        ):
            assert dg.materialize([looks], resources={"spark": spark}, instance=instance, run_config=config).success
    assert [(spark.master, spark.conf) for spark in seen] == [
        ("local[3]", {"spark.ui.enabled": "false"}),
        ("spark://host:7077", {"a.b": "c"}),
    ]


def test_spark_is_not_started_by_being_a_resource() -> None:
    """The sensor and every other asset of the code location are given resources too."""
    before = SparkSession._instantiatedSession
    resource = SparkSessionResource()
    assert resource.master == "local[*]"
    assert SparkSession._instantiatedSession is before
