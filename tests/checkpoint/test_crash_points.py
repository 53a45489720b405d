"""Crash, failure and lost reply at every storage operation of a job's life."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.pins import Pins as CheckpointPins
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Fail, enumerate_crash_points
from tests.checkpoint.driver import JOB, Ledger, Pins, Run, pin, state, unpin
from tests.checkpoint.memory import MemoryFileSystem


def take(run: Run, step: int, keep: int = 2) -> None:
    """As the coordinator does it: a checkpoint that fails is counted, and the job goes on."""
    try:
        run.checkpoint(state(step), step)
        run.subsume(keep)
    except Fenced:
        raise
    except (CheckpointError, OSError):
        return


class Life:
    """What happens to a job in one of the scenarios, and what must hold after each crash point in it."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins

    def fresh(self) -> tuple[FileSystem, Ledger]:
        return MemoryFileSystem(), Ledger()

    def examine(self, storage: FileSystem, ledger: Ledger) -> None:
        """As a new process finds it, with a storage that works again."""
        ledger.examine(storage)
        run = Run(storage, ledger, self.pins).start()
        ledger.examine(storage)
        issued = {number for job_id, number, _ in ledger.issued if job_id == run.store.job_id}
        for step in range(20, 22):
            metadata = run.checkpoint(state(step), step)
            assert metadata.checkpoint_id not in issued, "an id was issued twice"
            run.subsume(2)
            ledger.examine(storage)
        newest = CheckpointCatalog(storage, JOB).newest().metadata
        assert newest is not None
        assert newest.reference == ledger.floor[0]
        pinned = CheckpointPins(storage, JOB).pinned()
        assert len([item for item in run.store.retained if item.reference not in pinned]) == 2

    def first_life(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        for step in range(1, 5):
            take(run, step)

    def second_run(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        for step in range(1, 3):
            take(run, step)
        run = Run(storage, ledger, self.pins).start()
        for step in range(3, 5):
            take(run, step)

    def rollback(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        for step in range(1, 4):
            take(run, step, keep=3)
        oldest = run.store.retained[0].reference
        again = Run(storage, ledger, self.pins).start(oldest)
        take(again, 7, keep=2)

    def end(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        for step in range(1, 3):
            take(run, step)
        run.cleanup()

    def pinned(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        take(run, 1)
        pin(storage, ledger, "chk-1")
        for step in (2, 3):
            take(run, step, keep=1)
        run.cleanup()
        Run(storage, ledger, self.pins).start()

    def unpinned(self, storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, self.pins).start()
        take(run, 1)
        pinned = pin(storage, ledger, "chk-1")
        take(run, 2, keep=1)
        unpin(storage, ledger, pinned)
        take(run, 3, keep=1)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    (tmp_path / "pins").mkdir()
    return Life(Pins(tmp_path / "pins"))


@pytest.mark.parametrize("scenario", ["first_life", "second_run", "rollback", "end", "pinned", "unpinned"])
def test_every_operation_may_crash_fail_or_lose_its_reply(life: Life, scenario: str) -> None:
    result = enumerate_crash_points(
        life.fresh, getattr(life, scenario), life.examine, expected=(OSError, CheckpointError)
    )
    assert len(result.operations) > 30
    assert result.runs > 2 * len(result.operations)
    result.require_none()


def test_what_fails_leaves_no_file_behind(life: Life) -> None:
    """One failure of the storage while a checkpoint is written: its files are gone when `write` returns."""

    def one_checkpoint(storage: FileSystem, ledger: Ledger) -> None:
        run = Run(storage, ledger, life.pins).start()
        run.checkpoint(state(1), 1)
        run.checkpoint(state(2), 2)

    def nothing_unreachable(storage: FileSystem, ledger: Ledger) -> None:
        assert isinstance(storage, MemoryFileSystem)
        catalog = CheckpointCatalog(storage, JOB)
        needed = {
            f"{JOB}/{job_id}/{name.removeprefix('../')}"
            for job_id in catalog.job_ids()
            for metadata in catalog.completed(job_id)[0]
            for name in metadata.references
        }
        assert {name for name in storage.files if "/shared/" in name} <= needed

    result = enumerate_crash_points(
        life.fresh,
        one_checkpoint,
        nothing_unreachable,
        actions=lambda operation: [Fail()] if operation.name not in {"remove", "remove_directory"} else [],
        expected=(OSError, CheckpointError),
    )
    result.require_none()
