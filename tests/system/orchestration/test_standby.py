"""A real Dagster resumes a killed run in the JVM that waited beside the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.spark.standby.place import directory
from tests.jobs.harness import eventually
from tests.system.orchestration.watch import JobWatch

# The same without Dagster is in `jobs/starting/test_standby.py`.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_a_killed_run_goes_on_in_the_standby(watch: Callable[[str], JobWatch]) -> None:
    job = watch("warm")
    before = set(directory().glob("*.sock"))
    job.pipeline.land(2)
    first = job.launch()
    job.hold_mid_batch(first)
    eventually("a standby is ready", lambda: bool(set(directory().glob("*.sock")) - before))
    job.pipeline.until_caught_up.touch()
    job.kill_driver()
    job.pipeline.release()
    second = job.wait_resumed(first)
    job.assert_succeeds(second.run_id)
    job.pipeline.assert_exact()
    starts = job.catalog.records.starts.newest(2)
    assert [{"JVM", "standby"} & {step.name for step in start.steps} for start in starts] == [{"JVM"}, {"standby"}]
    eventually("no standby is left", lambda: not set(directory().glob("*.sock")) - before)
