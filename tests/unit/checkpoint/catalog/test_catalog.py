from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.issued_ids import IssuedIds
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileChanged,
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptMetadata,
    Fenced,
    ForeignCheckpoint,
    StorageError,
    UnknownMetadataVersion,
)
from dagster_ckpt.filesystem import Entry, PosixFileSystem
from dagster_ckpt.testing import Action, FaultInjectingFileSystem, Flip, Lie, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

LISTED = "dagster-ckpt list flights"


def take(run: Run, count: int) -> list[CheckpointMetadata]:
    return [run.checkpoint(state(step), step) for step in range(count)]


def metadata_path(metadata: CheckpointMetadata) -> str:
    return f"{JOB}/{metadata.reference}/_metadata"


def newest(storage: MemoryFileSystem | PosixFileSystem) -> str | None:
    found = find_newest(CheckpointCatalog(storage, JOB)).metadata
    return None if found is None else found.name


class TestNewest:
    def test_nothing_yet(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        found = find_newest(CheckpointCatalog(memory, JOB))
        assert (found.metadata, found.job_id) == (None, None)
        run = Run(memory, ledger, pins).start()
        found = find_newest(CheckpointCatalog(memory, JOB))
        assert (found.metadata, found.job_id) == (None, run.store.job_id)
        assert "began from nothing" in found.reason

    def test_ten_comes_after_nine(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        run = Run(memory, ledger, pins).start()
        take(run, 11)
        assert newest(memory) == "chk-11"
        catalog = CheckpointCatalog(memory, JOB)
        assert [item.checkpoint_id for item in catalog.completed(run.store.job_id)[0]] == list(range(1, 12))

    def test_a_claim_alone_does_not_make_the_whole_lineage_be_read(
        self, disturbed: FaultInjectingFileSystem, run: Run, ledger: Ledger, pins: Pins
    ) -> None:
        take(run, 9)
        Run(disturbed, ledger, pins).claim_epoch()
        catalog = CheckpointCatalog(disturbed, JOB)
        begun = len(disturbed.operations)
        found = find_newest(catalog).metadata
        assert found is not None
        assert found.name == "chk-9"
        read = {item.path for item in disturbed.operations[begun:] if item.path.endswith("_metadata")}
        assert read == {metadata_path(found)}

    def test_epoch_comes_before_id(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        """A higher id of an older epoch is not newer."""
        take(Run(memory, ledger, pins).start(), 9)
        Run(memory, ledger, pins).start("chk-3").checkpoint(state(3), 3)
        assert newest(memory) == "chk-10"
        completed, _ = CheckpointCatalog(memory, JOB).completed(f"{1:032x}")
        assert [item.key for item in completed][-2:] == [(1, 9), (2, 10)]

    @pytest.mark.parametrize("crashes", [1, 3])
    def test_a_rollback_and_then_crashes_never_come_back_to_what_was_abandoned(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, crashes: int
    ) -> None:
        take(Run(memory, ledger, pins).start(), 9)
        Run(memory, ledger, pins).start("chk-3")
        for _ in range(crashes):
            assert newest(memory) == "chk-3"
            run = Run(memory, ledger, pins).start()
            assert run.store.restored_from == f"{run.store.job_id}/chk-3"
        assert run.checkpoint(state(4), 4).checkpoint_id == 10
        assert newest(memory) == "chk-10"
        assert CheckpointCatalog(memory, JOB).resolve("chk-9").checkpoint_id == 9, "still restorable by name"

    @pytest.mark.parametrize("claims", [0, 2])
    def test_a_higher_id_of_a_fenced_writer_does_not_hide_what_was_salvaged(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, claims: int
    ) -> None:
        """A start may take a checkpoint before its choice, and without one nothing of the writer before is void."""
        last = take(Run(memory, ledger, pins).start(), 2)[-1]
        epochs = CheckpointCatalog(memory, JOB).records.epochs
        for number in range(1 + claims):
            epochs.claim(token=f"{number}", series=None, run_id="r", host="h", pid=1, now="now")
        IssuedIds(memory, JOB, last.job_id).record(2, 3)
        for number, epoch in ((3, 2), (4, 1)):
            published = replace(last, checkpoint_id=number, epoch=epoch)
            memory.create(metadata_path(published), published.encode())
        assert newest(memory) == "chk-3"

    def test_incomplete_attempts_are_no_checkpoints(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        run = Run(memory, ledger, pins).start()
        take(run, 2)
        memory.create(f"{JOB}/{run.store.job_id}/chk-3/somefile", b"")
        memory.create(f"{JOB}/{run.store.job_id}/chk-4/._metadata.abc.tmp", b"")
        assert newest(memory) == "chk-2"
        assert CheckpointCatalog(memory, JOB).next_id(run.store.job_id) == 5

    def test_after_its_checkpoints_were_given_up_a_job_begins_anew(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run = Run(memory, ledger, pins).start()
        take(run, 2)
        run.cleanup()
        found = find_newest(CheckpointCatalog(memory, JOB))
        assert (found.metadata, found.job_id) == (None, None)
        assert "CANCELED" in found.reason
        assert Run(memory, ledger, pins).start().store.job_id != run.store.job_id

    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "version"])
    def test_a_broken_newest_is_never_skipped(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, damage: str, restarted: bool
    ) -> None:
        last = take(Run(memory, ledger, pins).start(), 3)[-1]
        path = metadata_path(last)
        data = memory.files[path]
        memory.files[path] = {
            "flip": bytes([data[0] ^ 1]) + data[1:],
            "truncate": data[:-10],
            "empty": b"",
            "version": data.replace(b'"version": 1', b'"version": 9'),
        }[damage]
        expected = UnknownMetadataVersion if damage == "version" else CorruptMetadata
        with pytest.raises(expected, match=path):
            Run(memory, ledger, pins).start() if restarted else newest(memory)

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_broken_older_one_does_not_stand_in_the_way(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, restarted: bool
    ) -> None:
        taken = take(Run(memory, ledger, pins).start(), 3)
        memory.files[metadata_path(taken[1])] = b"broken"
        if restarted:
            Run(memory, ledger, pins).start()
        assert newest(memory) == "chk-3"

    def test_a_choice_that_is_gone_is_an_error(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        """Nobody gave it up: neither an older one nor a start from nothing is taken silently."""
        taken = take(Run(memory, ledger, pins).start(), 3)
        Run(memory, ledger, pins).start("chk-2")
        memory.remove(metadata_path(taken[1]))
        with pytest.raises(CheckpointNotFound, match="chk-2") as raised:
            newest(memory)
        assert LISTED in raised.value.hint

    def test_newest_beside_a_job_that_publishes_and_subsumes(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """What a sensor sees while the job is between publishing the next and dropping the last."""
        run = Run(memory, ledger, pins).start()
        run.checkpoint(state(1), 1)

        def job_goes_on(operation: Operation) -> None:
            if operation.name == "read" and operation.path.endswith("chk-1/_metadata") and not run.store.retained[1:]:
                run.checkpoint(state(2), 2)
                run.store.subsume(Retention(1))

        reader = FaultInjectingFileSystem(memory, job_goes_on)
        found = find_newest(CheckpointCatalog(reader, JOB)).metadata
        assert found is not None
        assert found.name == "chk-2"


class TestResolve:
    @pytest.fixture
    def taken(self, disk: PosixFileSystem, ledger: Ledger, pins: Pins) -> CheckpointMetadata:
        return take(Run(disk, ledger, pins).start(), 2)[0]

    @pytest.mark.parametrize(
        "spell",
        [
            lambda url, item: item.name,
            lambda url, item: f"{item.name}/",
            lambda url, item: item.reference,
            lambda url, item: f"{url}/{JOB}/{item.reference}",
            lambda url, item: f"{url}/{JOB}/{item.reference}/",
            lambda url, item: f"{url}/{JOB}/{item.reference}/_metadata",
            lambda url, item: f"file://{url}/{JOB}/{item.reference}",
        ],
    )
    def test_every_way_to_name_one(
        self, disk: PosixFileSystem, taken: CheckpointMetadata, spell: Callable[[str, CheckpointMetadata], str]
    ) -> None:
        assert CheckpointCatalog(disk, JOB).resolve(spell(disk.url, taken)) == taken

    def test_its_own_pointer(self, disk: PosixFileSystem, taken: CheckpointMetadata) -> None:
        catalog = CheckpointCatalog(disk, JOB)
        assert catalog.resolve(catalog.pointer(taken)) == taken

    @pytest.mark.parametrize("pointer", ["chk-9", f"{0:032x}/chk-1", "/no/such/path", "chk-x", "ceph://b/chk-1"])
    def test_what_names_nothing(self, disk: PosixFileSystem, taken: CheckpointMetadata, pointer: str) -> None:
        with pytest.raises(CheckpointNotFound, match=pointer) as raised:
            CheckpointCatalog(disk, JOB).resolve(pointer)
        assert LISTED in raised.value.hint

    def test_a_job_without_checkpoints(self, memory: MemoryFileSystem) -> None:
        with pytest.raises(CheckpointNotFound, match="has no checkpoint in memory") as raised:
            CheckpointCatalog(memory, JOB).resolve("chk-1")
        assert "without restore_from" in raised.value.hint

    def test_a_directory_without_metadata(self, disk: PosixFileSystem, taken: CheckpointMetadata) -> None:
        disk.remove(metadata_path(taken))
        pointer = f"{disk.url}/{JOB}/{taken.reference}"
        disk.local(f"{JOB}/{taken.reference}").mkdir(exist_ok=True)
        with pytest.raises(CheckpointNotFound, match=f"'_metadata' in directory '{pointer}'") as raised:
            CheckpointCatalog(disk, JOB).resolve(pointer)
        assert LISTED in raised.value.hint

    def test_one_of_another_job(self, disk: PosixFileSystem, taken: CheckpointMetadata) -> None:
        with pytest.raises(ForeignCheckpoint, match="belongs to job 'flights', not to 'trains'") as raised:
            CheckpointCatalog(disk, "trains").resolve(f"{disk.url}/{JOB}/{taken.reference}")
        assert "dagster-ckpt list trains" in raised.value.hint

    def test_one_in_another_storage(self, disk: PosixFileSystem, taken: CheckpointMetadata, tmp_path: Path) -> None:
        shutil.copytree(disk.local(""), tmp_path / "copy")
        with pytest.raises(ForeignCheckpoint, match="is not in this job's storage") as raised:
            CheckpointCatalog(disk, JOB).resolve(f"{tmp_path}/copy/{JOB}/{taken.reference}")
        assert "checkpoint_path" in raised.value.hint

    def test_one_moved_by_hand(self, disk: PosixFileSystem, taken: CheckpointMetadata) -> None:
        directory = disk.local(f"{JOB}/{taken.reference}")
        shutil.copytree(directory, directory.with_name("chk-7"))
        with pytest.raises(CorruptMetadata, match="moved or copied here by hand") as raised:
            CheckpointCatalog(disk, JOB).resolve("chk-7")
        assert "whole job" in raised.value.hint
        with pytest.raises(CheckpointError):
            CheckpointCatalog(disk, JOB).resolve(str(directory.with_name("chk-7")))

    def test_a_file_that_is_none(self, disk: PosixFileSystem, taken: CheckpointMetadata, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(CorruptMetadata, match=r"notes\.txt"):
            CheckpointCatalog(disk, JOB).resolve(str(tmp_path / "notes.txt"))


class TestContent:
    @pytest.fixture
    def taken(self, disk: PosixFileSystem, ledger: Ledger, pins: Pins) -> list[CheckpointMetadata]:
        return take(Run(disk, ledger, pins).start(), 3)

    def test_a_restore_is_bit_for_bit(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata], tmp_path: Path
    ) -> None:
        catalog = CheckpointCatalog(disk, JOB)
        for step, metadata in enumerate(taken):
            verify_checkpoint(catalog, metadata)
            target = tmp_path / f"restored {step}"
            materialize_checkpoint(catalog, metadata, target)
            found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
            assert found == state(step)

    def test_materialize_takes_a_fresh_directory_only(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata], tmp_path: Path
    ) -> None:
        (tmp_path / "used").mkdir()
        with pytest.raises(FileExistsError):
            materialize_checkpoint(CheckpointCatalog(disk, JOB), taken[0], tmp_path / "used")

    @pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
    def test_every_damage_to_any_stored_file_is_found(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata], tmp_path: Path, damage: str
    ) -> None:
        catalog = CheckpointCatalog(disk, JOB)
        last = taken[-1]
        assert len(last.references) >= 3
        for number, file in enumerate(file for file in last.files if file.reference is not None):
            path = disk.local(f"{JOB}/{last.job_id}/{(file.reference or '').removeprefix('../')}")
            data = path.read_bytes()
            end = len(data) if file.offset is None else file.offset + file.size
            path.unlink()
            changed = {"short": data[: end - 1], "flipped": data[: end - 1] + bytes([data[end - 1] ^ 4]) + data[end:]}
            if damage != "missing":
                path.write_bytes(changed[damage])
            expected = CheckpointFileMissing if damage == "missing" else CheckpointFileChanged
            with pytest.raises(expected, match=str(path)) as raised:
                verify_checkpoint(catalog, last)
            beside = [item for item in last.files if item.reference == file.reference]
            after = [item for item in beside if (item.offset or 0) + item.size >= end]
            broken = {"missing": beside, "short": after, "flipped": [file]}[damage]
            sound = [older for older in taken[:-1] if not set(broken) & set(older.files)]
            way = f"{sound[-1].reference} (batch {sound[-1].batch} instead of 2" if sound else "none"
            assert f"restore_from: {way}" in raised.value.hint
            with pytest.raises(expected, match=str(path)):
                materialize_checkpoint(catalog, last, tmp_path / f"{damage} {number}")
            path.write_bytes(data)
        verify_checkpoint(catalog, last)

    def test_bytes_added_to_a_stored_file_are_found(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata]
    ) -> None:
        last = taken[-1]
        whole = next(file.reference for file in last.files if file.reference is not None and file.offset is None)
        path = disk.local(f"{JOB}/{last.job_id}/{whole.removeprefix('../')}")
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(CheckpointFileChanged, match="bytes instead of"):
            verify_checkpoint(CheckpointCatalog(disk, JOB), last)

    def test_the_only_checkpoint_has_no_older_one_to_go_back_to(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata]
    ) -> None:
        reference = min(taken[0].references)
        disk.remove(f"{JOB}/{taken[0].job_id}/{reference.removeprefix('../')}")
        with pytest.raises(CheckpointFileMissing) as raised:
            verify_checkpoint(CheckpointCatalog(disk, JOB), taken[0])
        assert "restore_from: none" in raised.value.hint

    def test_bits_that_flip_on_the_way_are_found(
        self, disk: PosixFileSystem, taken: list[CheckpointMetadata], tmp_path: Path
    ) -> None:
        catalog = CheckpointCatalog(
            FaultInjectingFileSystem(disk, lambda operation: Flip(13) if operation.name == "fetch" else None), JOB
        )
        with pytest.raises(CheckpointFileChanged, match="was changed"):
            materialize_checkpoint(catalog, taken[0], tmp_path / "target")

    def test_relocation(self, disk: PosixFileSystem, ledger: Ledger, pins: Pins, tmp_path: Path) -> None:
        """Copy the job's directory elsewhere and remove the original: it restores, and goes on."""
        run = Run(disk, ledger, pins).start()
        take(run, 3)
        shutil.copytree(disk.local(JOB), tmp_path / "elsewhere" / JOB)
        shutil.rmtree(disk.local(""))
        moved = PosixFileSystem(tmp_path / "elsewhere")
        ledger.examine(moved)
        again = Run(moved, ledger, pins).start()
        assert again.store.restored_from == f"{run.store.job_id}/chk-3"
        metadata = again.checkpoint(state(2), 2)
        assert metadata.new_bytes < metadata.size, "it shares the files that were moved"
        assert content(moved, metadata) == state(2)
        catalog = CheckpointCatalog(moved, JOB)
        assert catalog.resolve(catalog.pointer(metadata)) == metadata


def test_listings_that_never_agree_are_an_error_and_no_loop(disturbed: FaultInjectingFileSystem, run: Run) -> None:
    run.checkpoint(state(1), 1)
    numbers = itertools.count(100)

    def another_each_time(operation: Operation) -> Action | None:
        if operation.name != "list" or not operation.path.endswith(run.store.job_id):
            return None
        return Lie((Entry(f"chk-{next(numbers)}", is_directory=True),))

    disturbed.plan = another_each_time
    with pytest.raises(StorageError, match="50 times in a row the listing of memory/flights") as raised:
        find_newest(CheckpointCatalog(disturbed, JOB))
    assert "not consistent" in raised.value.hint


def test_what_was_restored_is_complete_or_no_listing_is_believed(
    disturbed: FaultInjectingFileSystem, run: Run, ledger: Ledger, pins: Pins
) -> None:
    first, second = take(run, 2)
    job_id, epoch = run.store.job_id, run.claim.epoch
    complete = partial(run.catalog.completed_at_choice, epoch)
    assert complete(job_id, first) == (1, 2)
    of_a_savepoint = replace(second, location="memory/elsewhere")
    shown: tuple[Entry, ...] = ()

    def lies(operation: Operation) -> Action | None:
        return Lie(shown) if (operation.name, operation.path) == ("list", f"{JOB}/{job_id}") else None

    disturbed.plan = lies
    for shown in ((), (Entry("chk-1", is_directory=True),)):
        with pytest.raises(StorageError, match=f"{job_id} is listed without chk-2") as raised:
            complete(job_id, second)
        assert "mounted" in raised.value.hint
        # What lies elsewhere need not be there.
        assert complete(job_id, of_a_savepoint) == complete(job_id, None) == tuple(range(1, 1 + len(shown)))
    assert complete("0" * 32, second) == ()
    Run(disturbed.inner, ledger, pins).claim_epoch()
    with pytest.raises(Fenced):
        complete(job_id, second)
