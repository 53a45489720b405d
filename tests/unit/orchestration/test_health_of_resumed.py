"""What the resume sensor makes of the check ``healthy`` for a job that it resumes, or that it cannot resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, RestartStrategies
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.errors import StorageError
from dagster_ckpt.orchestration.sensors import job_watch
from tests.helpers.orchestration.stored_job import StoredJob, launched, make_asset, run_id
from tests.unit.orchestration.test_resume_sensor import Sensor

_RED, _YELLOW = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
Status = dg.DagsterRunStatus


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage")


@pytest.fixture
def sensor(instance: dg.DagsterInstance, job: StoredJob) -> Sensor:
    asset = make_asset(restart=RestartStrategies.fixed_delay_restart(1000, "0 s"))
    return Sensor(instance, job, [asset])


def reported(sensor: Sensor) -> list[dg.AssetCheckEvaluation]:
    """What was reported of the check, the oldest first."""
    key = dg.AssetCheckKey(sensor.assets[0].key, "healthy")
    found = []
    for record in sensor.instance.event_log_storage.get_asset_check_execution_history(key, limit=99):
        assert record.event is not None
        assert record.event.dagster_event is not None
        found.append(record.event.dagster_event.asset_check_evaluation_data)
    return found[::-1]


def told(sensor: Sensor) -> list[str]:
    """What the observations of the asset tell."""
    records = sensor.instance.fetch_observations(sensor.assets[0].key, limit=99).records
    return [str(item.asset_observation.description) for item in records if item.asset_observation is not None]


class TestAJobThatCannotBeResumed:
    """Its newest checkpoint is damaged, and no run may go past it."""

    @staticmethod
    def _damaged(job: StoredJob) -> tuple[Path, bytes]:
        newest = find_newest(job.catalog).metadata
        assert newest is not None
        metadata = job.root / job.name / newest.reference / "_metadata"
        content = metadata.read_bytes()
        metadata.write_bytes(content[:-20])
        return metadata, content

    def test_the_check_is_red_once_and_no_restart_is_told(self, sensor: Sensor, job: StoredJob) -> None:
        job.die(run_id(), checkpoints=2)
        metadata, content = self._damaged(job)
        for _ in range(3):
            requests, said = sensor.tick()
            assert requests == []
            assert said.startswith(f"orders: it cannot be resumed: {metadata} ")
        assert told(sensor) == []
        (red,) = reported(sensor)
        assert (red.passed, red.severity) == (False, _RED)
        assert str(red.description).startswith(f"Nothing resumes the job: {metadata} is truncated or was changed")
        assert "restore" in str(red.description), "the next step"
        assert red.metadata["state"].value == "DEAD"

        metadata.write_bytes(content)
        assert sensor.request().run_key
        assert [item.passed for item in reported(sensor)] == [False, True]
        (restart,) = told(sensor)
        assert "Restart" in restart

    def test_another_reason_is_told_where_the_check_was_red_before(self, sensor: Sensor, job: StoredJob) -> None:
        claim = job.die(run_id())
        job.end(claim, "FAILED", "the third failure")
        sensor.tick()
        job.die(run_id())
        metadata, _ = self._damaged(job)
        for _ in range(2):
            sensor.tick()
        assert ["the third failure" in str(item.description) for item in reported(sensor)] == [True, False]
        assert str(metadata) in str(reported(sensor)[1].description)

    def test_a_storage_that_fails_for_a_moment_is_no_reason(
        self, sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job.die(run_id())

        def fail(*_: object, **__: object) -> None:
            raise StorageError("503 Slow Down")

        with monkeypatch.context() as failing:
            failing.setattr(job_watch, "find_newest", fail)
            assert "503 Slow Down" in sensor.tick()[1]
        assert (reported(sensor), told(sensor)) == ([], [])
        assert sensor.request().run_key


def test_a_run_whose_settings_the_code_does_not_take_any_more(sensor: Sensor, job: StoredJob) -> None:
    """Another code was deployed since. The job is not resumed by other settings, and the check says why."""
    job.die(launched(sensor.instance, {"configuration": {"execution.checkpointing.gone": "1 min"}}), checkpoints=1)
    for _ in range(2):
        requests, said = sensor.tick()
        assert requests == []
        assert "orders: it cannot be resumed" in said
        assert "execution.checkpointing.gone" in said
    (red,) = reported(sensor)
    assert (red.passed, red.severity) == (False, _RED)
    assert "execution.checkpointing.gone" in str(red.description)


def test_no_job_is_ended_by_other_settings_than_its_run_has(instance: dg.DagsterInstance, job: StoredJob) -> None:
    """The asset's own would end the job at this failure, and delete its checkpoints."""
    config = CheckpointConfig(cleanup="NO_EXTERNALIZED_CHECKPOINTS")
    sensor = Sensor(instance, job, [make_asset(config=config, restart=RestartStrategies.no_restart())])
    job.die(launched(instance, {"configuration": {"execution.checkpointing.gone": "1 min"}}), checkpoints=1)
    assert "it cannot be resumed" in sensor.tick()[1]
    assert find_newest(job.catalog).metadata is not None
    assert job.catalog.records.epochs.read_end(1) is None


def test_a_job_that_restarts_too_often_turns_yellow_although_its_query_never_starts(
    sensor: Sensor, job: StoredJob
) -> None:
    """No run comes as far as looking at the job itself."""
    job.die(sensor.add_run(run_id(), Status.FAILURE))
    for _ in range(14):
        sensor.launch(sensor.request(), Status.FAILURE)
    green, yellow = reported(sensor)
    assert green.passed
    assert (yellow.passed, yellow.severity) == (False, _YELLOW)
    assert "it failed 11 times in the last hour" in str(yellow.description)


def test_a_check_that_cannot_be_reported_delays_no_restart(
    sensor: Sensor, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("database is locked")

    job.die(run_id())
    with monkeypatch.context() as refusing:
        refusing.setattr(type(sensor.instance.event_log_storage), "get_asset_check_execution_history", refuse)
        assert sensor.request().run_key
    assert reported(sensor) == []
