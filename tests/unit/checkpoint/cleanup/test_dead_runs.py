from __future__ import annotations

from contextlib import suppress

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch, finish_end, is_unfinished
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import enumerate_crash_points
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

DELETING = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)
KEEPING = CheckpointConfig()


def test_where_the_policy_deletes_nothing_is_left_and_the_zombie_is_fenced(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
) -> None:
    dead = Run(memory, ledger, pins).start()
    for step in range(3):
        dead.checkpoint(state(step))
    catalog = CheckpointCatalog(memory, JOB)
    discarded = end_dead_epoch(catalog, dead.claim, DELETING, JobStatus.CANCELED, "terminated", clock)
    assert [item.metadata.name for item in discarded] == ["chk-1", "chk-2", "chk-3"]
    assert [name for name in memory.files if "/chk-" in name or "/shared/" in name] == []
    with pytest.raises(Fenced):
        dead.checkpoint(state(9))
    found = find_newest(catalog)
    assert (found.metadata, found.job_id) == (None, None)
    assert "CANCELED" in found.reason


def test_where_it_keeps_the_job_can_go_on(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
) -> None:
    dead = Run(memory, ledger, pins).start()
    dead.checkpoint(state(1))
    catalog = CheckpointCatalog(memory, JOB)
    assert end_dead_epoch(catalog, dead.claim, KEEPING, JobStatus.FAILED, "gave up", clock) == ()
    end = catalog.records.epochs.read_end(catalog.records.epochs.highest())
    assert end is not None
    assert (end.status, end.reason, end.discarded) == ("FAILED", "gave up", False)
    assert Run(memory, ledger, pins).start().store.restored_from == f"{1:032x}/chk-1"


def test_a_run_that_died_before_it_chose(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
) -> None:
    """What its predecessor left is the job's, and the policy is about the job."""
    Run(memory, ledger, pins).start().checkpoint(state(1))
    catalog = CheckpointCatalog(memory, JOB)
    dead: Claim = catalog.records.epochs.claim(token="t", series=1, run_id="r", host="h", pid=1, now="now")
    end_dead_epoch(catalog, dead, DELETING, JobStatus.CANCELED, "terminated", clock)
    assert find_newest(catalog).metadata is None
    assert find_newest(catalog).job_id is None


@pytest.mark.parametrize("went_back", [False, True])
def test_a_run_that_had_recorded_its_failure(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock, went_back: bool
) -> None:
    """Its attempt failed, and was to be restarted; then the attempts were used up."""
    dead = Run(memory, ledger, pins).start()
    dead.checkpoint(state(1))
    if went_back:
        dead = Run(memory, ledger, pins).start("chk-1")
    catalog = CheckpointCatalog(memory, JOB)
    catalog.records.epochs.record_end(dead.claim.epoch, End("FAILING", "driver lost", discarded=False, ended_at="now"))
    end_dead_epoch(catalog, dead.claim, DELETING, JobStatus.FAILED, "all restarts are used up", clock)
    found = find_newest(catalog)
    assert (found.metadata, found.job_id) == (None, None)
    assert "FAILED" in found.reason


def test_a_crash_anywhere_leaves_all_or_is_finished_by_the_next(pins: Pins) -> None:
    def fresh() -> tuple[FileSystem, Ledger]:
        storage, ledger = MemoryFileSystem(), Ledger()
        run = Run(storage, ledger, pins).start()
        for step in range(3):
            run.checkpoint(state(step))
        return storage, ledger

    def end(storage: FileSystem, ledger: Ledger) -> None:
        catalog = CheckpointCatalog(storage, JOB)
        dead = catalog.records.epochs.read_claim(1)
        assert dead is not None
        ledger.discarded = True
        ledger.given_up |= set(ledger.meant)
        end_dead_epoch(catalog, dead, DELETING, JobStatus.CANCELED, "terminated", ManualClock())

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        ledger.examine(storage)
        run = Run(storage, ledger, pins).start()
        run.checkpoint(state(9))
        assert DeletionLog(storage, JOB).pending() == []
        ledger.examine(storage)

    result = enumerate_crash_points(fresh, end, examine, expected=(OSError, CheckpointError))
    assert result.runs > 60
    result.require_none()


def look_after(storage: FileSystem) -> None:
    """What whoever looks after a dead run does next: end the job, or carry out what its end asks for."""
    catalog, clock = CheckpointCatalog(storage, JOB), ManualClock()
    highest = catalog.records.epochs.highest()
    dead, end = catalog.records.epochs.read_claim(highest), catalog.records.epochs.read_end(highest)
    assert dead is not None
    if end is None:
        with suppress(Fenced):  # the run before has ended the job
            end_dead_epoch(catalog, dead, DELETING, JobStatus.CANCELED, "terminated", clock)
    elif is_unfinished(catalog):
        assert finish_end(catalog, dead, end, clock).epoch == highest + 1


@pytest.mark.parametrize("is_on_record", [False, True], ids=["the whole end", "the rest of it"])
def test_a_crash_anywhere_is_made_up_for_without_another_start(pins: Pins, *, is_on_record: bool) -> None:
    """An ended job may never be started again, and its checkpoints are to go all the same."""

    def fresh() -> tuple[FileSystem, Ledger]:
        storage, ledger = MemoryFileSystem(), Ledger()
        run = Run(storage, ledger, pins).start()
        for step in range(3):
            run.checkpoint(state(step))
        if is_on_record:
            run.catalog.records.epochs.record_end(1, End("CANCELED", "terminated", discarded=True, ended_at="now"))
        return storage, ledger

    def examine(storage: FileSystem, _: Ledger) -> None:
        for _again in range(2):
            look_after(storage)
        catalog = CheckpointCatalog(storage, JOB)
        assert not is_unfinished(catalog)
        assert isinstance(storage, MemoryFileSystem)
        assert [name for name in storage.files if "/chk-" in name or "/shared/" in name] == []
        assert catalog.given_up() is not None
        highest = catalog.records.epochs.highest()
        look_after(storage)
        assert catalog.records.epochs.highest() == highest, "what is done is not done again"

    result = enumerate_crash_points(
        fresh, lambda storage, _: look_after(storage), examine, expected=(OSError, CheckpointError)
    )
    assert result.runs > 30
    result.require_none()


def test_nobody_but_the_dead_run_is_fenced(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, clock: ManualClock
) -> None:
    dead = Run(memory, ledger, pins).start()
    dead.checkpoint(state(1))
    new = Run(memory, ledger, pins).start()
    catalog = CheckpointCatalog(memory, JOB)
    end = End("CANCELED", "terminated", discarded=True, ended_at="now")
    with pytest.raises(Fenced):
        end_dead_epoch(catalog, dead.claim, DELETING, JobStatus.CANCELED, "terminated", clock)
    with pytest.raises(Fenced):
        finish_end(catalog, dead.claim, end, clock)
    assert new.checkpoint(state(2)).name == "chk-2"
    assert catalog.records.epochs.highest() == new.claim.epoch
