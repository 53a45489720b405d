"""Whose a restored checkpoint or savepoint becomes: the lineage's own, or nobody's to touch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.spark.events import CheckpointsSubsumed
from tests.jobs.harness import NEVER, Bench, tree
from tests.jobs.savepoints import Take

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint

CLAIM, NO_CLAIM = RecoveryClaimMode.CLAIM, RecoveryClaimMode.NO_CLAIM
_TWO = NEVER.model_copy(update={"num_retained": 2})


@pytest.fixture
def savepoint(ticked: Bench, take: Take) -> TakenSavepoint:
    """Of the newest checkpoint, chk-3 at batch 5; and then the job went on by a tick."""
    taken = take(ticked)
    ticked.tick(1)
    return taken


def test_a_claimed_savepoint_is_of_its_lineage_and_goes_when_it_is_subsumed(
    ticked: Bench, savepoint: TakenSavepoint
) -> None:
    lineage = ticked.checkpoints()[-1].job_id
    first = ticked.tick(1, ticked.job(config=_TWO), restore_from=savepoint.pointer, claim_mode=CLAIM)
    assert first.started.job_id == lineage, "no new lineage begins"
    assert first.completed[0].checkpoint_id == 5
    assert Path(savepoint.pointer, "_metadata").exists(), "one of the two newest that the job could go back to"
    second = ticked.tick(1, ticked.job(config=_TWO))
    assert second.started.restored == first.completed[-1]
    assert not Path(savepoint.pointer).exists(), "two newer ones are there"
    discarded = [item for event in second.of(CheckpointsSubsumed) for item in event.discarded]
    assert savepoint.pointer in {item.metadata.reference for item in discarded}
    ticked.assert_exact()
    third = ticked.tick(1, ticked.job(config=_TWO))
    assert third.started.restored == second.completed[-1], "that it is gone harms nobody"
    ticked.assert_exact()
    ticked.checkpoints()


@pytest.mark.exhaustive
def test_until_it_is_subsumed_a_crash_comes_back_to_a_claimed_savepoint(
    ticked: Bench, savepoint: TakenSavepoint
) -> None:
    ticked.run_and_cancel(1, ticked.job(config=_TWO), restore_from=savepoint.pointer, claim_mode=CLAIM)
    shutil.rmtree(ticked.working)
    again = ticked.tick(1, ticked.job(config=_TWO))
    assert again.started.restored is not None
    assert again.started.restored.reference == savepoint.pointer
    ticked.assert_exact()


@pytest.mark.exhaustive
def test_a_cleanup_that_deletes_deletes_a_claimed_savepoint_too(ticked: Bench, savepoint: TakenSavepoint) -> None:
    deletes = CheckpointConfig(interval="1 h", min_pause="1 h", retain_on_success=False)
    ticked.tick(1, ticked.job(config=deletes), restore_from=savepoint.pointer, claim_mode=CLAIM)
    assert not Path(savepoint.pointer).exists()


def test_who_cleans_up_after_a_dead_run_deletes_its_claimed_savepoint(ticked: Bench, savepoint: TakenSavepoint) -> None:
    ticked.tick(1, restore_from=savepoint.pointer, claim_mode=CLAIM)
    dead = ticked.catalog.records.epochs.read_claim(ticked.catalog.records.epochs.highest())
    assert dead is not None
    next(ticked.storage.glob(f"**/e-*{dead.epoch}.end")).unlink()  # it died before
    config = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    discarded = end_dead_epoch(ticked.catalog, dead, config, JobStatus.CANCELED, "it died", SystemClock())
    assert savepoint.pointer in {item.metadata.reference for item in discarded}
    assert not Path(savepoint.pointer).exists()


@pytest.mark.exhaustive
def test_a_savepoint_is_not_claimed_unless_asked(ticked: Bench, savepoint: TakenSavepoint) -> None:
    content = tree(Path(savepoint.pointer))
    one = NEVER.model_copy(update={"num_retained": 1, "retain_on_success": False})
    for _ in range(2):
        ticked.tick(1, ticked.job(config=one), restore_from=savepoint.pointer)
    assert tree(Path(savepoint.pointer)) == content


def test_a_checkpoint_that_is_not_claimed_is_never_touched(ticked: Bench) -> None:
    lineage = ticked.checkpoints()[-1].job_id
    directory = ticked.storage / ticked.name / lineage
    content = tree(directory)
    one = NEVER.model_copy(update={"num_retained": 1})
    branched = ticked.tick(1, ticked.job(config=one), restore_from="chk-2", claim_mode=NO_CLAIM)
    assert branched.started.job_id == branched.run_id.replace("-", "") != lineage
    assert branched.completed[0].checkpoint_id == 3, "ids rise across the restore"
    assert branched.completed[0].new_bytes == branched.completed[0].size, "it shares nothing with its origin"
    ticked.assert_exact()
    ticked.tick(1, ticked.job(config=one))
    given_up = NEVER.model_copy(update={"retain_on_success": False})
    ticked.tick(1, ticked.job(config=given_up))
    ticked.assert_exact()
    assert tree(directory) == content, "neither subsuming nor the cleanup reaches the other lineage"


@pytest.mark.exhaustive
def test_until_the_branch_has_a_checkpoint_a_crash_comes_back_to_its_origin(ticked: Bench) -> None:
    origin = ticked.checkpoints()[1]
    branched = ticked.run_and_cancel(1, restore_from=origin.reference, claim_mode=NO_CLAIM)
    shutil.rmtree(ticked.working)
    again = ticked.tick(1)
    assert again.started.restored == origin
    assert again.started.job_id == branched.started.job_id
    ticked.assert_exact()
