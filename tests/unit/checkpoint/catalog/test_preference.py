"""Savepoints on record, and recoveries that go on from them where checkpoints are not preferred."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import Newest, find_newest, read_newest
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.errors import (
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptMetadata,
    CorruptRecord,
    Fenced,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem, Stopped
from dagster_ckpt.testing import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Operation,
    ProcessDied,
    at_operation,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, directories, once, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import as_version_1, fields_of

LINEAGE = f"{1:032x}"


@pytest.fixture
def target(tmp_path: Path) -> PosixFileSystem:
    """The user's directory for savepoints."""
    return PosixFileSystem(tmp_path / "savepoints")


def save(run: Run, target: FileSystem, step: int) -> CheckpointMetadata:
    return run.store.write_savepoint(run.begin(), run.pins.snapshot(step, state(step)), target)


def again(run: Run, storage: FileSystem, *, prefer_checkpoint: bool = False, restore_from: str = "latest") -> Run:
    """The next start of the job of ``run``."""
    return Run(storage, run.ledger, run.pins, prefer_checkpoint=prefer_checkpoint).start(restore_from)


def newest(storage: FileSystem, *, prefer_checkpoint: bool = False) -> Newest:
    return find_newest(CheckpointCatalog(storage, JOB), prefer_checkpoint=prefer_checkpoint)


def records(memory: MemoryFileSystem) -> list[str]:
    return sorted(name for name in memory.files if "/control/savepoints/" in name)


def take_away(savepoint: CheckpointMetadata) -> None:
    shutil.rmtree(savepoint.reference)


