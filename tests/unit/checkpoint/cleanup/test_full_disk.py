"""A disk that is full to its last byte can be freed, and then the job goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.cleanup.job_sweep import sweep_job
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.taking.savepoint_files import dispose_savepoint
from dagster_ckpt.errors import CorruptCheckpoint, StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Action, Crash, Fail, FaultInjectingFileSystem, Operation, ProcessDied
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, content, directories, once, shared
from tests.helpers.mounts import fill, mounted


def large(step: int) -> dict[str, bytes]:
    """What takes some of a small disk, and differs from step to step."""
    return {"checkpoint/state/all.sst": os.urandom(1 << 18), f"checkpoint/offsets/{step}": b"v1"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PosixFileSystem]:
    (tmp_path / "disk").mkdir()
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path / "disk")):
        yield PosixFileSystem(tmp_path / "disk")


@pytest.fixture
def run(disk: PosixFileSystem, ledger: Ledger, pins: Pins) -> Run:
    run = Run(disk, ledger, pins).start()
    run.catalog.records.reserve.keep()
    return run


def goes_on(run: Run, step: int) -> None:
    """The job completes checkpoints again, and the next full disk can be freed, too."""
    for number in (step, step + 1):
        contents = large(number)
        metadata = run.checkpoint(contents, number)
        assert content(run.beneath, metadata) == contents
        run.subsume(1)
    assert directories(run.beneath) == {metadata.name}
    assert run.filesystem.size(f"{JOB}/control/reserve") == 1 << 20


def test_a_start_that_finds_the_disk_full_leaves_the_reserve_to_deletions(
    disk: PosixFileSystem, run: Run, ledger: Ledger, pins: Pins
) -> None:
    fill(disk.local("ballast"))
    with pytest.raises(StorageError, match="No space left"):
        Run(disk, ledger, pins).start()
    assert disk.size(f"{JOB}/control/reserve") == 1 << 20


def test_retention(disk: PosixFileSystem, run: Run) -> None:
    for turn in range(3):
        for step in range(2):
            run.checkpoint(large(step), step)
        ballast = disk.local("ballast")
        fill(ballast)
        with pytest.raises(StorageError, match="No space left"):
            run.checkpoint(large(9), 9)
        newest = run.store.retained[-1].name
        run.subsume(1)
        assert directories(disk) == {newest}
        assert len(shared(disk)) == 1
        assert DeletionLog(disk, JOB).pending() == []
        ballast.unlink()
        goes_on(run, 10 * turn)


def asked(run: Run, storage: FaultInjectingFileSystem) -> None:
    """A user has a checkpoint deleted beside the running job."""
    log, retained = DeletionLog(storage.inner, JOB), run.store.retained
    log.ask(run.claim.epoch, run.store.job_id, [retained[0].checkpoint_id], [], "of the test")


def refused(run: Run, storage: FaultInjectingFileSystem) -> None:
    """The storage takes the record of a deletion, and refuses the deletion itself."""
    storage.plan = once("remove", "_metadata", Fail())
    with pytest.raises(StorageError):
        run.subsume(1)


def filled_again(run: Run, storage: FaultInjectingFileSystem) -> None:
    """What a deletion frees is filled at once, by others."""
    storage.plan = lambda operation: Fail() if operation.name == "replace" else None
    run.subsume(1)
    storage.plan = lambda _: None


@pytest.mark.parametrize("lose", [asked, refused, filled_again])
def test_a_reserve_that_was_given_up_is_renewed_as_soon_as_there_is_space(
    disk: PosixFileSystem, ledger: Ledger, pins: Pins, lose: Callable[[Run, FaultInjectingFileSystem], None]
) -> None:
    storage = FaultInjectingFileSystem(disk)
    run = Run(storage, ledger, pins).start()
    run.catalog.records.reserve.keep()
    for step in range(3):
        run.checkpoint(large(step), step)
    ballast = disk.local("ballast")
    fill(ballast)
    lose(run, storage)
    assert not disk.local(f"{JOB}/control/reserve").exists()
    ballast.unlink()
    goes_on(run, 5)


def test_the_end_of_a_job_that_discards_its_checkpoints(disk: PosixFileSystem, run: Run) -> None:
    run.checkpoint(large(1), 1)
    fill(disk.local("ballast"))
    run.cleanup()
    assert directories(disk) == set()
    assert shared(disk) == set()


@pytest.mark.parametrize("ended", [True, False], ids=["of a job that has ended", "of a job whose run died"])
def test_a_sweep(disk: PosixFileSystem, run: Run, ledger: Ledger, pins: Pins, *, ended: bool) -> None:
    kept = large(1)
    run.checkpoint(kept, 1)
    died = run.store.begin()
    run.store._shared.store(died.number, pins.snapshot(2, large(2)), lambda: False, died.storing)
    clock = ManualClock()
    if ended:
        run.finish()
    clock.advance(1_000_000)
    fill(disk.local("ballast"))
    swept = sweep_job(run.catalog, clock, older_than=None if ended else timedelta(days=1))
    assert swept.size >= 1 << 18
    disk.local("ballast").unlink()
    again = Run(disk, ledger, pins).start()
    assert content(disk, again.store.retained[-1]) == kept
    again.catalog.records.reserve.keep()
    goes_on(again, 5)


def test_a_disposal(disk: PosixFileSystem, run: Run) -> None:
    contents = large(1)
    savepoint = run.store.write_savepoint(run.begin(), run.pins.snapshot(1, contents), disk)
    directory = savepoint.reference.rpartition("/")[2]
    fill(disk.local("ballast"))
    assert dispose_savepoint(disk, directory) == []
    assert not disk.local(directory).exists()
    disk.local("ballast").unlink()
    goes_on(run, 5)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_disposal_that_is_broken_off_on_a_full_disk(disk: PosixFileSystem, run: Run, nth: int) -> None:
    """What is left is refused by a restore, and the next disposal deletes it."""
    files = {f"checkpoint/state/{number}.sst": os.urandom(1 << 16) for number in range(3)}
    savepoint = run.store.write_savepoint(run.begin(), run.pins.snapshot(1, files), disk)
    directory = savepoint.reference.rpartition("/")[2]
    fill(disk.local("ballast"))
    dying = FaultInjectingFileSystem(disk)
    changes = 0

    def plan(operation: Operation) -> Action | None:
        nonlocal changes
        changes += operation.changes
        return Crash() if changes == nth else None

    dying.plan = plan
    with pytest.raises(ProcessDied):
        dispose_savepoint(dying, directory)
    left = disk.local(directory)
    if (left / "_metadata").exists() and len(list(left.iterdir())) < 4:
        with pytest.raises(CorruptCheckpoint):
            verify_checkpoint(run.catalog, savepoint)
    if left.exists():
        dispose_savepoint(disk, directory)
    assert not left.exists()
