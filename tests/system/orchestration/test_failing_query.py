"""A query that fails by itself is restarted within its run, as often as the restart strategy says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.checkpoint.control.failures import DIED
from tests.system.orchestration.watch import JobWatch, step_failure

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_a_query_fails_until_its_attempts_are_used_up_and_the_sensor_says_so(watch: Callable[[str], JobWatch]) -> None:
    job = watch("poisoned")
    job.pipeline.land(2)
    job.pipeline.poison.write_text("1000")
    job.pipeline.land(1, poisoned=True)
    first = job.launch()
    assert job.wait_end(first) == "FAILURE"
    failure = step_failure(job.dev, first)
    assert "QueryFailed" in failure
    assert "a poison row" in failure
    assert [(item.run_id, item.sequence) for item in job.failures()] == [(first, 1), (first, 2), (first, 3)]
    assert [_status(job, epoch) for epoch in (1, 2, 3)] == ["FAILING", "FAILING", "FAILED"]
    said = job.wait_tick("it ended FAILED")
    assert "all 2 restarts are used up (fixed delay 100 ms, 2 attempts)" in said
    assert "a poison row" in said, "what failed is what a person needs to know"
    assert [run.run_id for run in job.dev.runs(job.name)] == [first]
    assert job.assert_all_verify()
    job.assert_shown()
    job.pipeline.assert_exact(files=2)

    # Nothing was deleted: once the cause is gone, the same button goes on.
    job.pipeline.poison.write_text("0")
    job.pipeline.until_caught_up.touch()
    again = job.launch()
    job.assert_succeeds(again)
    assert job.choice().restored is not None
    assert job.failures() == [], "a start by a user has a budget of its own"
    job.pipeline.assert_exact()


def test_a_batch_that_kills_its_driver_ends_the_job_after_as_many_runs(watch: Callable[[str], JobWatch]) -> None:
    """No run lives to tell; the sensor recognises the batch, though ten restarts are allowed."""
    job = watch("deadly")
    job.pipeline.land(2)
    job.pipeline.land(1, poisoned=True)
    job.pipeline.poison.write_text("1000")
    job.pipeline.deadly.touch()
    first = job.launch()
    second = job.wait_resumed(first).run_id
    assert job.wait_end(second) == "FAILURE"
    said = job.wait_tick("it ended FAILED")
    # Files that landed within one millisecond may be read in any order, so it need not be the last batch.
    (batch,) = {item.batch for item in job.failures()}
    assert f"Batch {batch} of job 'deadly' is poison: it failed 2 times in a row" in said
    assert [(item.run_id, item.sequence) for item in job.failures()] == [(first, DIED), (second, DIED)]
    assert len({item.plan for item in job.failures()} - {None}) == 1
    assert {run.run_id for run in job.dev.runs(job.name)} == {first, second}

    job.pipeline.poison.write_text("0")
    job.pipeline.until_caught_up.touch()
    job.assert_succeeds(job.launch())
    job.pipeline.assert_exact()


def test_a_query_that_fails_twice_and_then_succeeds_is_exact(watch: Callable[[str], JobWatch]) -> None:
    job = watch("hiccups")
    job.pipeline.land(2)
    job.pipeline.poison.write_text("2")
    job.pipeline.land(1, poisoned=True)
    job.pipeline.land(1)
    job.pipeline.until_caught_up.touch()
    run = job.launch()
    job.assert_succeeds(run)
    job.pipeline.assert_exact()
    assert [item.sequence for item in job.failures()] == [1, 2]
    assert job.epoch() == 3
    assert [item.run_id for item in job.dev.runs(job.name)] == [run]
    job.assert_all_verify()


def _status(job: JobWatch, epoch: int) -> str:
    end = job.catalog.records.epochs.read_end(epoch)
    assert end is not None
    return end.status
