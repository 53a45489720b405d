"""A batch that kills the process which runs it, as the sensor sees it: from run to run, over a real storage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import RestartStrategies
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.failures import DIED
from dagster_ckpt.config.restart import RestartStrategy
from dagster_ckpt.orchestration import names
from dagster_ckpt.spark.batches.in_flight import batch_in_flight
from dagster_ckpt.spark.live.on_disk import LocalLive
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id
from tests.helpers.spark.live_location import LiveLocation
from tests.unit.orchestration.test_resume_sensor import Sensor

ATTEMPTS = 3
_HUNDRED = RestartStrategies.fixed_delay_restart(100, "0 s")


class DyingJob(StoredJob):
    """A job whose runs die with a batch in flight, each in the live location that the next one begins anew."""

    @property
    def live(self) -> LiveLocation:
        return LiveLocation(self.root.parent / "live")

    def die_in(self, batch: int | None, run: str, series: int | None = None, **planned: object) -> Claim:
        """A run that is killed while it runs ``batch``, or between batches."""
        shutil.rmtree(self.live.path, ignore_errors=True)
        self.live.run(3 if batch is None else batch)
        if batch is not None:
            self.live.plan(batch, **planned)  # type: ignore[arg-type]
        LocalLive(self.live.path).mark_begun()
        return self.die(run, series=series)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def job(tmp_path: Path) -> DyingJob:
    return DyingJob(tmp_path / "storage")


def sensor_of(
    instance: dg.DagsterInstance,
    job: DyingJob,
    restart: RestartStrategy = _HUNDRED,
    attempts: int | None = ATTEMPTS,
) -> Sensor:
    return Sensor(instance, job, [make_asset(restart=restart, poison_batch_attempts=attempts)])


def test_a_batch_that_kills_its_process_ends_the_job(instance: dg.DagsterInstance, job: DyingJob) -> None:
    sensor = sensor_of(instance, job)
    series = job.die_in(7, run_id()).series
    for attempt in range(1, ATTEMPTS):
        request = sensor.request()
        assert request.tags[names.ATTEMPT_TAG] == str(attempt)
        job.die_in(7, sensor.launch(request, dg.DagsterRunStatus.STARTED), series)
    requests, said = sensor.tick()
    assert requests == []
    newest = find_newest(job.catalog).metadata
    assert newest is not None, "nothing was deleted"
    assert "it ended FAILED: Batch 7 of job 'orders' is poison: it failed 3 times in a row" in said
    assert f"The checkpoint before it is {newest.reference}." in said
    assert f"`dagster-ckpt batch orders 7 --path {job.catalog.filesystem.url}`" in said
    assert "replay_to: none" in said
    failures = job.failures.of(series)
    assert [(failure.batch, failure.sequence) for failure in failures] == [(7, DIED)] * ATTEMPTS
    found = batch_in_flight(LocalLive(job.live.path))
    assert found is not None
    assert {failure.plan for failure in failures} == {found.plan}
    assert sensor.tick() == ([], said), "once is enough"

    # A launch by the user is a new series with all its attempts.
    again = job.die_in(7, sensor.add_run(run_id(), dg.DagsterRunStatus.STARTED))
    assert again.series != series
    assert sensor.request().tags[names.ATTEMPT_TAG] == "1"


def test_the_wait_for_the_next_attempt_says_how_often_it_failed(instance: dg.DagsterInstance, job: DyingJob) -> None:
    sensor = sensor_of(instance, job, RestartStrategies.fixed_delay_restart(100, "1 h"))
    series = job.die_in(7, run_id()).series
    assert "in a row" not in sensor.tick()[1]
    job.die_in(7, run_id(), series)
    assert ", after batch 7 failed 2 times in a row with the same error (3 end the job), in " in sensor.tick()[1]


def test_deaths_in_other_batches_or_between_them_do_not_end_it(instance: dg.DagsterInstance, job: DyingJob) -> None:
    sensor = sensor_of(instance, job)
    series = job.die_in(7, run_id()).series
    for batch in (7, 8, 8, None, 8, 8, None, None, None):
        job.die_in(batch, sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series)
    job.die_in(9, sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series)
    job.die_in(9, sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series, files=["planned-anew.json"])
    job.die_in(9, sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series, files=["and-again.json"])
    sensor.request()
    assert [failure.batch for failure in job.failures.of(series)] == [7, 7, 8, 8, None, 8, 8, None, None, None, 9, 9, 9]


def test_what_the_dead_left_is_no_trouble_for_the_sensor(instance: dg.DagsterInstance, job: DyingJob) -> None:
    sensor = sensor_of(instance, job)
    series = job.die_in(7, run_id()).series
    (job.live.path / "offsets" / "7").write_bytes(b"\xff")
    sensor.request()
    shutil.rmtree(job.live.path)
    job.die(sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series=series)
    sensor.request()
    assert [(failure.batch, failure.plan) for failure in job.failures.of(series)] == [(7, None), (None, None)]


def test_it_can_be_switched_off_and_the_strategy_may_end_it_first(instance: dg.DagsterInstance, job: DyingJob) -> None:
    sensor = sensor_of(instance, job, RestartStrategies.fixed_delay_restart(2, "0 s"), attempts=None)
    series = job.die_in(7, run_id()).series
    for _ in range(2):
        job.die_in(7, sensor.launch(sensor.request(), dg.DagsterRunStatus.STARTED), series)
    requests, said = sensor.tick()
    assert requests == []
    assert "all 2 restarts are used up" in said
