"""Lives of a job for the enumerator of crash points, and what must hold after each thing that went wrong in one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.deletion_log import Deletion
from dagster_ckpt.checkpoint.control.pins import Pins as CheckpointPins
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Enumeration, FaultInjectingFileSystem, Late, Operation, enumerate_crash_points
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, pin, state, unpin
from tests.helpers.checkpoint.memory import MemoryFileSystem

SCENARIOS = ("first_life", "second_run", "rollback", "sharing", "beside", "end", "pinned", "unpinned")
#: Operations that store or read bytes.
FLIPPED = frozenset({"create", "write", "read", "fetch"})

InUse = Callable[[], frozenset[str] | None]
Held = list[Callable[[], None]]


def take(run: Run, step: int, keep: int = 2, contents: Mapping[str, bytes] | None = None) -> None:
    """As the coordinator does it: a checkpoint that fails is counted, and the job goes on."""
    try:
        run.checkpoint(state(step) if contents is None else contents, step)
        run.subsume(keep)
    except Fenced:
        raise
    except (CheckpointError, OSError):
        return


class Life:
    """What happens to a job in one of the scenarios, and what must hold after each crash point in it."""

    def __init__(self, pins: Pins, process: type[Run] = Run) -> None:
        self.pins = pins
        self.process = process

    def fresh(self) -> tuple[FileSystem, Ledger]:
        return MemoryFileSystem(), Ledger()

    def examine(self, storage: FileSystem, ledger: Ledger) -> None:
        """As a new process finds it, with a storage that works again."""
        ledger.examine(storage)
        run = self.process(storage, ledger, self.pins).start()
        ledger.examine(storage)
        issued = {number for job_id, number, _ in ledger.issued if job_id == run.store.job_id}
        for step in range(20, 22):
            metadata = run.checkpoint(state(step), step)
            assert metadata.checkpoint_id not in issued, "an id was issued twice"
            run.subsume(2)
            ledger.examine(storage)
        newest = find_newest(CheckpointCatalog(storage, JOB)).metadata
        assert newest is not None
        assert newest.reference == ledger.floor[0]
        pinned = CheckpointPins(storage, JOB).pinned()
        assert len([item for item in run.store.retained if item.reference not in pinned]) == 2

    def first_life(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        for step in range(1, 5):
            take(run, step)

    def second_run(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        for step in range(1, 3):
            take(run, step)
        run = self.process(storage, ledger, self.pins).start()
        for step in range(3, 5):
            take(run, step)

    def rollback(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        for step in range(1, 4):
            take(run, step, keep=3)
        oldest = run.store.retained[0].reference
        again = self.process(storage, ledger, self.pins).start(oldest)
        take(again, 7, keep=2)

    def sharing(self, storage: FileSystem, ledger: Ledger) -> None:
        """Each shares files with the one before it, and only with that."""
        run = self.process(storage, ledger, self.pins).start()
        for step in range(4):
            files = {
                f"checkpoint/state/{number}.sst": f"in two in a row {number}".encode() for number in (step, step + 1)
            }
            take(run, step, keep=1, contents=files)

    def beside(self, storage: FileSystem, ledger: Ledger) -> None:
        """Checkpoints are taken in the midst of each deletion: before its first file, and before its shared files."""
        run = self.process(storage, ledger, self.pins).start()
        run.note_decisions()
        deletions = run.catalog.records.deletions
        carry_out, steps = deletions._carry_out, iter(range(50, 90))

        def complete() -> None:
            with suppress(CheckpointError, OSError):
                run.checkpoint(state(next(steps)))

        def meanwhile(deletion: Deletion, spared: frozenset[int], in_use: InUse) -> None:
            def used_now() -> frozenset[str] | None:
                complete()
                return in_use()

            complete()
            carry_out(deletion, spared, used_now)

        deletions._carry_out = meanwhile  # type: ignore[method-assign]
        for step in range(1, 4):
            take(run, step, keep=1)

    def restored(self, storage: FileSystem, ledger: Ledger) -> None:
        """A checkpoint is written to a disk, and either it is what was meant or the job is told that it is not."""
        run = self.process(storage, ledger, self.pins).start()
        metadata = run.checkpoint(state(1), 1)
        with tempfile.TemporaryDirectory() as directory:
            live = Path(directory) / "live"
            materialize_checkpoint(run.catalog, run.catalog.load(metadata.job_id, metadata.checkpoint_id), live)
            found = {str(path.relative_to(live)): path.read_bytes() for path in live.rglob("*") if path.is_file()}
        assert found == state(1), "what was restored is not what was meant"

    def end(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        for step in range(1, 3):
            take(run, step)
        run.cleanup()

    def pinned(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        take(run, 1)
        pin(storage, ledger, "chk-1")
        for step in (2, 3):
            take(run, step, keep=1)
        run.cleanup()
        self.process(storage, ledger, self.pins).start()

    def unpinned(self, storage: FileSystem, ledger: Ledger) -> None:
        run = self.process(storage, ledger, self.pins).start()
        take(run, 1)
        pinned = pin(storage, ledger, "chk-1")
        take(run, 2, keep=1)
        unpin(storage, ledger, pinned)
        take(run, 3, keep=1)


def arrive(held: Held) -> None:
    """The network delivers what it held back."""
    while held:
        held.pop(0)()


def after_the_next_start(life: Life, scenario: str) -> Enumeration:
    """Each change of a life in turn is held back, and happens when another driver has started and swept."""
    held: Held = []

    def fresh() -> tuple[FileSystem, Ledger]:
        held.clear()
        return life.fresh()

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        if not held:
            return
        run = life.process(storage, ledger, life.pins).start()
        arrive(held)
        ledger.examine(storage)
        if run.claim.epoch == run.catalog.records.epochs.highest():
            run.checkpoint(state(30), 30)
            run.subsume(2)
            ledger.examine(storage)
        life.examine(storage, ledger)

    return enumerate_crash_points(
        fresh,
        getattr(life, scenario),
        examine,
        actions=lambda operation: [Late(held)] if operation.changes else [],
        expected=(OSError, CheckpointError),
    )


def within_the_life(life: Life, scenario: str, requests: int) -> Enumeration:
    """Each change of a life in turn is held back, and happens so many requests later, or when that life is over."""
    held: Held = []
    passed = 0

    def deliver(operation: Operation) -> None:
        del operation
        nonlocal passed
        passed += bool(held)
        if passed > requests:
            arrive(held)

    def fresh() -> tuple[FileSystem, Ledger]:
        nonlocal passed
        passed = 0
        held.clear()
        storage, ledger = life.fresh()
        return FaultInjectingFileSystem(storage, deliver), ledger

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        arrive(held)
        life.examine(storage, ledger)

    return enumerate_crash_points(
        fresh,
        getattr(life, scenario),
        examine,
        actions=lambda operation: [Late(held)] if operation.changes else [],
        expected=(OSError, CheckpointError),
    )
