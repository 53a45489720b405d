"""The check ``healthy``, and the sensor that tells of jobs that have ended FAILED."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, JobFailed, SparkSessionResource, build_checkpoint_definitions, on_job_failed
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, HeartbeatFile
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.health import CHECK, HealthWatch, evaluation
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

_KEY = dg.AssetKey(["orders"])


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path, "orders")


def _run_check(job: StoredJob) -> dg.AssetCheckEvaluation:
    """As an operator runs the check in Dagster."""
    resources = {"checkpoint_storage": job.storage, "spark": SparkSessionResource()}
    definitions = build_checkpoint_definitions([make_asset()], resources)
    job_of_dagster = definitions.resolve_implicit_global_asset_job_def()
    only = job_of_dagster.get_subset(asset_check_selection={dg.AssetCheckKey(_KEY, CHECK)}, asset_selection=set())
    (found,) = only.execute_in_process().get_asset_check_evaluations()
    return found


def test_the_check_is_red_only_while_a_job_needs_help(job: StoredJob) -> None:
    assert _run_check(job).passed, "it has never run"
    claim = job.claim(run_id())
    metadata = job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    running = _run_check(job)
    assert running.passed
    assert running.metadata["checkpoint"].value == metadata.reference
    job.beat(claim, alive=False)
    assert _run_check(job).passed, "the sensor resumes it"
    job.end(claim, "FAILED", "the third failure")
    failed = _run_check(job)
    assert not failed.passed
    assert failed.severity is dg.AssetCheckSeverity.ERROR
    assert "the third failure" in str(failed.description)
    assert "restore_from: latest" in str(failed.description)
    job.beat(job.claim(run_id()), alive=True)
    assert _run_check(job).passed


class TestAJobThatRuns:
    """As Flink's operator judges a job that it does not have to resume."""

    @staticmethod
    def _evaluate(job: StoredJob, config: CheckpointConfig, most: int | None = None) -> dg.AssetCheckEvaluation:
        return evaluation(_KEY, job.catalog, SystemClock(), config, most)

    @pytest.mark.parametrize(
        ("options", "longest"),
        [
            ({"interval": "1 min", "timeout": "10 min", "tolerable_failed_checkpoints": 0}, 20),
            ({"interval": "30 min", "timeout": "10 min", "tolerable_failed_checkpoints": 2}, 120),
            ({"interval": "1 min", "timeout": "2 min", "tolerable_failed_checkpoints": None}, 4),
        ],
    )
    def test_no_checkpoint_for_too_long(self, job: StoredJob, options: dict[str, Any], longest: int) -> None:
        config = CheckpointConfig(**options)
        claim = job.claim(run_id())
        job.checkpoint(job.choose(claim), 3)
        job.beat(claim, alive=True)
        file = HeartbeatFile(job.catalog.filesystem, job.name)
        beat = file.read()
        assert beat is not None
        for minutes, passed in ((longest - 1, True), (longest + 1, False)):
            file.write(replace(beat, due_since=beat.beat_at - 60 * minutes))
            found = self._evaluate(job, config)
            assert found.passed is passed
            assert self._evaluate(job, config.model_copy(update={"interval": None})).passed, "none is ever due"
        assert found.severity is dg.AssetCheckSeverity.WARN
        file.write(
            replace(beat, due_since=beat.beat_at - 7300, failed_checkpoints=FailedCheckpoints(4, "full", 1.0, 9))
        )
        assert "4 in a row failed, the last one because: full." in str(self._evaluate(job, config).description)
        file.write(replace(beat, due_since=None, beat_at=beat.beat_at + 90 * 24 * 3600))
        assert self._evaluate(job, config).passed, "the stream is idle"

    def test_too_many_restarts_in_an_hour(self, job: StoredJob) -> None:
        claim = job.claim(run_id())
        job.choose(claim)
        job.beat(claim, alive=True)
        for sequence in range(1, 5):
            job.fail(claim, sequence)
        old = Failure(claim.run_id, 9, time.time() - 4000, None, "long ago")
        job.failures.record(claim.series, old)
        assert self._evaluate(job, CheckpointConfig(), 4).passed
        found = self._evaluate(job, CheckpointConfig(), 3)
        assert not found.passed
        assert found.severity is dg.AssetCheckSeverity.WARN
        assert "failed 4 times in the last hour" in str(found.description)
        assert "failure 4" in str(found.description)
        assert self._evaluate(job, CheckpointConfig(), None).passed
        job.end(claim, "FAILED", "the last failure")
        assert self._evaluate(job, CheckpointConfig(), 3).severity is dg.AssetCheckSeverity.ERROR

    def test_a_run_reports_what_it_sees_when_that_changes(self, job: StoredJob) -> None:
        verdicts = iter([True, True, False, False, True])
        reported: list[bool] = []
        clock = ManualClock()

        def evaluate() -> dg.AssetCheckEvaluation:
            return dg.AssetCheckEvaluation(asset_key=_KEY, check_name=CHECK, passed=next(verdicts), metadata={})

        watch = HealthWatch(evaluate, lambda found: reported.append(found.passed), clock)
        watch.tick()
        assert reported == [], "the query has not started"
        watch.began()
        for _ in range(5):
            watch.tick()
            clock.advance(59)
            watch.tick()
            clock.advance(2)
        assert reported == [True, False, True]


