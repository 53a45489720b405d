"""A claimed savepoint: given up once, whatever interrupts it, and by the writer that holds the job alone."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_giving_up
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint
from dagster_ckpt.checkpoint.cleanup.savepoint_history import kept_savepoint
from dagster_ckpt.checkpoint.control import pins as pin_records
from dagster_ckpt.checkpoint.control.epochs import Choice, End, Epochs
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking import savepoint_files as savepoints
from dagster_ckpt.checkpoint.taking.savepoint_files import (
    claim_savepoint,
    claimed_savepoint,
    copy_to_savepoint,
    dispose_claimed,
    dispose_savepoint,
    give_up_claimed,
)
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import Fenced, StorageError
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.testing import Crash, CrashAfter, Fail, FaultInjectingFileSystem, ProcessDied, at_operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

LINEAGE = f"{1:032x}"


@pytest.fixture
def directory(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "savepoints")


def saved(run: Run, directory: FileSystem, step: int) -> CheckpointMetadata:
    return run.store.write_savepoint(run.begin(), run.pins.snapshot(step, state(step)), directory)


def is_there(metadata: CheckpointMetadata) -> bool:
    return Path(metadata.reference, "_metadata").exists()


def test_it_counts_as_retained_and_is_given_up_once(run: Run, directory: PosixFileSystem) -> None:
    savepoint = run.store._kept._claimed = saved(run, directory, 1)
    run.checkpoint(state(2), 2)
    assert run.store.subsume(Retention(2)) == []
    assert is_there(savepoint)
    run.checkpoint(state(3), 3)
    (discarded,) = run.store.subsume(Retention(2))
    assert discarded.metadata == savepoint
    assert "not among the 2 newest" in discarded.reason
    assert not Path(savepoint.reference).exists()
    assert [item.batch for item in run.store.retained] == [2, 3]
    assert run.store.subsume(Retention(2)) == []


def test_a_fenced_writer_deletes_no_savepoint(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, directory: PosixFileSystem
) -> None:
    savepoint = run.store._kept._claimed = saved(run, directory, 1)
    run.checkpoint(state(2), 2)
    Run(memory, ledger, pins).start()
    with pytest.raises(Fenced):
        run.store.subsume(Retention(1))
    with pytest.raises(Fenced):
        run.store.discard_all("canceled")
    assert is_there(savepoint)


def test_what_the_storage_refuses_to_delete_is_tried_again(
    run: Run, directory: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint = run.store._kept._claimed = saved(run, directory, 1)
    run.checkpoint(state(2), 2)
    with monkeypatch.context() as patched:
        patched.setattr(PosixFileSystem, "remove", _refuses)
        assert run.store.subsume(Retention(1)) == []
    (discarded,) = run.store.subsume(Retention(1))
    assert discarded.metadata == savepoint
    assert not Path(savepoint.reference).exists()


def test_one_that_a_rollback_goes_back_to_stays_meanwhile(run: Run, directory: PosixFileSystem) -> None:
    savepoint = run.store._kept._claimed = saved(run, directory, 1)
    run.checkpoint(state(2), 2)
    with kept_savepoint(run.catalog, savepoint, "rollback x", SystemClock()):
        assert run.store.subsume(Retention(1)) == []
        assert savepoint not in [item.metadata for item in run.store.discard_all("canceled")]
        assert is_there(savepoint)
    (discarded,) = run.store.discard_all("canceled")
    assert discarded.metadata == savepoint
    assert not is_there(savepoint)
    assert run.catalog.records.pins.pinned() == frozenset()


def test_the_start_after_a_discarded_lineage_leaves_it_to_the_rollback(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem
) -> None:
    catalog, savepoint = CheckpointCatalog(memory, JOB), saved(run, directory, 1)
    claim_savepoint(savepoint, LINEAGE, like=memory)
    epochs = Epochs(memory, JOB)
    epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
    epochs.record_choice(2, replace(claims(savepoint.reference), complete=()))
    epochs.record_end(2, End("CANCELED", "of the test", discarded=True, ended_at="2026-11-23T10:00:00+00:00"))
    with kept_savepoint(catalog, savepoint, "rollback x", SystemClock()):
        finish_giving_up(catalog, 3, lambda _: frozenset())
        assert is_there(savepoint)
    finish_giving_up(catalog, 3, lambda _: frozenset())
    assert not is_there(savepoint)


def test_a_full_storage_takes_no_pin_and_the_savepoint_is_deleted(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem
) -> None:
    savepoint = saved(run, directory, 1)
    refusal = StorageError("It is full.")
    refusal.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    storage = FaultInjectingFileSystem(memory, lambda asked: Fail(refusal) if asked.name == "create" else None)
    with kept_savepoint(CheckpointCatalog(memory, JOB), savepoint, "rollback x", SystemClock()):
        assert not give_up_claimed(CheckpointCatalog(storage, JOB), savepoint, 1, SystemClock())
    assert give_up_claimed(CheckpointCatalog(storage, JOB), savepoint, 1, SystemClock())
    assert not is_there(savepoint)


def test_why_no_pin_could_be_set_is_told(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    savepoint = saved(run, directory, 1)
    storage = FaultInjectingFileSystem(memory, lambda asked: Fail() if asked.name == "create" else None)
    assert not give_up_claimed(CheckpointCatalog(storage, JOB), savepoint, 1, SystemClock())
    assert is_there(savepoint)
    assert "could not be deleted and will be tried again" in caplog.text


@pytest.mark.parametrize("action", [Crash(), CrashAfter()])
def test_a_run_that_is_killed_while_it_gives_it_up_leaves_no_pin(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem, action: Crash | CrashAfter
) -> None:
    for number in range(20):
        savepoint = saved(run, directory, 1)
        claim_savepoint(savepoint, LINEAGE, like=memory)
        disturbed = CheckpointCatalog(FaultInjectingFileSystem(memory, at_operation(number, action)), JOB)
        with suppress(ProcessDied):
            give_up_claimed(disturbed, savepoint, 1, SystemClock())
        catalog = CheckpointCatalog(memory, JOB)
        if (found := claimed_savepoint(catalog, claims(savepoint.reference))) is not None:
            assert give_up_claimed(catalog, found, 1, SystemClock())
        assert not is_there(savepoint)
        assert catalog.records.pins.pinned() == frozenset(), number


@pytest.mark.parametrize("reason", ["", "for the audit"])
def test_a_pin_that_a_user_has_set_on_the_same_state_stays(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem, reason: str
) -> None:
    """A savepoint that was copied from a checkpoint has the checkpoint's id."""
    catalog = CheckpointCatalog(memory, JOB)
    checkpoint = run.checkpoint(state(1), 1)
    pin_checkpoint(catalog, checkpoint, reason, SystemClock())
    for number in range(20):
        savepoint = copy_to_savepoint(catalog, checkpoint, directory, SystemClock())
        claim_savepoint(savepoint, LINEAGE, like=memory)
        disturbed = CheckpointCatalog(FaultInjectingFileSystem(memory, at_operation(number, Crash())), JOB)
        with suppress(ProcessDied):
            give_up_claimed(disturbed, savepoint, 1, SystemClock())
        if (found := claimed_savepoint(catalog, claims(savepoint.reference))) is not None:
            assert give_up_claimed(catalog, found, 1, SystemClock())
        assert not is_there(savepoint)
        assert [pin.reason for pin in catalog.records.pins.all()] == [reason], number


