"""Checkpoints that somebody has pinned: nothing deletes them, whoever is at work at that moment."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch
from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint, unpin_checkpoint
from dagster_ckpt.checkpoint.control.deletion_log import ROUNDS, DeletionLog
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.control.pins import Pins as CheckpointPins
from dagster_ckpt.checkpoint.taking.savepoint_files import copy_to_savepoint
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidConfiguration,
    StorageError,
)
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Action, Crash, Fail, FaultInjectingFileSystem, Operation, ProcessDied
from tests.helpers.checkpoint.driver import (
    JOB,
    Ledger,
    ManualClock,
    Pins,
    Run,
    content,
    directories,
    once,
    pin,
    shared,
    state,
    unpin,
)
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import fields_of
from tests.unit.checkpoint.protocol.late_ends import at_request

LINEAGE = f"{1:032x}"


def needed(run: Run) -> set[str]:
    return {name.rpartition("/")[2] for item in run.store.retained for name in item.references}


class TestRetention:
    def test_a_pinned_checkpoint_stays_beside_those_that_are_retained(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        pin(memory, ledger, "chk-2")
        for step in range(3, 8):
            run.checkpoint(state(step))
            run.subsume(2)
            assert shared(memory) == needed(run), "no more and no less"
            ledger.examine(memory)
        assert [item.name for item in run.store.retained] == ["chk-2", "chk-7", "chk-8"]
        assert content(memory, CheckpointCatalog(memory, JOB).load(LINEAGE, 2)) == state(1)

    def test_it_goes_when_it_is_unpinned(self, run: Run, memory: MemoryFileSystem, ledger: Ledger) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        pinned = pin(memory, ledger, "chk-1")
        assert [item.metadata.name for item in run.subsume(2)] == ["chk-2"]
        unpin(memory, ledger, pinned)
        (discarded,) = run.subsume(2)
        assert (discarded.metadata.name, discarded.reason) == ("chk-1", "not among the 2 newest")
        assert directories(memory) == {"chk-3", "chk-4"}
        assert shared(memory) == needed(run)

    def test_after_a_restart_too(self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        pin(memory, ledger, "chk-1")
        again = Run(memory, ledger, pins).start()
        again.checkpoint(state(3))
        assert [item.metadata.name for item in again.subsume(1)] == ["chk-2", "chk-3"]
        assert directories(memory) == {"chk-1", "chk-4"}

    def test_while_the_pins_cannot_be_listed_nothing_is_deleted(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        before = memory.backup().files
        disturbed.plan = once("list", "/pins", Fail())
        with pytest.raises(StorageError):
            run.subsume(1)
        assert memory.files == before
        assert len(run.subsume(1)) == 2


class TestCleanup:
    def test_the_end_of_the_job_deletes_all_others_and_says_so(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        pin(memory, ledger, "chk-2")
        discarded = run.store.discard_all("CANCELED: by the user")
        assert [item.metadata.name for item in discarded] == ["chk-1", "chk-3", "chk-4"]
        assert {item.reason for item in discarded} == {"CANCELED: by the user; pinned and kept: chk-2 (of the test)"}
        assert [item.name for item in run.store.retained] == ["chk-2"]
        assert directories(memory) == {"chk-2"}
        assert shared(memory) == needed(run)
        assert run.store.discard_all("again") == []

    def test_the_job_does_not_go_on_from_it_unless_it_is_named(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        pinned = pin(memory, ledger, "chk-2")
        run.cleanup()
        catalog = CheckpointCatalog(memory, JOB)
        assert (find_newest(catalog).metadata, find_newest(catalog).job_id) == (None, None)
        back = Run(memory, ledger, pins).start(pinned)
        assert (back.store.job_id, back.store.restored_from) == (LINEAGE, pinned)
        assert [item.name for item in back.store.retained] == ["chk-2"]
        taken = back.checkpoint(state(7))
        assert taken.checkpoint_id == 4, "no id is issued twice"
        newest = find_newest(catalog).metadata
        assert newest is not None
        assert newest.reference == taken.reference
        ledger.examine(memory)

    def test_of_a_dead_run_too(self, run: Run, memory: MemoryFileSystem, ledger: Ledger, clock: ManualClock) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        pin(memory, ledger, "chk-3")
        config = CheckpointConfig(cleanup=ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS)
        catalog = CheckpointCatalog(memory, JOB)
        discarded = end_dead_epoch(catalog, run.claim, config, JobStatus.FAILED, "gave up", clock)
        assert [item.metadata.name for item in discarded] == ["chk-1", "chk-2"]
        assert directories(memory) == {"chk-3"}

    def test_what_the_next_start_deletes_of_a_lineage_that_was_given_up_is_not_pinned(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """The run recorded its end and died before it wrote a deletion down."""
        for step in range(3):
            run.checkpoint(state(step))
        pinned = pin(memory, ledger, "chk-2")
        run.catalog.records.epochs.record_end(1, End("CANCELED", "terminated", discarded=True, ended_at="now"))
        ledger.discarded, ledger.given_up = True, set(ledger.meant)
        again = Run(memory, ledger, pins).start()
        assert again.store.job_id != LINEAGE
        assert directories(memory) == {"chk-2"}
        metadata = CheckpointCatalog(memory, JOB).load(LINEAGE, 2)
        assert shared(memory) == {name.rpartition("/")[2] for name in metadata.references}
        assert content(memory, metadata) == state(1)
        unpin(memory, ledger, pinned)

    def test_what_is_unpinned_after_the_end_goes_with_the_next_start(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run.checkpoint(state(1))
        pinned = pin(memory, ledger, "chk-1")
        run.cleanup()
        assert directories(memory) == {"chk-1"}
        unpin(memory, ledger, pinned)
        Run(memory, ledger, pins).start()
        assert [name for name in memory.files if f"/{LINEAGE}/" in name and "/control/" not in name] == []

    def test_with_an_unreadable_pinned_manifest_no_shared_file_is_deleted(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        pinned = pin(memory, ledger, "chk-2")
        broken = f"{JOB}/{pinned}/_metadata"
        whole = memory.files[broken]
        memory.files[broken] = whole[:-5]
        before = shared(memory)
        run.catalog.records.epochs.record_end(1, End("CANCELED", "terminated", discarded=True, ended_at="now"))
        ledger.discarded, ledger.given_up = True, set(ledger.meant)
        Run(memory, ledger, pins).start()
        assert directories(memory) == {"chk-2"}
        assert shared(memory) == before
        memory.files[broken] = whole  # somebody has found a backup
        assert content(memory, CheckpointCatalog(memory, JOB).load(LINEAGE, 2)) == state(1)


class TestRecords:
    def test_a_pin_is_a_record_that_people_can_read(self, run: Run, memory: MemoryFileSystem, ledger: Ledger) -> None:
        run.checkpoint(state(1))
        pin(memory, ledger, "chk-1")
        (name,) = [name for name in memory.files if "/control/pins/" in name]
        record = fields_of(memory.files[name])
        assert name == f"{JOB}/control/pins/p-{LINEAGE}-chk-1-{record.pop('token')}"
        assert record == {
            "checkpoint": f"{LINEAGE}/chk-1",
            "reason": "of the test",
            "pinned_at": "2023-11-14T22:30:00.000+00:00",
        }

    def test_which_are_pinned_is_told_by_one_listing(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
            pin(memory, ledger, f"chk-{step + 1}")
        before = len(disturbed.log)
        assert CheckpointPins(disturbed, JOB).numbers(LINEAGE) == {1, 2, 3}
        assert [operation.name for operation in disturbed.operations[before:]] == ["list"]

    def test_each_pin_has_its_reason(self, run: Run, memory: MemoryFileSystem, clock: ManualClock) -> None:
        metadata = run.checkpoint(state(1))
        catalog = CheckpointCatalog(memory, JOB)
        for reason in ("upgrade", "", "audit"):
            pin_checkpoint(catalog, metadata, reason, clock)
            clock.advance(60)
        assert CheckpointPins(memory, JOB).reasons() == {metadata.reference: "upgrade; audit"}
        unpin_checkpoint(catalog, "chk-1")
        assert CheckpointPins(memory, JOB).pinned() == frozenset()

    def test_a_pin_that_is_refused_takes_no_other_off(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        """A deletion that is about to be withdrawn for the first pin is on record when the second one is made."""
        for step in range(2):
            run.checkpoint(state(step))

        def pin_at_record_and_withdrawal(operation: Operation) -> None:
            if "/deletions/" in operation.path:
                with suppress(CheckpointNotFound):
                    pin(memory, ledger, "chk-1")

        disturbed.plan = pin_at_record_and_withdrawal
        assert run.subsume(1) == []
        assert CheckpointPins(memory, JOB).pinned() == {f"{LINEAGE}/chk-1"}
        ledger.examine(memory)

    def test_what_is_not_there_cannot_be_pinned(self, run: Run, memory: MemoryFileSystem, clock: ManualClock) -> None:
        metadata = run.checkpoint(state(1))
        run.checkpoint(state(2))
        run.subsume(1)
        with pytest.raises(CheckpointNotFound, match="_metadata"):
            pin_checkpoint(CheckpointCatalog(memory, JOB), metadata, "too late", clock)
        assert CheckpointPins(memory, JOB).pinned() == frozenset()

    def test_nor_what_is_being_deleted(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        for step in range(2):
            run.checkpoint(state(step))
        disturbed.plan = lambda operation: Crash() if operation.name == "remove" else None
        with pytest.raises(ProcessDied):
            run.subsume(1)
        with pytest.raises(CheckpointNotFound, match=r"is being deleted \(subsumed: retained are the 1 newest\)"):
            pin(memory, ledger, "chk-1")
        assert CheckpointPins(memory, JOB).pinned() == frozenset()

    def test_a_savepoint_needs_no_pin(
        self, run: Run, memory: MemoryFileSystem, disk: PosixFileSystem, clock: ManualClock
    ) -> None:
        catalog = CheckpointCatalog(memory, JOB)
        savepoint = copy_to_savepoint(catalog, run.checkpoint(state(1)), disk, clock)
        with pytest.raises(InvalidConfiguration, match="is a savepoint") as raised:
            pin_checkpoint(catalog, savepoint, "", clock)
        assert "dagster-ckpt list" in raised.value.hint

    def test_what_is_not_pinned_cannot_be_unpinned(self, run: Run, memory: MemoryFileSystem, ledger: Ledger) -> None:
        for step in range(2):
            run.checkpoint(state(step))
        pinned = pin(memory, ledger, "chk-2")
        with pytest.raises(CheckpointNotFound, match=f"chk-1 of job .* is not pinned; pinned are: {pinned}"):
            unpin_checkpoint(CheckpointCatalog(memory, JOB), "chk-1")
        assert CheckpointPins(memory, JOB).pinned() == {pinned}

    def test_a_number_alone_means_the_lineage_of_now(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run.checkpoint(state(1))
        before = pin(memory, ledger, "chk-1")
        run.cleanup()
        Run(memory, ledger, pins).start().checkpoint(state(2))
        now = pin(memory, ledger, "chk-1")
        catalog = CheckpointCatalog(memory, JOB)
        assert now != before
        assert unpin_checkpoint(catalog, "chk-1") == now
        assert unpin_checkpoint(catalog, "chk-1") == before, "the only one that is left"

    def test_the_pin_of_a_checkpoint_that_was_deleted_by_hand_can_be_taken_off(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        run.checkpoint(state(1))
        pinned = pin(memory, ledger, "chk-1")
        memory.files.pop(f"{JOB}/{pinned}/_metadata")
        assert unpin_checkpoint(CheckpointCatalog(memory, JOB), pinned) == pinned


@dataclass
class Race:
    """A job with four checkpoints, a process that deletes, and a user who pins the second one meanwhile."""

    pins: Pins
    memory: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.disk = FaultInjectingFileSystem(self.memory)
        self.run = Run(self.disk, self.ledger, self.pins).start()
        for step in range(1, 5):
            self.run.checkpoint(state(step))
        self.began = len(self.disk.log)

    def subsume(self) -> None:
        self.run.subsume(1)

    def cleanup(self) -> None:
        self.run.cleanup()

    def next_start(self) -> None:
        """Of a run that ended and gave its checkpoints up, and died before it wrote a deletion down."""
        self.ledger.discarded, self.ledger.given_up = True, set(self.ledger.meant)
        end = End("CANCELED", "terminated", discarded=True, ended_at="now")
        CheckpointCatalog(self.memory, JOB).records.epochs.record_end(1, end)
        Run(self.disk, self.ledger, self.pins).start()

    def pin(self) -> None:
        with suppress(CheckpointNotFound):
            pin(self.memory, self.ledger, f"{LINEAGE}/chk-2")

    def at(self, operation: Operation) -> int:
        return operation.sequence - self.began

    def delete(self, name: str, crash_at: int | None = None) -> None:
        if crash_at is not None:
            plan = self.disk.plan

            def crash(operation: Operation) -> Action | None:
                plan(operation)
                return Crash() if self.at(operation) == crash_at else None

            self.disk.plan = crash
        with suppress(ProcessDied, CheckpointError, OSError):
            getattr(self, name)()

    def settle(self) -> None:
        """A new process finishes what was begun, and goes on; what was reported as pinned is there all the time."""
        self.ledger.examine(self.memory)
        again = Run(self.memory, self.ledger, self.pins).start()
        self.ledger.examine(self.memory)
        again.checkpoint(state(9))
        again.subsume(1)
        self.ledger.examine(self.memory)
        assert DeletionLog(self.memory, JOB).pending() == []
        if not self.ledger.pinned:
            assert CheckpointPins(self.memory, JOB).pinned() == frozenset(), "what was refused is not pinned"
            assert "chk-2" not in directories(self.memory)


@pytest.mark.parametrize("deletion", ["subsume", "cleanup", "next_start"])
class TestRaces:
    def test_a_user_who_pins_between_any_two_operations(self, pins: Pins, deletion: str) -> None:
        """And the deleting process may die at one of the operations afterwards: every eighth, others each time."""

        def race(pin_at: int, crash_at: int | None) -> Race:
            found = Race(pins)

            def pin_now(operation: Operation) -> None:
                if found.at(operation) == pin_at:
                    found.pin()

            found.disk.plan = pin_now
            found.delete(deletion, crash_at)
            return found

        undisturbed = race(-1, None)
        count = len(undisturbed.disk.log) - undisturbed.began
        assert count > 15
        outcomes = set()
        for pin_at in range(count):
            for crash_at in [None, *range(pin_at + pin_at % 8, count + 8, 8)]:
                found = race(pin_at, crash_at)
                outcomes.add(bool(found.ledger.pinned))
                found.settle()
        assert outcomes == {True, False}

    def test_a_deletion_between_any_two_operations_of_the_user(self, pins: Pins, deletion: str) -> None:
        """It may be broken off at any operation of its own."""

        def race(delete_at: int, crash_at: int | None) -> tuple[Race, int]:
            found = Race(pins)
            user = FaultInjectingFileSystem(found.memory)
            metadata = CheckpointCatalog(found.memory, JOB).load(LINEAGE, 2)

            def delete_now(operation: Operation) -> None:
                if operation.sequence == delete_at:
                    found.delete(deletion, crash_at)

            user.plan = delete_now
            with suppress(CheckpointNotFound):
                pinned = pin_checkpoint(CheckpointCatalog(user, JOB), metadata, "", ManualClock())
                found.ledger.pinned.add(pinned.checkpoint)
            if delete_at == len(user.log):
                found.delete(deletion, crash_at)
            return found, len(user.log)

        undisturbed = Race(pins)
        undisturbed.delete(deletion)
        count = len(undisturbed.disk.log) - undisturbed.began
        _, steps = race(-1, None)
        assert steps >= 4
        outcomes = set()
        for delete_at in range(steps + 1):
            for crash_at in [None, *range(count)]:
                found, _ = race(delete_at, crash_at)
                outcomes.add(bool(found.ledger.pinned))
                found.settle()
        assert outcomes == {True, False}

    @pytest.mark.parametrize("fault", [Fail(), Crash()], ids=["refused", "died"])
    def test_a_deletion_that_could_not_be_withdrawn_is_not_carried_out(
        self, pins: Pins, deletion: str, fault: Action
    ) -> None:
        """The pin was there first; the deletion stays on record, for the next process to find."""
        race = Race(pins)

        def pin_before_the_record(operation: Operation) -> Action | None:
            if operation.name == "create" and "/deletions/" in operation.path:
                race.pin()
            return fault if operation.name == "remove" and "/deletions/" in operation.path else None

        race.disk.plan = pin_before_the_record
        race.delete(deletion)
        assert race.ledger.pinned
        assert len(DeletionLog(race.memory, JOB).pending()) == 1
        race.settle()


def test_a_deletion_that_was_withdrawn_is_decided_on_anew(pins: Pins) -> None:
    race = Race(pins)
    race.disk.plan = lambda operation: race.pin() if "/deletions/" in operation.path else None
    assert [item.metadata.name for item in race.run.subsume(1)] == ["chk-1", "chk-3"]
    assert [item.name for item in race.run.store.retained] == ["chk-2", "chk-4"]
    assert shared(race.memory) == needed(race.run)


@pytest.mark.parametrize(
    ("deletion", "what_next", "left"),
    [
        ("subsume", "The next checkpoint tries again", {"chk-5"}),
        ("cleanup", "The next start of the job tries again", set()),
        ("next_start", f"`dagster-ckpt sweep {JOB} --path", {"chk-1", "chk-2", "chk-3", "chk-4"}),
    ],
)
def test_one_that_is_withdrawn_again_and_again_is_given_up_for_this_time(
    pins: Pins,
    deletion: str,
    what_next: str,
    left: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with a storage that lists the pins one way to who decides, and another way to who deletes."""
    race, before = Race(pins), {"chk-1", "chk-2", "chk-3", "chk-4"}
    shared_before = shared(race.memory)
    rounds: list[object] = []

    def pinned_meanwhile(self: DeletionLog, epoch: int, *what: object) -> bool:
        rounds.append(what)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(DeletionLog, "delete", pinned_meanwhile)
        getattr(race, deletion)()
    assert len(rounds) == ROUNDS
    assert directories(race.memory) == before
    assert shared(race.memory) == shared_before
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{ROUNDS} times in a row" in told
    assert what_next in told
    again = Run(race.memory, race.ledger, pins).start()
    again.checkpoint(state(9))
    again.subsume(1)
    assert directories(race.memory) == left


