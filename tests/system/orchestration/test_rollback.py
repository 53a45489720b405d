"""After a rollback the abandoned later checkpoints are void for every automatic resume."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.orchestration import names
from tests.system.orchestration.watch import JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.exhaustive  # the same without Dagster is among the fast tests
def test_a_crash_after_a_rollback_does_not_come_back_to_abandoned_checkpoints(watch: Callable[[str], JobWatch]) -> None:
    job = watch("rolled_back")
    job.pipeline.land(1)
    run = job.launch()
    for _ in range(5):
        job.wait_caught_up(run)
        job.pipeline.land(1)
    job.wait_caught_up(run)
    job.dev.terminate(run)
    assert job.wait_end(run) == "CANCELED"
    old, *abandoned = job.completed()[-5:]

    # Killed before its first checkpoint, whatever it has written: the choice on record decides.
    job.pipeline.unhurried.touch()
    job.pipeline.hold_from(old.batch + 3)
    back = job.launch(restore_from=job.catalog.pointer(old))
    job.wait_committed(back, old.batch + 2)
    assert job.choice().restored == old.reference
    assert not [metadata for metadata in job.completed() if metadata.writer["run_id"] == back]
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.unhurried.unlink()
    job.pipeline.hold_from(old.batch + 4)
    second = job.wait_resumed(back)
    assert second.tags[names.RESTORED_FROM_TAG] == old.reference

    # Killed after it: the new checkpoint is the newest, although the abandoned ones cover later batches. It covers what
    # the run before had planned, which runs again first, and a batch more.
    new = job.wait_checkpoint_of(second.run_id, old.batch + 3)
    assert job.choice().restored == old.reference
    assert new.checkpoint_id > abandoned[-1].checkpoint_id
    assert new.batch < abandoned[-1].batch
    job.wait_in_flight(second.run_id)
    job.pipeline.assert_exact(files=new.batch + 1)
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.release()
    job.pipeline.until_caught_up.touch()
    third = job.wait_resumed(second.run_id)
    assert third.tags[names.RESTORED_FROM_TAG] == new.reference
    job.assert_succeeds(third.run_id)
    assert job.choice().restored == new.reference
    job.pipeline.assert_exact()
    # Void is not gone: they can still be restored by name.
    listed = {metadata.reference for metadata in job.assert_all_verify()}
    assert {metadata.reference for metadata in abandoned} <= listed
    assert all(job.catalog.resolve(metadata.reference) == metadata for metadata in abandoned)
