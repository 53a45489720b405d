"""Three processes that all believe they drive the job, and what must hold whatever they do to each other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import (
    Action,
    Crash,
    CrashAfter,
    Disturb,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Interleavings,
    Operation,
    enumerate_interleavings,
    interleaving,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem

DRIVERS = 3

Unfence = Callable[[CheckpointCatalog | DeletionLog], None]


def contents(driver: int, step: int) -> dict[str, bytes]:
    """At first what the checkpoint before had, to share its files; later nothing of it, so that they can go."""
    own = {
        f"checkpoint/state/{driver}.{step // 2}.sst": f"of driver {driver}, in two checkpoints {step // 2}".encode(),
        f"checkpoint/offsets/{step}": f"{driver} {step}".encode(),
    }
    return {**state(1), **own} if step == 0 else own


def now_and_then(driver: int, operation: Operation, chance: random.Random) -> Action | None:
    """Of a hundred operations of any driver one fails, or loses its reply, or is its last."""
    del driver
    if chance.random() >= 0.01:
        return None
    actions: list[Action] = [Crash(), Fail(), CrashAfter(), FailAfter()]
    return chance.choice(actions if operation.changes else actions[:2])


def refused_now_and_then(driver: int, operation: Operation, chance: random.Random) -> Action | None:
    """Of a hundred operations of any driver one fails, or loses its reply."""
    del driver
    return (FailAfter() if operation.changes and chance.random() < 0.5 else Fail()) if chance.random() < 0.01 else None


def interleavings(
    pins: Pins,
    seeds: Iterable[int],
    *,
    zombie: bool = False,
    disturb: Disturb | None = None,
    unfence: Unfence | None = None,
    process: type[Run] = Run,
    ends: bool = False,
) -> Interleavings:
    """Three runs of one job at once; afterwards the storage is examined, and a fourth goes on.

    With ``ends`` each run that is not fenced ends the job, and discards its checkpoints.
    """

    def fresh() -> tuple[MemoryFileSystem, Ledger]:
        storage, ledger = MemoryFileSystem(), Ledger()
        Run(storage, ledger, pins).start().checkpoint(state(1), 1)
        return storage, ledger

    def drive(number: int, view: FileSystem, ledger: Ledger) -> None:
        run = process(view, ledger, pins, unfence=unfence)
        try:
            run.start()
        except Fenced:
            return
        except (CheckpointError, OSError):
            if disturb is None:
                raise
            return  # its attempt has failed: a start by another is what comes next
        for step in range(3):
            try:
                run.checkpoint(contents(number, step), step)
                run.subsume(1)
                ledger.examine(run.beneath)  # holds at every moment, also in the midst of what the others do
            except Fenced:
                return
            except (CheckpointError, OSError):
                continue
        if ends:
            with suppress(CheckpointError, OSError):
                run.cleanup()

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        kept(storage, ledger)
        Run(storage, ledger, pins).start().checkpoint(state(99), 99)
        kept(storage, ledger)

    drivers = [partial(drive, number) for number in range(DRIVERS)]
    return enumerate_interleavings(fresh, drivers, examine, seeds, zombie=zombie, disturb=disturb)


class _Yielding:
    """A lock; whoever waits for it asks the storage for nothing meanwhile, so that the others run."""

    def __init__(self, storage: FileSystem) -> None:
        self._storage = storage
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        while not self._lock.acquire(blocking=False):
            self._storage.list("nothing")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Threads:
    """A run whose threads are the drivers: each sees the storage through a view of its own."""

    def __init__(self, pins: Pins) -> None:
        self.storage, self.ledger = MemoryFileSystem(), Ledger()
        self._mine = threading.local()
        self._disk = FaultInjectingFileSystem(self.storage, self._plan)
        self.run = Run(self._disk, self.ledger, pins).start()
        self._next = self._writing = 0
        kept = self.run.store._kept
        self.run.store._issuing = _Yielding(self._disk)  # type: ignore[assignment]
        kept.lock = _Yielding(self._disk)  # type: ignore[assignment]
        kept._deleting = _Yielding(self._disk)  # type: ignore[assignment]
        self.run.note_decisions()

    def _plan(self, operation: Operation) -> Action | None:
        view = getattr(self._mine, "view", None)
        return None if view is None else view.plan(operation)

    def write(self, view: FileSystem, *, identities: bool) -> None:
        """Take checkpoints that share files with one before the last: the last is often of the other thread."""
        self._mine.view = view
        self._writing += 1
        for step in range(20):
            self._next += 1
            files = {
                f"checkpoint/state/{identities}.sst": f"in three in a row {identities} {step // 3}".encode(),
                **{f"checkpoint/state/{new}.new": f"of {self._next} alone, {new:9}".encode() for new in range(3)},
            }
            try:
                self.run.checkpoint(files, self._next, identities=identities)
                self.ledger.examine(self.storage)
            except (CheckpointError, OSError):
                continue
        self._writing -= 1

    def delete(self, view: FileSystem) -> None:
        self._mine.view = view
        while self._writing or self.run.store.retained[1:]:
            try:
                self.run.store.subsume(Retention(1))
                self.ledger.examine(self.storage)
            except (CheckpointError, OSError):
                continue


def threads_of_one_run(pins: Pins, seeds: Iterable[int], *, disturb: Disturb | None = None) -> Interleavings:
    """Two threads of a run take checkpoints and a third one deletes; then another run goes on."""

    def fresh() -> tuple[MemoryFileSystem, _Threads]:
        threads = _Threads(pins)
        return threads.storage, threads

    def examine(storage: FileSystem, threads: _Threads) -> None:
        kept(storage, threads.ledger)
        again = Run(storage, threads.ledger, pins).start()
        newest = again.checkpoint(state(99), 99)
        again.subsume(1)
        kept(storage, threads.ledger)
        assert shared(storage) == {name.rpartition("/")[2] for name in newest.references}

    drivers = [
        lambda view, threads: threads.write(view, identities=True),
        lambda view, threads: threads.write(view, identities=False),
        lambda view, threads: threads.delete(view),
    ]
    with pytest.MonkeyPatch.context() as patch:
        # A checkpoint is a dozen operations, and what matters lies within one.
        patch.setattr(interleaving, "_AWAKE", (1, 2, 3, 5, 8))
        patch.setattr(interleaving, "_ASLEEP", (20, 60))
        return enumerate_interleavings(fresh, drivers, examine, seeds, disturb=disturb)


def kept(storage: FileSystem, ledger: Ledger) -> None:
    """Every promise, whoever made it."""
    for epoch, (restored, before) in ledger.chosen.items():
        if before > (0, 0):
            assert restored is not None, f"epoch {epoch} began from nothing"
            # What was acknowledged before an epoch claimed is not ahead of what it went on from.
            assert ledger.acknowledged.get(restored, before) >= before, f"epoch {epoch} lost {before}"
    assert ledger.acceptable(find_newest(CheckpointCatalog(storage, JOB)).metadata)
    ledger.examine(storage)