def test_while_it_is_all_that_is_retained_is_known(pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(pins)
    with monkeypatch.context() as patched:
        patched.setattr(DeletionLog, "delete", lambda *_: False)
        assert race.run.store.subsume(Retention(1)) == []
        assert race.run.store.discard_all("canceled") == []
    assert [item.name for item in race.run.store.retained] == ["chk-1", "chk-2", "chk-3", "chk-4"]
    assert [item.metadata.name for item in race.run.subsume(1)] == ["chk-1", "chk-2", "chk-3"]
    assert shared(race.memory) == needed(race.run)


def test_one_that_could_not_be_withdrawn_is_not_carried_out_by_the_same_run_either(pins: Pins) -> None:
    race = Race(pins)
    withdraw = once("remove", "", Fail())

    def pin_before_the_record(operation: Operation) -> Action | None:
        if operation.name == "create" and "/deletions/" in operation.path:
            race.pin()
        return withdraw(operation)

    race.disk.plan = pin_before_the_record
    with pytest.raises(StorageError):
        race.run.subsume(1)
    assert len(DeletionLog(race.memory, JOB).pending()) == 1
    race.run.subsume(1)
    assert DeletionLog(race.memory, JOB).pending() == []
    assert directories(race.memory) == {"chk-2", "chk-4"}
    assert shared(race.memory) == needed(race.run)
    race.ledger.examine(race.memory)


def test_a_pin_that_came_too_late_and_stayed_keeps_nothing_that_is_half_deleted(pins: Pins) -> None:
    """Whoever pinned died before it found out that the checkpoint was being deleted."""
    race = Race(pins)
    race.disk.plan = lambda operation: Crash() if operation.name == "sync_directories" else None
    with pytest.raises(ProcessDied):
        race.run.subsume(3)
    CheckpointPins(race.memory, JOB).add(Pin(f"{LINEAGE}/chk-1", "", "now", "0" * 32))
    Run(race.memory, race.ledger, pins).start()
    assert directories(race.memory) == {"chk-2", "chk-3", "chk-4"}


def test_a_run_that_goes_on_after_its_deletion_failed_knows_what_there_is(
    run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger
) -> None:
    """The record could not be written: nothing is gone, and what the others need must not go later."""
    for step in (2, 3, 3, 5):
        run.checkpoint(state(step))
    disturbed.plan = once("create", "", Fail())
    with pytest.raises(StorageError):
        run.subsume(3)
    assert directories(memory) == {"chk-1", "chk-2", "chk-3", "chk-4"}
    pinned = pin(memory, ledger, "chk-1")
    run.subsume(1)
    assert directories(memory) == {"chk-1", "chk-4"}
    ledger.examine(memory)
    unpin(memory, ledger, pinned)
    run.subsume(1)
    assert shared(memory) == needed(run)


class Meeting:
    """A deletion that is paused before one of its requests, and a user, and the next start of the job.

    Args:
        pins: where snapshots are pinned.
        deletion: what is paused.
        at: before which of its requests, counted from the first one.
    """

    def __init__(self, pins: Pins, deletion: str, at: int) -> None:
        self.race = Race(pins)
        self.reached = False
        self._paused, self._wakes = threading.Event(), threading.Event()

        def pause(operation: Operation) -> None:
            if self.race.at(operation) == at:
                self.reached = True
                self._paused.set()
                assert self._wakes.wait(60)

        self.race.disk.plan = pause
        self._thread = threading.Thread(target=self._delete, args=(deletion,))
        self._thread.start()
        assert self._paused.wait(60)

    def _delete(self, deletion: str) -> None:
        try:
            self.race.delete(deletion)
        finally:
            self._paused.set()

    def wake(self) -> None:
        """The deletion goes on to its end."""
        self._wakes.set()
        self._thread.join()

    def pin(self, meanwhile: Callable[[], object], before: int) -> list[Operation]:
        """A user pins, and something happens before one of the user's requests."""
        race = self.race
        user = FaultInjectingFileSystem(race.memory, at_request(before, meanwhile))
        with suppress(CheckpointNotFound, CorruptCheckpoint):
            pin(user, race.ledger, f"{LINEAGE}/chk-2")
        return list(user.operations)

    def start(self, meanwhile: Callable[[], object] = lambda: None, before: int = -1) -> list[Operation]:
        """The job is started by another process, and something happens before one of its requests."""
        race = self.race
        other = FaultInjectingFileSystem(race.memory, at_request(before, meanwhile))
        Run(other, race.ledger, race.pins).start()
        return list(other.operations)

    def settle(self) -> None:
        self.wake()
        self.race.disk.plan = lambda _: None
        self.race.settle()
        names = [entry.name for entry in self.race.memory.list(f"{JOB}/control/deletions")]
        assert names == [], "what was decided is forgotten with the deletion"


class TestMeetings:
    """Three processes: each is interrupted at any of its requests by the next one."""

    def test_a_start_in_the_midst_of_a_pin_in_the_midst_of_a_deletion(self, pins: Pins) -> None:
        outcomes = set()
        for at in itertools.count():
            meeting = Meeting(pins, "subsume", at)
            steps = meeting.pin(meeting.start, 0)
            meeting.settle()
            for before in range(1, len(steps)):
                meeting = Meeting(pins, "subsume", at)
                meeting.pin(meeting.start, before)
                outcomes.add(bool(meeting.race.ledger.pinned))
                meeting.settle()
            if not meeting.reached:
                break
        assert outcomes == {True, False}

    def test_a_pin_in_the_midst_of_a_start_in_the_midst_of_a_deletion(self, pins: Pins) -> None:
        """The deletion goes on before the user, whose pin is there, looks whether it is on record."""
        outcomes = set()
        alone = Meeting(pins, "subsume", 0)
        (looks,) = [item.sequence for item in alone.pin(lambda: None, -1) if item.path.endswith("/deletions")]
        alone.settle()
        for at in itertools.count():
            meeting = Meeting(pins, "subsume", at)
            found = meeting.start()
            meeting.settle()
            near = [operation.sequence for operation in found if _is_near_a_deletion(operation)]
            for before in near:
                meeting = Meeting(pins, "subsume", at)
                meeting.start(partial(meeting.pin, meeting.wake, looks), before)
                outcomes.add(bool(meeting.race.ledger.pinned))
                meeting.settle()
            if not meeting.reached:
                break
        assert outcomes == {True, False}


def _is_near_a_deletion(operation: Operation) -> bool:
    return "/deletions" in operation.path or "/pins" in operation.path or "/chk-2" in operation.path
