"""Requests that the network holds back, and that arrive when their sender is long gone."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.catalog import voiding
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.errors import CheckpointFileMissing, CheckpointNotFound, PublishUnknown
from dagster_ckpt.testing import Late
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, directories, once, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import as_version_1, fields_of
from tests.unit.checkpoint.protocol.lives import Held, Life, after_the_next_start, arrive, within_the_life


def late_manifest(run: Run, held: Held) -> None:
    """A checkpoint of which nobody knows, now and for long, whether it is complete; the next one is."""
    disk = run.filesystem
    disk.plan = once("create", "_metadata", Late(held))  # type: ignore[attr-defined]
    with pytest.raises(PublishUnknown):
        run.checkpoint(state(50), 1)
    disk.plan = lambda _: None  # type: ignore[attr-defined]


def test_a_manifest_below_a_complete_one_that_arrives_after_the_sweep_is_void(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    held: Held = []
    late_manifest(run, held)
    newest = run.checkpoint(state(1), 2)
    again = Run(memory, ledger, pins).start()
    assert again.store.restored_from == newest.reference
    arrive(held)
    catalog = CheckpointCatalog(memory, JOB)
    assert memory.read(f"{JOB}/{run.store.job_id}/chk-1/_metadata")
    completed, _ = catalog.completed(run.store.job_id)
    assert [item.checkpoint_id for item in completed] == [2]
    with pytest.raises(CheckpointNotFound, match="is void"):
        catalog.load(run.store.job_id, 1)
    ledger.examine(memory)
    last = Run(memory, ledger, pins).start()
    assert f"{JOB}/{run.store.job_id}/chk-1/_metadata" not in memory.files, "the next start sweeps it"
    assert {name.rpartition("/")[2] for item in last.store.retained for name in item.references} == shared(memory)


def test_a_manifest_that_arrives_before_anybody_chose_counts_and_is_whole(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    held: Held = []
    late_manifest(run, held)
    run.checkpoint(state(1), 2)
    arrive(held)
    again = Run(memory, ledger, pins).start()
    late = again.catalog.load(run.store.job_id, 1)
    assert content(memory, late) == state(50)
    choice = Epochs(memory, JOB).read_choice(again.claim.epoch)
    assert choice is not None
    assert choice.complete == (1, 2)


def test_a_record_that_does_not_list_what_was_complete_is_read_as_before(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    run.checkpoint(state(1), 1)
    Run(memory, ledger, pins).start()
    path = f"{JOB}/control/epochs/e-{2:010}.choice"
    assert fields_of(memory.files[path])["complete"] == [1]
    memory.files[path] = as_version_1(memory.files[path], "complete")
    claim = path.removesuffix(".choice")
    memory.files[claim] = as_version_1(memory.files[claim])
    choice = Epochs(memory, JOB).read_choice(2)
    assert choice is not None
    assert (choice.complete, choice.last_id) == (None, 1)
    assert CheckpointCatalog(memory, JOB).load(run.store.job_id, 1).checkpoint_id == 1


def test_a_manifest_that_arrives_in_a_lineage_that_was_given_up_is_gone_on_from_by_nobody(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    """Nothing voids it, because no later start chose in that lineage: it is listed, and refused when it is restored."""
    held: Held = []
    run.checkpoint(state(1), 1)
    late_manifest(run, held)
    run.cleanup()
    Run(memory, ledger, pins).start()
    arrive(held)
    catalog = CheckpointCatalog(memory, JOB)
    late = catalog.load(run.store.job_id, 2)
    with pytest.raises(CheckpointFileMissing, match="is gone"):
        verify_checkpoint(catalog, late)
    again = Run(memory, ledger, pins).start()
    assert again.store.restored_from is None
    assert again.store.job_id != run.store.job_id


def test_what_takes_the_name_of_a_lost_manifest_is_void_for_every_release(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a release before that knows no such manifests: its choices void it."""
    held: Held = []
    run.checkpoint(state(49))
    late_manifest(run, held)
    newest = run.checkpoint(state(1), 2)
    before = shared(memory)
    run.subsume(1)
    arrive(held)
    left = {name.rpartition("/")[2] for name in newest.references}
    assert shared(memory) == left < before, "what was stored for it alone is gone, too"
    for no_epoch, why in ((voiding.BY_NO_EPOCH, "the publish was given up"), (-1, "published it after epoch 1 had")):
        monkeypatch.setattr(voiding, "BY_NO_EPOCH", no_epoch)
        with pytest.raises(CheckpointNotFound, match=why):
            CheckpointCatalog(memory, JOB).load(run.store.job_id, 2)
    assert Run(memory, ledger, pins).start().store.restored_from == newest.reference
    assert directories(memory) == {"chk-3"}


@pytest.mark.parametrize("scenario", ["first_life", "rollback", "sharing"])
def test_every_change_may_arrive_after_the_next_start(pins: Pins, scenario: str) -> None:
    """Whatever it is: the sender has given up on it, another has started and swept, and then it happens."""
    result = after_the_next_start(Life(pins), scenario)
    assert result.runs > 20
    result.require_none()


@pytest.mark.parametrize("requests", [1, 60])
@pytest.mark.parametrize("scenario", ["sharing", "beside"])
def test_every_change_may_arrive_in_the_midst_of_the_same_life(pins: Pins, scenario: str, requests: int) -> None:
    """Its sender counts a failure and goes on: nothing that it deletes afterwards may be needed by what arrives."""
    result = within_the_life(Life(pins), scenario, requests)
    assert result.runs > 20
    result.require_none()
