"""A run that is launched with settings of its own goes by them, and so does the run that resumes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.orchestration import names
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.system.orchestration.watch import PATIENCE, JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]

#: The asset itself says: a checkpoint in an hour, three retained, no restart.
_CONFIGURATION = {
    "execution.checkpointing.interval": "200 ms",
    "execution.checkpointing.min-pause": "0 s",
    "execution.checkpointing.num-retained": "2",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "3",
    "restart-strategy.fixed-delay.delay": "100 ms",
}


def test_a_killed_run_is_resumed_with_the_configuration_it_was_launched_with(watch: Callable[[str], JobWatch]) -> None:
    job = watch("configured")
    job.pipeline.land(2)
    job.pipeline.unhurried.touch()
    first = job.launch(configuration=_CONFIGURATION)
    job.hold_mid_batch(first)  # what it had read is covered by a checkpoint, an hour too early for the asset
    newest = job.completed()[-1]
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.release()

    second = job.wait_resumed(first)  # the asset itself would not be restarted
    kept = {"restore_from": "latest", "configuration": _CONFIGURATION}
    assert second.run_config == {"ops": {job.name: {"config": kept}}}
    assert second.tags[names.ATTEMPT_TAG] == "1"
    job.wait_caught_up(second.run_id)
    assert job.choice().restored == newest.reference
    for _ in range(2):
        job.pipeline.land(1)
        job.wait_caught_up(second.run_id)
    wait_for(lambda: len(job.completed()) == 2, "the others to be subsumed", seconds=PATIENCE)
    job.dev.terminate(second.run_id)
    assert job.wait_end(second.run_id) == "CANCELED"
    retained = job.assert_all_verify()
    assert [metadata.writer["run_id"] for metadata in retained] == [second.run_id] * 2, "of three it completed"
    assert retained[-1].batch == job.pipeline.landed() - 1
    job.assert_shown()
    job.pipeline.assert_exact()
    assert {run.run_id for run in job.dev.runs(job.name)} == {first, second.run_id}
