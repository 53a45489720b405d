"""Terminate is Flink's cancel: the run ends, nothing resumes it, the cleanup policy decides on the checkpoints."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import End
from tests.system.orchestration.pipeline import Pipeline
from tests.system.orchestration.watch import JobWatch, step_failure

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.exhaustive
def test_retained_checkpoints_are_gone_on_from_after_a_cancellation(watch: Callable[[str], JobWatch]) -> None:
    job = watch("retained")
    first = _cancel_mid_batch(job)
    completed = job.assert_all_verify()
    assert completed
    job.assert_shown()
    end = _end(job)
    assert (end.status, end.reason, end.discarded) == ("CANCELED", "canceled", False)
    job.wait_tick("it ended CANCELED: canceled")
    assert [run.run_id for run in job.dev.runs(job.name)] == [first], "a canceled run is not resumed"

    job.pipeline.release()
    job.pipeline.until_caught_up.touch()
    again = job.launch()
    job.assert_succeeds(again)
    assert job.choice().restored == completed[-1].reference
    assert job.choice().job_id == first.replace("-", "")
    job.pipeline.assert_exact()


@pytest.mark.exhaustive  # what the sink refuses is also told without Dagster
def test_after_a_deletion_the_next_start_is_refused_by_the_sink_that_has_data(watch: Callable[[str], JobWatch]) -> None:
    job = watch("deleted")
    first = _cancel_mid_batch(job)
    _assert_deleted(job)
    written = job.pipeline.committed()
    job.pipeline.release()
    again = job.launch()
    assert job.wait_end(again) == "FAILURE"
    failure = step_failure(job.dev, again)
    assert "SinkNotEmpty" in failure
    assert str(job.pipeline.output) in failure
    assert f"empty {job.pipeline.output}" in failure, "the next thing to do is named"
    assert job.pipeline.committed() == job.pipeline.raw() == written
    job.wait_tick("it ended FAILED")
    assert {run.run_id for run in job.dev.runs(job.name)} == {first, again}, "a restart cannot help"


@pytest.mark.exhaustive
def test_checkpoints_that_are_not_externalized_go_with_the_job(watch: Callable[[str], JobWatch]) -> None:
    job = watch("unexternalized")
    first = _cancel_mid_batch(job)
    _assert_deleted(job)
    job.wait_tick("it ended CANCELED: canceled")
    assert [run.run_id for run in job.dev.runs(job.name)] == [first]


@pytest.mark.exhaustive
def test_the_sensor_cleans_up_after_a_forced_termination(watch: Callable[[str], JobWatch]) -> None:
    job = watch("forced")
    job.pipeline.land(2)
    first = job.launch()
    job.wait_caught_up(first)
    job.wait_reported(first)
    driver, java = job.heartbeat().processes
    # A JVM that hangs is why somebody forces a termination: the run cannot stop its query, and so not clean up.
    os.kill(java.pid, signal.SIGSTOP)
    job.dev.terminate(first, force=True)
    assert job.wait_end(first) == "CANCELED"
    os.kill(driver.pid, signal.SIGKILL)
    os.kill(java.pid, signal.SIGKILL)
    job.wait_gone([driver, java])
    job.wait_tick(f"it ended CANCELED: run {first} was canceled")
    _assert_deleted(job)
    assert [run.run_id for run in job.dev.runs(job.name)] == [first]
    job.pipeline.assert_exact()


@pytest.mark.exhaustive
def test_a_run_that_is_told_to_go_and_not_canceled_is_resumed(watch: Callable[[str], JobWatch]) -> None:
    """As a host does that is drained or shut down, and Ctrl-C: nobody has said that the job is to end."""
    job = watch("interrupted")
    job.pipeline.land(2)
    first = job.launch()
    job.hold_mid_batch(first)
    completed = job.completed()
    processes = job.heartbeat().processes
    os.kill(processes[0].pid, signal.SIGTERM)
    assert job.wait_end(first) == "FAILURE"
    assert step_failure(job.dev, first).startswith("This run was told to end"), "and no stack trace"
    job.wait_gone(processes)
    job.pipeline.release()
    job.pipeline.until_caught_up.touch()
    second = job.wait_resumed(first)
    job.assert_succeeds(second.run_id)
    job.pipeline.assert_exact()
    assert job.choice().restored == completed[-1].reference
    assert job.failures() == []


def _cancel_mid_batch(job: JobWatch) -> str:
    """Run the job, and terminate it while a batch is in flight; returns the run."""
    job.pipeline.land(2)
    run = job.launch()
    job.hold_mid_batch(run)
    job.wait_reported(run)
    processes = job.heartbeat().processes
    job.dev.terminate(run)
    assert job.wait_end(run) == "CANCELED"
    job.wait_gone(processes)
    assert step_failure(job.dev, run).startswith("This run was terminated"), "and no stack trace"
    # The run ended by itself and in order: it was not left to the JVM's death or to the sensor.
    assert job.heartbeat().stopped
    assert _end(job).reason == "canceled"
    return run


def _assert_deleted(job: JobWatch) -> None:
    """No checkpoint is left, in the storage or in Dagster, and Dagster says why."""
    assert _stored_files(job.pipeline, job.catalog.job_ids()) == []
    assert _end(job).discarded
    assert find_newest(job.catalog).metadata is None
    job.assert_shown()
    with job.dev.instance() as instance:
        observed = instance.fetch_observations(dg.AssetKey([f"{job.name}_checkpoints"]), limit=200).records
    reasons = [str(item.asset_observation.metadata["reason"].value) for item in observed if item.asset_observation]
    assert any(reason.startswith("CANCELED: ") and "the cleanup policy deletes" in reason for reason in reasons)


def _stored_files(pipeline: Pipeline, lineages: Sequence[str]) -> list[str]:
    storage = pipeline.checkpoint_path / pipeline.name
    return [str(file) for lineage in lineages for file in (storage / lineage).rglob("*") if file.is_file()]


def _end(job: JobWatch) -> End:
    end = job.catalog.records.epochs.read_end(job.epoch())
    assert end is not None
    return end
