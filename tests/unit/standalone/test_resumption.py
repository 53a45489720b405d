"""What a run without Dagster does about the run before it, by the storage's records alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, RestartStrategies, build_checkpoint_definitions
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.checkpoint.control.failures import DIED
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.restart import RestartStrategy
from dagster_ckpt.errors import ForeignCheckpoint, JobAlreadyRunning, NotRestarted
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.standalone.resumption import Launch, Resumption
from tests.helpers.orchestration.stored_job import QUICK, StoredJob, make_asset, run_id


def resumption(job: StoredJob, *earlier: str, restart: RestartStrategy = QUICK, deployment: str = "") -> Resumption:
    def never() -> object:
        raise AssertionError("no test starts Spark")

    made = StreamingJob.stored_in(
        job.storage.model_copy(update={"deployment": deployment or "default"}),
        job.catalog.filesystem,
        name=job.name,
        query=never,  # type: ignore[arg-type]
        session=never,  # type: ignore[arg-type]
        config=CheckpointConfig(),
        restart=restart,
        state_backend=None,
        poison_batch_attempts=5,
    )
    launches = [Launch(run, time.time()) for run in earlier]
    return Resumption(made, job.catalog, launches, SystemClock(), lambda _: time.sleep(0.01))


def _alive(job: StoredJob) -> Claim:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    return claim


def _dead(job: StoredJob) -> Claim:
    return job.die(run_id())


def _interrupted(job: StoredJob) -> Claim:
    claim = _dead(job)
    job.beat(claim, alive=False, stopped=True, interrupted=True)
    return claim


def _driver_lost(job: StoredJob) -> Claim:
    claim = _interrupted(job)
    job.fail(claim, 1)
    job.end(claim, "FAILING", "the JVM is gone")
    return claim


def _beyond_a_restart(job: StoredJob) -> Claim:
    claim = _driver_lost(job)
    job.fail(claim, 2, recoverable=False)
    return claim


def _ended(status: str) -> Callable[[StoredJob], Claim]:
    def end(job: StoredJob) -> Claim:
        claim = _dead(job)
        job.beat(claim, alive=False, stopped=True)
        job.end(claim, status)
        return claim

    return end


def _sensor_resumes(job: StoredJob) -> bool:
    """Whether the sensor launches a run of the job."""
    asset = make_asset(job.name)
    resources = {"checkpoint_storage": job.storage, "spark": object()}
    defs = build_checkpoint_definitions([asset], resources)
    (sensor,) = (item for item in defs.get_repository_def().sensor_defs if "resume" in item.name)
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(5):
            context = dg.build_sensor_context(instance, resources=resources)
            if sensor.evaluate_tick(context).run_requests:
                return True
            time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("left", "counted"),
    [
        (_alive, 0),
        (_dead, 1),
        (_interrupted, 0),
        (_driver_lost, 1),
        (_beyond_a_restart, 2),
        (_ended("FINISHED"), 0),
        (_ended("CANCELED"), 0),
        (_ended("FAILED"), 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_it_decides_as_the_sensor_does(left: Callable[[StoredJob], Claim], counted: int, tmp_path: Path) -> None:
    jobs = [StoredJob(tmp_path / "one"), StoredJob(tmp_path / "other")]
    claims = [left(job) for job in jobs]
    try:
        resumed = resumption(jobs[0]).series() is not None
    except NotRestarted:
        resumed = False
        end = jobs[0].catalog.records.epochs.read_end(jobs[0].catalog.records.epochs.highest())
        assert end is not None
        assert end.status == "FAILED"
    assert resumed == _sensor_resumes(jobs[1])
    for job, claim in zip(jobs, claims, strict=True):
        assert len(job.failures.of(claim.series)) == counted


def test_a_job_that_never_ran_is_begun(tmp_path: Path) -> None:
    assert resumption(StoredJob(tmp_path)).series() is None


def test_it_is_resumed_in_the_series_of_the_run_that_died_until_that_is_used_up(tmp_path: Path) -> None:
    job, twice = StoredJob(tmp_path), RestartStrategies.fixed_delay_restart(2, "1 ms").resolve(None)
    first = job.die(run_id())
    for deaths in (1, 2):
        assert resumption(job, restart=twice).series() == first.series
        assert len(job.failures.of(first.series)) == deaths
        job.die(run_id(), series=first.series)
    with pytest.raises(NotRestarted, match="is gone"):
        resumption(job, restart=twice).series()
    assert resumption(job, restart=twice).series() is None, "a person's run begins anew"


def test_the_delay_is_waited_for(tmp_path: Path) -> None:
    job, later = StoredJob(tmp_path), RestartStrategies.fixed_delay_restart(2, "300 ms").resolve(None)
    began = time.monotonic()
    claim = job.die(run_id())
    assert resumption(job, restart=later).series() == claim.series
    assert time.monotonic() - began >= 0.3
    (died,) = job.failures.of(claim.series)
    assert died.sequence == DIED


def test_a_driver_that_never_took_the_job_over_counts_once(tmp_path: Path) -> None:
    job, first, second, third = StoredJob(tmp_path), run_id(), run_id(), run_id()
    claim = job.die(first)
    for _ in range(2):
        assert resumption(job, first, second, third).series() == claim.series
        assert {failure.run_id for failure in job.failures.of(claim.series)} == {first, second, third}


def test_what_an_earlier_driver_has_ended_is_not_begun_again(tmp_path: Path) -> None:
    job = StoredJob(tmp_path)
    claim = _ended("FINISHED")(job)
    found = resumption(job, claim.run_id).series()
    assert isinstance(found, End)
    assert found.status == "FINISHED"
    assert resumption(job).series() is None


def test_a_job_that_another_run_has_continued_is_left_to_that_run(tmp_path: Path) -> None:
    job, mine = StoredJob(tmp_path), run_id()
    job.die(mine)
    _ended("FINISHED")(job)
    with pytest.raises(JobAlreadyRunning, match="in the meantime"):
        resumption(job, mine).series()


def test_nothing_is_counted_against_the_job_of_another_deployment(tmp_path: Path) -> None:
    job = StoredJob(tmp_path)
    claim = job.die(run_id())
    job.catalog.records.claim_ownership("default")
    with pytest.raises(ForeignCheckpoint):
        resumption(job, deployment="theirs").series()
    assert not job.failures.of(claim.series)
