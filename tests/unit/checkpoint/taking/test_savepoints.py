"""Writing, copying, reading and disposing of savepoints."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.catalog.pointers import savepoint_storage
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot
from dagster_ckpt.checkpoint.taking.savepoint_files import (
    copy_to_savepoint,
    dispose_savepoint,
    write_savepoint,
)
from dagster_ckpt.checkpoint.taking.shared_files import MAX_INLINE_BYTES
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFailure,
    CheckpointFileChanged,
    CheckpointNotFound,
    CorruptMetadata,
    Fenced,
    ForeignCheckpoint,
    InvalidConfiguration,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem, Stopped, Written
from dagster_ckpt.stored_json import seal
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, content, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.savepoints import described, quiet, saved, savepoints


@pytest.fixture
def target() -> MemoryFileSystem:
    """The user's directory for savepoints."""
    return MemoryFileSystem()


@pytest.fixture
def run(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> Run:
    return Run(memory, ledger, pins).start()


def save(run: Run, target: FileSystem, step: int) -> CheckpointMetadata:
    return run.store.write_savepoint(run.begin(), run.pins.snapshot(step, state(step)), target)


class TestWriting:
    def test_it_stands_alone_and_is_bit_for_bit_what_was_pinned(self, run: Run, target: MemoryFileSystem) -> None:
        run.checkpoint(state(1), 1)
        metadata = save(run, target, 2)
        assert saved(target, metadata) == state(2)
        assert metadata.name.startswith(f"savepoint-{run.store.job_id[:6]}-")
        assert len(metadata.name) == len("savepoint-") + 6 + 1 + 12
        assert (metadata.kind, metadata.batch, metadata.job_id) == ("savepoint", 2, run.store.job_id)
        assert metadata.new_bytes == metadata.size, "nothing is shared with a checkpoint"
        assert metadata.location == metadata.reference == f"{target.url}/{metadata.name}"

    def test_small_files_are_inline_up_to_their_limit_then_packed(self, run: Run, target: MemoryFileSystem) -> None:
        sizes = [1 << 19, 1 << 19, 1 << 19, (1 << 20) + 1]
        contents = {f"checkpoint/state/{number}": bytes([number]) * size for number, size in enumerate(sizes)}
        run.store._inline_threshold = MAX_INLINE_BYTES
        metadata = run.store.write_savepoint(run.begin(), run.pins.snapshot(0, contents), target)
        assert saved(target, metadata) == contents
        assert [(file.inline is not None, file.offset) for file in metadata.files] == [
            (True, None),
            (True, None),
            (False, 0),
            (False, None),
        ]

    def test_its_id_is_of_the_same_counter_and_no_checkpoint_has_it(self, run: Run, target: MemoryFileSystem) -> None:
        first = run.checkpoint(state(1), 1)
        savepoint = save(run, target, 1)
        second = run.checkpoint(state(2), 2)
        assert [first.checkpoint_id, savepoint.checkpoint_id, second.checkpoint_id] == [1, 2, 3]

    def test_it_is_neither_retained_nor_newest_nor_deleted(
        self, run: Run, memory: MemoryFileSystem, target: MemoryFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        savepoint = save(run, target, 2)
        before = dict(target.files)
        newest = find_newest(CheckpointCatalog(memory, JOB)).metadata
        assert newest is not None
        assert newest.batch == 1
        for step in range(3, 6):
            run.checkpoint(state(step), step)
        run.subsume(1)
        assert [item.batch for item in run.store.retained] == [5], "it does not count either"
        run.cleanup()
        assert target.files == before
        assert saved(target, savepoint) == state(2)

    def test_a_checkpoint_after_it_shares_nothing_with_it(
        self, run: Run, memory: MemoryFileSystem, target: MemoryFileSystem
    ) -> None:
        save(run, target, 1)
        metadata = run.checkpoint(state(1), 1)
        target.files.clear()
        assert content(memory, metadata) == state(1)

    def test_a_name_that_is_taken_is_drawn_again(self, pins: Pins, target: MemoryFileSystem) -> None:
        target.write("savepoint-aaaaaa-taken/something", b"of somebody", lambda: False)
        tokens = itertools.chain(["taken"] * 9, ["free"])
        metadata = write_savepoint(
            target, "a" * 32, pins.snapshot(1, state(1)), described, quiet(), new_token=lambda: next(tokens)
        )
        assert metadata.name == "savepoint-aaaaaa-free"
        with pytest.raises(StorageError, match="Failed to create savepoint directory at memory"):
            write_savepoint(target, "a" * 32, pins.snapshot(1, state(1)), described, quiet(), new_token=lambda: "taken")
        assert target.files["savepoint-aaaaaa-taken/something"] == b"of somebody"

    def test_an_expired_attempt_leaves_nothing(self, run: Run, target: MemoryFileSystem) -> None:
        pending = run.begin()
        assert pending.expire()
        with pytest.raises(Stopped):
            run.store.write_savepoint(pending, run.pins.snapshot(1, state(1)), target)
        assert not target.files
        assert not target.list("")

    def test_a_fenced_writer_publishes_none(
        self, run: Run, memory: MemoryFileSystem, pins: Pins, target: MemoryFileSystem
    ) -> None:
        pending = run.begin()
        Run(memory, run.ledger, pins).start()
        with pytest.raises(Fenced):
            run.store.write_savepoint(pending, run.pins.snapshot(1, state(1)), target)
        assert not target.files

    @pytest.mark.parametrize("asked", [None, ""])
    def test_no_location(self, disk: PosixFileSystem, asked: str | None) -> None:
        with pytest.raises(
            InvalidConfiguration, match=r"No savepoint location given and no default location configured\."
        ) as caught:
            savepoint_storage(asked, None, like=disk)
        assert "savepoint_path" in caught.value.hint

    def test_the_location_asked_for_goes_before_the_configured_one(self, disk: PosixFileSystem, tmp_path: Path) -> None:
        default, asked = str(tmp_path / "default"), str(tmp_path / "asked")
        assert savepoint_storage(None, default, like=disk).url == default
        assert savepoint_storage(asked, default, like=disk).url == asked


class TestCopying:
    def test_a_copy_is_the_checkpoint_standing_alone(
        self, run: Run, memory: MemoryFileSystem, target: MemoryFileSystem
    ) -> None:
        run.checkpoint(state(1), 1)
        checkpoint = run.checkpoint(state(2), 2)
        before = dict(memory.files)
        copy = copy_to_savepoint(run.catalog, checkpoint, target, ManualClock())
        assert saved(target, copy) == state(2)
        assert (copy.kind, copy.checkpoint_id, copy.batch, copy.epoch) == ("savepoint", 2, 2, checkpoint.epoch)
        assert (copy.facts, copy.sink) == (checkpoint.facts, checkpoint.sink)
        assert (copy.timings_ms, copy.new_bytes) == ({"write": 0.0}, copy.size)
        assert memory.files == before, "the job's storage is only read"

    def test_a_damaged_checkpoint_is_not_copied(
        self, run: Run, memory: MemoryFileSystem, target: MemoryFileSystem
    ) -> None:
        checkpoint = run.checkpoint(state(1), 1)
        name = next(name for name in memory.files if "/shared/" in name)
        memory.files[name] = b"?" + memory.files[name][1:]
        with pytest.raises(CheckpointFileChanged):
            copy_to_savepoint(run.catalog, checkpoint, target, ManualClock())
        assert not target.files

    def test_what_changes_between_the_check_and_the_copy_is_refused(self, run: Run) -> None:
        class Changing(MemoryFileSystem):
            def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
                if isinstance(source, Path):
                    source.write_bytes(source.read_bytes().swapcase())
                return super().write(path, source, stop)

        target = Changing()
        checkpoint = run.checkpoint({"checkpoint/state/large": b"not packed" * 5000}, 1)
        with pytest.raises(CheckpointFailure, match=r"of chk-1 changed while it was copied"):
            copy_to_savepoint(run.catalog, checkpoint, target, ManualClock())
        assert not target.files


class TestReading:
    @pytest.fixture
    def disk_run(self, disk: PosixFileSystem, ledger: Ledger, pins: Pins) -> Run:
        return Run(disk, ledger, pins).start()

    @pytest.fixture
    def moved(self, disk_run: Run, tmp_path: Path) -> Path:
        """A savepoint that was taken, then moved to another directory."""
        metadata = save(disk_run, PosixFileSystem(tmp_path / "first"), 3)
        assert metadata.location is not None
        shutil.move(metadata.location, tmp_path / "moved to here")
        return tmp_path / "moved to here"

    @pytest.mark.parametrize("ending", ["", "/", "/_metadata"])
    def test_it_is_found_by_path_verified_and_materialized(
        self, disk_run: Run, moved: Path, tmp_path: Path, ending: str
    ) -> None:
        for pointer in (f"{moved}{ending}", f"file://{moved}{ending}"):
            metadata = disk_run.catalog.resolve(pointer)
            assert metadata.location == metadata.reference == disk_run.catalog.pointer(metadata) == str(moved)
            assert metadata.name == "moved to here"
        verify_checkpoint(disk_run.catalog, metadata)
        materialize_checkpoint(disk_run.catalog, metadata, tmp_path / "live")
        assert {
            str(path.relative_to(tmp_path / "live")): path.read_bytes()
            for path in (tmp_path / "live").rglob("*")
            if path.is_file()
        } == state(3)

    def test_damage_is_found(self, disk_run: Run, moved: Path) -> None:
        victim = next(path for path in moved.iterdir() if path.name.endswith(".sst"))
        victim.write_bytes(b"?" + victim.read_bytes()[1:])
        metadata = disk_run.catalog.resolve(str(moved))
        with pytest.raises(CheckpointFileChanged, match=victim.name):
            verify_checkpoint(disk_run.catalog, metadata)

    def test_another_jobs_is_refused(self, disk: PosixFileSystem, moved: Path) -> None:
        with pytest.raises(ForeignCheckpoint, match="belongs to job 'flights', not to 'other'"):
            CheckpointCatalog(disk, "other").resolve(str(moved))

    def test_one_that_refers_outside_itself_is_refused(self, disk_run: Run, moved: Path) -> None:
        manifest = moved / METADATA_FILE_NAME
        body = manifest.read_bytes().rpartition(b',\n "digest"')[0].replace(b'"file": "', b'"file": "../shared/')
        manifest.write_bytes(seal(body))
        with pytest.raises(CorruptMetadata, match="outside its directory"):
            disk_run.catalog.resolve(str(moved))

    def test_until_the_new_lineage_has_a_checkpoint_the_savepoint_is_its_newest(
        self, disk_run: Run, disk: PosixFileSystem, pins: Pins, ledger: Ledger, moved: Path
    ) -> None:
        begun = Run(disk, ledger, pins)
        begun.claim = begun.catalog.records.epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
        choice = Choice("b" * 32, str(moved), 2, 0, "/live", "h", None, "asked for")
        begun.catalog.records.epochs.record_choice(begun.claim.epoch, choice)
        newest = find_newest(begun.catalog)
        assert newest.metadata is not None
        assert (newest.metadata.location, newest.job_id) == (str(moved), "b" * 32)
        shutil.rmtree(moved)
        with pytest.raises(CheckpointNotFound, match=str(moved)):
            find_newest(begun.catalog)


class TestDisposing:
    def test_it_is_gone_with_its_directory(self, run: Run, target: MemoryFileSystem) -> None:
        first, second = save(run, target, 1), save(run, target, 2)
        assert dispose_savepoint(target, first.name) == []
        assert savepoints(target) == [second.name]
        assert [entry.name for entry in target.list("")] == [second.name]
        assert saved(target, second) == state(2)
        with pytest.raises(CheckpointNotFound, match="no savepoint to dispose of"):
            dispose_savepoint(target, first.name)

    def test_what_is_not_of_the_savepoint_stays_and_is_named(self, run: Run, target: MemoryFileSystem) -> None:
        metadata = save(run, target, 1)
        target.write(f"{metadata.name}/notes.txt", b"of the user", lambda: False)
        assert dispose_savepoint(target, metadata.name) == ["notes.txt"]
        assert target.files == {f"{metadata.name}/notes.txt": b"of the user"}

    def test_a_checkpoint_is_refused(self, run: Run, memory: MemoryFileSystem) -> None:
        checkpoint = run.checkpoint(state(1), 1)
        before = dict(memory.files)
        with pytest.raises(InvalidConfiguration, match=r"is chk-1 of job 'flights' and no savepoint") as caught:
            dispose_savepoint(memory, f"{JOB}/{checkpoint.reference}")
        assert "`dagster-ckpt retention` shows what that of flights would delete" in caught.value.hint
        assert memory.files == before

    def test_a_directory_of_something_else_is_refused(self, target: MemoryFileSystem) -> None:
        target.write("photos/1.jpg", b"jpg", lambda: False)
        with pytest.raises(CheckpointNotFound, match="no savepoint"):
            dispose_savepoint(target, "photos")
        target.remove("photos/1.jpg")
        with pytest.raises(CheckpointNotFound, match="no savepoint"):
            dispose_savepoint(target, "photos")
        assert target.list("")

    def test_a_manifest_that_cannot_be_believed_deletes_nothing(self, run: Run, target: MemoryFileSystem) -> None:
        metadata = save(run, target, 1)
        name = f"{metadata.name}/{METADATA_FILE_NAME}"
        target.files[name] = target.files[name][:-9]
        before = dict(target.files)
        with pytest.raises(CorruptMetadata):
            dispose_savepoint(target, metadata.name)
        assert target.files == before


def test_retention_of_a_job_beside_its_savepoints_leaves_them_alone(
    disk: PosixFileSystem, ledger: Ledger, pins: Pins
) -> None:
    """With the savepoints in the checkpoint path itself, where a careless configuration puts them."""
    run = Run(disk, ledger, pins).start()
    metadata = save(run, disk, 1)
    for step in range(2, 5):
        run.checkpoint(state(step), step)
    run.store.subsume(Retention(1))
    run.cleanup()
    assert saved(disk, metadata) == state(1)


def test_a_snapshot_that_changed_while_it_was_written_is_no_savepoint(
    run: Run, target: MemoryFileSystem, tmp_path: Path
) -> None:
    local = tmp_path / "grows"
    local.write_bytes(b"x" * 40)
    file = PinnedFile("checkpoint/state/0", str(local), 39)
    with pytest.raises(CheckpointError, match="changed while it was written"):
        run.store.write_savepoint(run.begin(), Snapshot(1, (file,), Facts(), None, lambda: None), target)
    assert not target.files


def test_what_was_taken_is_known_the_newest_first_and_a_damaged_record_hides_no_other(
    memory: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = RecordedSavepoints(memory, JOB)
    taken = [RecordedSavepoint(f"{1:032x}", epoch, number, None, f"/{number}") for epoch, number in ((1, 9), (2, 3))]
    for savepoint in taken:
        recorded.add(savepoint)
    assert recorded.known() == taken[::-1]
    memory.files[f"{JOB}/control/savepoints/s-0000000002-0000000003"] = b"damaged"
    assert recorded.known() == taken[:1]
    assert "is passed over" in caplog.text