class TestRecords:
    def test_a_complete_savepoint_is_on_record(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        assert records(memory) == [f"{JOB}/control/savepoints/s-0000000001-0000000002"]
        assert fields_of(memory.files[records(memory)[0]]) == {
            "job_id": LINEAGE,
            "epoch": 1,
            "checkpoint_id": 2,
            "restored_from": None,
            "reference": taken.location,
        }

    def test_one_that_was_not_completed_is_not(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        pending = run.begin()
        assert pending.expire()
        with pytest.raises(Stopped):
            run.store.write_savepoint(pending, run.pins.snapshot(1, state(1)), target)
        full = FaultInjectingFileSystem(target, once("create", METADATA_FILE_NAME, Fail()))
        with pytest.raises(StorageError):
            save(run, full, 2)
        assert records(memory) == []

    def test_a_storage_that_refuses_the_record_harms_no_savepoint(
        self,
        run: Run,
        disturbed: FaultInjectingFileSystem,
        target: PosixFileSystem,
        memory: MemoryFileSystem,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        run.checkpoint(state(1), 1)
        disturbed.plan = lambda operation: Fail() if "/savepoints/" in operation.path else None
        taken = save(run, target, 2)
        verify_checkpoint(run.catalog, run.catalog.resolve(taken.reference))
        assert f"{taken.reference} is complete, but could not be recorded" in caplog.text
        found = newest(memory).metadata
        assert found is not None
        assert found.name == "chk-1"

    def test_a_writer_that_is_fenced_by_then_makes_none(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        def take_over(operation: Operation) -> None:
            if operation.name == "create":
                again(run, memory)

        with pytest.raises(Fenced):
            save(run, FaultInjectingFileSystem(target, take_over), 1)
        assert records(memory) == []

    def test_the_oldest_are_forgotten_and_stay_the_users(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        taken = [save(run, target, step) for step in range(12)]
        known = RecordedSavepoints(memory, JOB).known()
        assert [savepoint.checkpoint_id for savepoint in known] == list(range(12, 2, -1))
        assert all(Path(savepoint.reference).is_dir() for savepoint in taken)

    @pytest.mark.parametrize("action", [Crash(), CrashAfter(), Fail(), FailAfter()], ids=str)
    def test_whatever_happens_while_one_is_taken_what_is_gone_on_from_is_whole(
        self, pins: Pins, tmp_path: Path, action: Action
    ) -> None:
        preferred = []
        for number in range(100):
            memory, target = MemoryFileSystem(), PosixFileSystem(tmp_path / f"savepoints-{number}")
            disturbed = FaultInjectingFileSystem(memory)
            run = Run(disturbed, Ledger(), pins).start()
            run.checkpoint(state(1), 1)
            pending = run.begin()
            at = len(disturbed.log) + number
            disturbed.plan = at_operation(at, action)
            with suppress(ProcessDied, StorageError):
                run.store.write_savepoint(pending, pins.snapshot(2, state(2)), target)
            found = newest(memory)
            assert found.metadata is not None
            verify_checkpoint(CheckpointCatalog(memory, JOB), found.metadata)
            preferred.append(found.metadata.kind == "savepoint")
            if len(disturbed.log) <= at:
                break
        assert not preferred[0]
        assert preferred[-1], "nothing went wrong at last"


class TestChoosing:
    def test_a_savepoint_is_gone_on_from_where_it_is_the_newest(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        save(run, target, 2)
        taken = save(run, target, 3)
        found = newest(memory)
        assert (found.metadata, found.job_id) == (taken, LINEAGE)
        assert found.reason.startswith(f"{taken.name} is newer than every complete checkpoint")
        first = newest(memory, prefer_checkpoint=True)
        assert first.metadata is not None
        assert first.metadata.name == "chk-1"
        catalog = CheckpointCatalog(memory, JOB)
        assert find_newest(catalog) == first == read_newest(catalog, lambda found: found.name)[0], "the default"
        run.checkpoint(state(4), 4)
        later = newest(memory).metadata
        assert later is not None
        assert later.name == "chk-4"

    def test_the_lineage_goes_on_and_the_savepoint_stays_the_users(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        second = again(run, memory)
        assert second.store.restored_from == taken.reference
        first = second.checkpoint(state(3), 3)
        assert first.reference == f"{LINEAGE}/chk-3"
        assert [item.metadata.name for item in second.subsume(1)] == ["chk-1"]
        second.cleanup()
        verify_checkpoint(run.catalog, taken)
        assert newest(memory).metadata is None, "a lineage that is given up is gone on from in no way"

    def test_one_without_any_checkpoint(self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem) -> None:
        taken = save(run, target, 1)
        assert newest(memory).metadata == taken
        take_away(taken)
        found = newest(memory)
        assert (found.metadata, found.job_id) == (None, LINEAGE)

    def test_what_descends_from_a_savepoint_descends_from_the_checkpoints_before_it(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        for step in (1, 2):
            run.checkpoint(state(step), step)
        back = again(run, memory, restore_from="chk-1")
        back.checkpoint(state(3), 3)
        save(back, target, 4)
        last = again(back, memory)
        last.checkpoint(state(5), 5)
        assert [item.metadata.name for item in last.subsume(3)] == ["chk-2"], "what the rollback abandoned goes first"
        assert directories(memory) == {"chk-1", "chk-3", "chk-5"}


class TestPassingOver:
    def test_one_that_the_user_took_away(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem, caplog: pytest.LogCaptureFixture
    ) -> None:
        run.checkpoint(state(1), 1)
        older, taken = save(run, target, 2), save(run, target, 3)
        take_away(taken)
        assert newest(memory).metadata == older
        assert f"{taken.reference}, which is newer than every checkpoint, is passed over" in caplog.text
        take_away(older)
        found = newest(memory).metadata
        assert found is not None
        assert found.name == "chk-1"

    def test_one_that_cannot_be_read(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoint, taken = run.checkpoint(state(1), 1), save(run, target, 2)
        manifest = Path(taken.reference, METADATA_FILE_NAME)
        manifest.write_bytes(manifest.read_bytes()[:-9])
        assert newest(memory).metadata == checkpoint
        assert str(manifest) in caplog.text

    def test_a_storage_that_is_down_proves_nothing(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The savepoint is the newest, of the run before; then it is what the newest epoch began with."""
        run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        resolve = CheckpointCatalog.resolve

        def down(catalog: CheckpointCatalog, pointer: str) -> CheckpointMetadata:
            if pointer == taken.reference:
                raise StorageError("The storage of the savepoint does not answer.")
            return resolve(catalog, pointer)

        for _ in ("newest", "began with"):
            with monkeypatch.context() as patch:
                patch.setattr(CheckpointCatalog, "resolve", down)
                with pytest.raises(StorageError, match="does not answer"):
                    newest(memory)
            assert again(run, memory).store.restored_from == taken.reference

    def test_another_that_lies_in_its_place(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = save(run, target, 1)
        checkpoint = run.checkpoint(state(2), 2)
        taken = save(run, target, 3)
        take_away(taken)
        shutil.copytree(other.reference, taken.reference)
        assert newest(memory).metadata == checkpoint
        assert f"{taken.reference} of epoch" in caplog.text

    def test_a_savepoint_is_not_newer_than_a_checkpoint_that_is_gone(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        save(run, target, 2)
        gone = run.checkpoint(state(3), 3)
        beat = Heartbeat(1, "run", (ProcessIdentity("h", 1, 1.0),), 1, 1.0, completed=Completed(gone.reference, 1))
        HeartbeatFile(memory, JOB).write(beat)
        del memory.files[f"{JOB}/{gone.reference}/_metadata"]
        with pytest.raises(CheckpointFileMissing, match="is gone"):
            newest(memory)

    def test_a_record_that_cannot_be_read_is_not(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        save(run, target, 2)
        save(run, target, 3)
        memory.files[records(memory)[-1]] = b"{"
        with pytest.raises(CorruptRecord, match=records(memory)[-1]):
            newest(memory)

    def test_a_checkpoint_that_cannot_be_read_is_passed_over_if_it_is_older_alone(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        older = run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        memory.files[f"{JOB}/{older.reference}/_metadata"] += b"x"
        assert newest(memory).metadata == taken
        assert again(run, memory).store.restored_from == taken.reference
        take_away(taken)
        with pytest.raises(CheckpointNotFound):
            newest(memory)

    def test_a_newer_checkpoint_that_cannot_be_read_is_an_error(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        save(run, target, 1)
        newer = run.checkpoint(state(2), 2)
        memory.files[f"{JOB}/{newer.reference}/_metadata"] += b"x"
        with pytest.raises(CorruptMetadata):
            newest(memory)


class TestAbandoned:
    def test_a_rollback_abandons_what_was_saved_after(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        first = run.checkpoint(state(1), 1)
        run.checkpoint(state(2), 2)
        save(run, target, 3)
        back = again(run, memory, restore_from="chk-1")
        assert newest(memory).metadata == first, "before it has a checkpoint, too"
        own = back.checkpoint(state(2), 2)
        assert newest(memory).metadata == own

    def test_so_does_a_recovery_that_prefers_checkpoints(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        first = run.checkpoint(state(1), 1)
        save(run, target, 2)
        again(run, memory, prefer_checkpoint=True)
        assert newest(memory).metadata == first

    def test_the_record_of_a_fenced_writer_is_void(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        """It had looked for a newer epoch just before that was claimed."""
        first = run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        memory.files.pop(records(memory)[0])
        again(run, memory)
        RecordedSavepoints(memory, JOB).add(RecordedSavepoint.of(taken))
        assert newest(memory).metadata == first

    def test_a_branch_does_not_go_on_from_what_its_origin_saved(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem
    ) -> None:
        save(run, target, 1)
        run.cleanup()
        fresh = again(run, memory)
        assert fresh.store.job_id != LINEAGE
        assert newest(memory).metadata is None


class TestFallingBack:
    """A start went on from a savepoint and has no checkpoint of its own."""

    @pytest.mark.parametrize("prefer_checkpoint", [False, True])
    def test_it_is_come_back_to_whatever_is_preferred_now(
        self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem, *, prefer_checkpoint: bool
    ) -> None:
        run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        again(run, memory)
        found = newest(memory, prefer_checkpoint=prefer_checkpoint)
        assert (found.metadata, found.job_id) == (taken, LINEAGE)
        assert "is what epoch 2 began with" in found.reason

    @pytest.mark.parametrize("prefer_checkpoint", [False, True])
    def test_without_it_the_checkpoint_that_it_was_preferred_to(
        self,
        run: Run,
        memory: MemoryFileSystem,
        target: PosixFileSystem,
        caplog: pytest.LogCaptureFixture,
        *,
        prefer_checkpoint: bool,
    ) -> None:
        first = run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        again(again(run, memory), memory)  # a restart hands it on
        take_away(taken)
        found = newest(memory, prefer_checkpoint=prefer_checkpoint)
        assert (found.metadata, found.job_id) == (first, LINEAGE)
        assert f"the fallback for savepoint {taken.reference}" in found.reason
        assert taken.reference in caplog.text
        run.ledger.wanted.add(first.reference)  # older than promised: the user has seen to that
        assert again(run, memory, prefer_checkpoint=prefer_checkpoint).store.restored_from == first.reference

    def test_or_nothing(self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem) -> None:
        taken = save(run, target, 1)
        again(run, memory)
        take_away(taken)
        found = newest(memory)
        assert (found.metadata, found.job_id) == (None, LINEAGE)
        assert "the lineage has no checkpoint" in found.reason

    def test_one_that_was_asked_for_has_none(self, run: Run, memory: MemoryFileSystem, target: PosixFileSystem) -> None:
        run.checkpoint(state(1), 1)
        taken = save(run, target, 2)
        again(run, memory, restore_from=taken.reference)
        take_away(taken)
        with pytest.raises(CheckpointNotFound, match=taken.reference):
            newest(memory)

    def test_a_choice_of_an_earlier_release_has_none(self, run: Run, memory: MemoryFileSystem) -> None:
        (name,) = [name for name in memory.files if name.endswith(".choice")]
        memory.files[name] = as_version_1(memory.files[name], "fallback")
        claim = name.removesuffix(".choice")
        memory.files[claim] = as_version_1(memory.files[claim])
        chosen = run.catalog.choice()
        assert chosen is not None
        assert chosen[1].fallback is None


def test_until_a_savepoint_is_taken_nothing_more_is_asked_of_the_storage(
    run: Run, disturbed: FaultInjectingFileSystem
) -> None:
    run.checkpoint(state(1), 1)
    before = len(disturbed.log)
    run.checkpoint(state(2), 2)
    run.subsume(1)
    asked = {operation.path for operation in disturbed.operations[before:]}
    assert not [path for path in asked if "/savepoints" in path], "not for each checkpoint"
