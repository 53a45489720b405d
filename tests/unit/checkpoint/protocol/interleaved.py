"""Three processes that all believe they drive the job, and what must hold whatever they do to each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import (
    Action,
    Crash,
    CrashAfter,
    Disturb,
    Fail,
    FailAfter,
    Interleavings,
    Operation,
    enumerate_interleavings,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
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


def interleavings(
    pins: Pins,
    seeds: Iterable[int],
    *,
    zombie: bool = False,
    disturb: Disturb | None = None,
    unfence: Unfence | None = None,
    process: type[Run] = Run,
) -> Interleavings:
    """Three runs of one job at once; afterwards the storage is examined, and a fourth goes on."""

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

    def examine(storage: FileSystem, ledger: Ledger) -> None:
        kept(storage, ledger)
        Run(storage, ledger, pins).start().checkpoint(state(99), 99)
        kept(storage, ledger)

    drivers = [partial(drive, number) for number in range(DRIVERS)]
    return enumerate_interleavings(fresh, drivers, examine, seeds, zombie=zombie, disturb=disturb)


def kept(storage: FileSystem, ledger: Ledger) -> None:
    """Every promise, whoever made it."""
    for epoch, (restored, before) in ledger.chosen.items():
        if before > (0, 0):
            assert restored is not None, f"epoch {epoch} began from nothing"
            # What was acknowledged before an epoch claimed is not ahead of what it went on from.
            assert ledger.acknowledged.get(restored, before) >= before, f"epoch {epoch} lost {before}"
    assert ledger.acceptable(find_newest(CheckpointCatalog(storage, JOB)).metadata)
    ledger.examine(storage)