def test_the_check_is_not_planned_with_the_run_of_the_stream(job: StoredJob) -> None:
    definitions = build_checkpoint_definitions([make_asset()], {"checkpoint_storage": job.storage, "spark": 1})
    assert not definitions.resolve_job_def("orders_job").asset_layer.asset_graph.asset_check_keys
    assert dg.AssetCheckKey(_KEY, CHECK) in definitions.resolve_asset_graph().asset_check_keys


class _Alerts:
    """An instance on which the sensor ticks."""

    def __init__(self, jobs: list[StoredJob], instance: dg.DagsterInstance) -> None:
        self.told: list[JobFailed] = []
        self.is_down = False
        self._cursor: str | None = None
        self._instance = instance
        self._sensor = on_job_failed([make_asset(job.name) for job in jobs], self._tell)
        self._storage = jobs[0].storage

    def _tell(self, failed: JobFailed) -> None:
        if self.is_down:
            raise ConnectionError("no route to the pager")
        self.told.append(failed)

    def tick(self) -> str:
        context = dg.build_sensor_context(
            instance=self._instance, cursor=self._cursor, resources={"checkpoint_storage": self._storage}
        )
        data = self._sensor.evaluate_tick(context)
        self._cursor = data.cursor
        return data.skip_message or ""


def test_each_end_is_told_once_and_no_run_that_is_resumed(job: StoredJob, tmp_path: Path) -> None:
    other = StoredJob(tmp_path, "returns")
    with dg.DagsterInstance.ephemeral() as instance:
        alerts = _Alerts([job, other], instance)
        dead = job.die(run_id())
        alerts.tick()
        job.fail(dead, 1)
        job.end(dead, "FAILING", "tried again")
        alerts.tick()
        other.end(other.die(run_id()), "CANCELED")
        alerts.tick()
        assert alerts.told == []

        again = job.die(run_id(), series=dead.series)
        job.end(again, "FAILED", "all 3 restarts are used up")
        alerts.is_down = True
        assert "no route to the pager" in alerts.tick()
        alerts.is_down = False
        alerts.tick()
        alerts.tick()
        (first,) = alerts.told
        assert (first.job_name, first.run_id) == ("orders", again.run_id)
        assert first.reason == "all 3 restarts are used up"
        assert str(first.checkpoint).endswith("/chk-2")

        later = job.die(run_id())
        alerts.tick()
        job.end(later, "FAILED", "once more")
        alerts.tick()
        alerts.tick()
        assert [failed.reason for failed in alerts.told] == [first.reason, "once more"]
