from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource, build_checkpoint_definitions
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from tests.helpers.orchestration.stored_job import make_asset
from tests.system.orchestration.pipeline import ROOT_VARIABLE


@pytest.fixture
def resources(tmp_path: Path) -> dict[str, object]:
    return {
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(tmp_path)),
        "spark": SparkSessionResource(),
    }


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The code location of the tests with a real Dagster, loaded here."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    return importlib.import_module("tests.system.orchestration.location.definitions")


def test_everything_for_two_jobs_loads(resources: dict[str, object]) -> None:
    definitions = build_checkpoint_definitions([make_asset("one"), make_asset("two")], resources)
    dg.Definitions.validate_loadable(definitions)
    keys = {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {f"{job}{part}" for job in ("one", "two") for part in ("", "_checkpoints", "_savepoints")}
    repository = definitions.get_repository_def()
    assert {job.name for job in repository.get_all_jobs()} >= {"one_job", "two_job"}


@pytest.mark.parametrize("name", ["one", "two"])
def test_two_jobs_of_one_name_are_refused(resources: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        build_checkpoint_definitions([make_asset("one"), make_asset(name, job_name="one")], resources)
    assert f"The assets one and {name} have the same job name 'one'" in caught.value.message


def test_a_sensor_that_was_switched_off_stays_off_whatever_job_is_the_first(resources: dict[str, object]) -> None:
    """Dagster keeps the state of a sensor by its name, and a sensor that it does not know runs."""

    def sensor_of(*jobs: str) -> str:
        assets = [make_asset(job) for job in jobs]
        definitions = build_checkpoint_definitions(assets, resources, sensor_name="checkpoint_resume_sensor")
        (sensor,) = definitions.get_repository_def().sensor_defs
        return sensor.name

    assert sensor_of("one", "two") == sensor_of("two", "one") == "checkpoint_resume_sensor"


def test_one_sensor_looks_after_all_jobs_and_runs_by_itself(resources: dict[str, object]) -> None:
    definitions = build_checkpoint_definitions([make_asset("one"), make_asset("two")], resources)
    (sensor,) = definitions.get_repository_def().sensor_defs
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 1
    assert {target.job_name for target in sensor.targets} == {"one_job", "two_job"}
    assert sensor.required_resource_keys == {"checkpoint_storage"}, "no tick needs Spark"


def test_two_sets_of_jobs_in_one_code_location(resources: dict[str, object]) -> None:
    sets = [build_checkpoint_definitions([make_asset(name)], resources) for name in ("one", "two")]
    definitions = dg.Definitions.merge(*sets)
    dg.Definitions.validate_loadable(definitions)
    assert len(definitions.get_repository_def().sensor_defs) == 2


def test_a_job_runs_in_one_process_without_dagsters_own_retries(resources: dict[str, object]) -> None:
    job = build_checkpoint_definitions([make_asset("one")], resources).resolve_job_def("one_job")
    assert job.executor_def.name == "in_process"
    assert job.tags[names.JOB_TAG] == "one"
    assert job.tags["dagster/max_retries"] == "0"
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == {"one"}


def test_it_merges_with_a_projects_other_definitions(resources: dict[str, object]) -> None:
    @dg.asset(deps=[dg.AssetKey("one")])
    def report() -> None:
        pass

    merged = dg.Definitions.merge(
        build_checkpoint_definitions([make_asset("one")], resources), dg.Definitions(assets=[report])
    )
    dg.Definitions.validate_loadable(merged)
    assert merged.resolve_asset_graph().get(report.key).parent_keys == {dg.AssetKey("one")}


def test_no_assets_are_a_valid_code_location() -> None:
    definitions = build_checkpoint_definitions([])
    dg.Definitions.validate_loadable(definitions)
    (sensor,) = definitions.get_repository_def().sensor_defs
    with dg.DagsterInstance.ephemeral() as instance:
        data = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, definitions=definitions))
    assert data.skip_message == "there is no job"


def test_a_missing_storage_is_named_when_the_location_loads() -> None:
    definitions = build_checkpoint_definitions([make_asset("one")], {"spark": SparkSessionResource()})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="checkpoint_storage"):
        dg.Definitions.validate_loadable(definitions)


def test_a_schedule_launches_the_checkpointed_job_with_its_tag(location: ModuleType) -> None:
    definitions: dg.Definitions = location.defs
    schedule = definitions.resolve_schedule_def("ticking_schedule")
    assert schedule.job_name == location.ticking.job_name
    with dg.DagsterInstance.ephemeral() as instance:
        tick = schedule.evaluate_tick(
            dg.build_schedule_context(instance=instance, repository_def=definitions.get_repository_def())
        )
    (request,) = tick.run_requests or ()
    job = definitions.resolve_job_def(schedule.job_name)
    config = dg.validate_run_config(job, request.run_config)["ops"]["ticking"]["config"]
    assert config == {
        "restore_from": "latest",
        "claim_mode": None,
        "replay_to": None,
        "allow_loss": False,
        "fork_from": None,
        "state_partitions": None,
        "start_sources": None,
        "code_version": None,
        "fallback_to_older": None,
    }
    # The sensor finds runs by this tag, and the instance limits them by it.
    assert job.tags[names.JOB_TAG] == "ticking"


def test_the_location_of_the_daemon_tests_validates(location: ModuleType) -> None:
    dg.Definitions.validate_loadable(location.defs)