def test_a_writer_that_is_fenced_between_its_look_and_its_pin_deletes_no_savepoint(
    run: Run,
    memory: MemoryFileSystem,
    ledger: Ledger,
    pins: Pins,
    directory: PosixFileSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    savepoint = run.store._kept._claimed = saved(run, directory, 1)
    run.checkpoint(state(2), 2)
    add = pin_records.Pins.add

    def late(self: pin_records.Pins, pin: pin_records.Pin) -> None:
        monkeypatch.setattr(pin_records.Pins, "add", add)
        with kept_savepoint(run.catalog, savepoint, "rollback x", SystemClock()):
            Run(memory, ledger, pins).start()
        add(self, pin)

    monkeypatch.setattr(pin_records.Pins, "add", late)
    with pytest.raises(Fenced):
        run.store.subsume(Retention(1))
    assert is_there(savepoint)
    assert run.catalog.records.pins.pinned() == frozenset()


def claims(reference: str | None) -> Choice:
    return Choice(LINEAGE, reference, 2, 1, "/live", "h", None, "of the test", claimed=reference)


def _refuses(self: PosixFileSystem, path: str) -> None:
    raise OSError(f"{path} cannot be deleted now")


@pytest.mark.parametrize("action", [Crash(), CrashAfter()])
def test_a_disposal_that_was_broken_off_is_finished_by_the_next_start(
    run: Run,
    memory: MemoryFileSystem,
    directory: PosixFileSystem,
    action: Crash | CrashAfter,
) -> None:
    catalog = CheckpointCatalog(memory, JOB)
    for number in range(100):
        savepoint = saved(run, directory, 1)
        claim_savepoint(savepoint, LINEAGE, like=memory)
        disturbed = FaultInjectingFileSystem(directory, at_operation(number, action))
        try:
            dispose_savepoint(disturbed, savepoint.name)
        except ProcessDied:
            found = claimed_savepoint(catalog, claims(savepoint.reference))
            if found is not None:
                verify_checkpoint(catalog, found)
                assert dispose_claimed(savepoint.reference, like=memory)
            assert not Path(savepoint.reference).exists()
        else:
            break
    assert number > 5, "there were as many places to break off"


def test_a_record_in_the_storage_alone_claims_no_savepoint(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem
) -> None:
    """Whoever can write to the storage could have had any savepoint of the job deleted."""
    savepoint = saved(run, directory, 1)
    choice = replace(claims(savepoint.reference), complete=())
    epochs = Epochs(memory, JOB)
    epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
    epochs.record_choice(2, choice)
    epochs.record_end(2, End("CANCELED", "of the test", discarded=True, ended_at="2026-11-23T10:00:00+00:00"))
    assert claimed_savepoint(CheckpointCatalog(memory, JOB), choice) is None
    finish_giving_up(CheckpointCatalog(memory, JOB), 3, lambda _: frozenset())
    assert is_there(savepoint)
    claim_savepoint(savepoint, "f" * 32, like=memory)  # another lineage of the job
    finish_giving_up(CheckpointCatalog(memory, JOB), 3, lambda _: frozenset())
    assert is_there(savepoint)
    claim_savepoint(savepoint, LINEAGE, like=memory)
    finish_giving_up(CheckpointCatalog(memory, JOB), 3, lambda _: frozenset())
    assert not Path(savepoint.reference).exists()


def test_a_savepoint_that_is_gone_is_not_claimed_any_more(memory: MemoryFileSystem, tmp_path: Path) -> None:
    catalog = CheckpointCatalog(memory, JOB)
    assert claimed_savepoint(catalog, claims(None)) is None
    assert claimed_savepoint(catalog, claims(str(tmp_path / "gone" / "savepoint-aaaaaa-0123456789ab"))) is None


def test_a_claimed_savepoint_that_cannot_be_read_is_left_alone(
    run: Run, memory: MemoryFileSystem, directory: PosixFileSystem
) -> None:
    savepoint = saved(run, directory, 1)
    manifest = Path(savepoint.reference, "_metadata")
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert claimed_savepoint(CheckpointCatalog(memory, JOB), claims(savepoint.reference)) is None
    assert manifest.exists()


def test_another_savepoint_of_the_lineage_is_none_of_its_business(run: Run, directory: PosixFileSystem) -> None:
    run.store._kept._claimed, other = saved(run, directory, 1), saved(run, directory, 1)
    run.store.discard_all("the job is over")
    assert is_there(other)
    assert savepoints.dispose_savepoint(directory, other.name) == []
