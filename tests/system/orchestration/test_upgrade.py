"""A new version that completes no checkpoint: the sensor of a real daemon returns to the version before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.checkpoint.format.code_versions import CodeVersion
from tests.system.orchestration.watch import JobWatch, step_failure

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]

_NEVER = {"execution.checkpointing.interval": "1 h", "execution.checkpointing.min-pause": "1 h"}


def test_a_deployed_version_that_completes_no_checkpoint_is_taken_back(watch: Callable[[str], JobWatch]) -> None:
    job = watch("upgraded")
    job.pipeline.land(3)
    job.pipeline.until_caught_up.touch()
    first = job.launch()
    job.assert_succeeds(first)
    before = job.completed()[-1]

    job.pipeline.version.write_text("2")
    job.reload()
    job.pipeline.land(1)
    second = job.launch(configuration=_NEVER)
    job.wait_committed(second, before.batch + 1)
    assert "wrong" in {letter for letter, _ in job.pipeline.committed()}
    assert job.wait_end(second) == "FAILURE"
    failure = step_failure(job.dev, second)
    assert "Version 2 of job 'upgraded' has completed no checkpoint in 15 s of work" in failure
    third = job.wait_resumed(second).run_id
    job.assert_succeeds(third)

    choice = job.choice()
    assert (choice.restored, choice.code) == (before.reference, CodeVersion("1", None, "2"))
    job.pipeline.assert_exact()
    assert job.assert_all_verify()[-1].batch == job.pipeline.landed() - 1
    job.assert_shown()
    assert job.wait_tick("it ended FINISHED")
    assert {run.run_id for run in job.dev.runs(job.name)} == {first, second, third}
