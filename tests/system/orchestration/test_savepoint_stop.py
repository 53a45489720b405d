"""A job that is stopped with a savepoint in Dagster, and restored from it when its checkpoints are no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.orchestration import names
from tests.system.orchestration.watch import JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_stopped_with_a_savepoint_the_run_succeeds_and_nothing_resumes_it(
    watch: Callable[[str], JobWatch], tmp_path: Path
) -> None:
    job = watch("saved")
    job.pipeline.land(2)
    run = job.launch()
    job.hold_mid_batch(run)
    config = {"to": str(tmp_path / "savepoints"), "stop": True}
    taking = job.dev.launch(
        "__ASSET_JOB", assets=[["saved_savepoints"]], config={"ops": {"saved_savepoints": {"config": config}}}
    )
    job.assert_succeeds(taking)
    job.assert_succeeds(run)
    job.wait_tick("it ended FINISHED: stopped with a savepoint")
    with job.dev.instance() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["saved_savepoints"]))
    assert event is not None
    assert event.asset_materialization is not None
    logged = {key: value.value for key, value in event.asset_materialization.metadata.items()}
    savepoint = job.catalog.resolve(str(logged["pointer"]))
    verify_checkpoint(job.catalog, savepoint)
    # The batch that was in flight is planned in the savepoint, and is read again from there.
    assert (logged["batch"], logged["bytes"], logged["files"]) == (1, savepoint.size, len(savepoint.files))

    shutil.rmtree(job.pipeline.checkpoint_path / job.name)
    job.pipeline.release()
    job.pipeline.until_caught_up.touch()
    again = job.launch(restore_from=str(savepoint.location))
    job.assert_succeeds(again)
    job.pipeline.assert_exact()
    assert job.choice().restored == savepoint.location
    with job.dev.instance() as instance:
        restored = instance.get_run_by_id(again)
    assert restored is not None
    assert restored.tags[names.RESTORED_FROM_TAG] == savepoint.location
    assert {metadata.job_id for metadata in job.assert_all_verify()} == {again.replace("-", "")}
