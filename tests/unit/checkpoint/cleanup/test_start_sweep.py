"""What an attempt that died has left goes with the next start, and nothing else does."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start
from dagster_ckpt.errors import Fenced
from dagster_ckpt.testing import Crash, FaultInjectingFileSystem, Lie, ProcessDied
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, directories, once, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def dying(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> Run:
    """A run that dies in the middle of its second checkpoint, just before that would be complete."""
    storage = FaultInjectingFileSystem(memory)
    run = Run(storage, ledger, pins).start()
    run.checkpoint(state(1), 1)
    storage.plan = once("create", "_metadata", Crash())
    with pytest.raises(ProcessDied):
        run.checkpoint(state(50), 2)
    return run


def needed(run: Run) -> set[str]:
    return {name.rpartition("/")[2] for metadata in run.store.retained for name in metadata.references}


def test_a_start_sweeps_what_a_dead_attempt_has_stored(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    dying(memory, ledger, pins)
    before = shared(memory)
    run = Run(memory, ledger, pins).start()
    assert shared(memory) < before
    assert shared(memory) == needed(run)
    ledger.examine(memory)


def test_a_manifest_that_came_too_late_goes_before_its_files(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    storage = FaultInjectingFileSystem(memory)
    zombie = Run(storage, ledger, pins).start()
    zombie.checkpoint(state(1), 1)
    storage.plan = once("list", "epochs", Lie())  # it does not see that it was declared dead
    pending = zombie.begin()
    newer = Run(memory, ledger, pins).start()
    storage.plan = lambda operation: Lie() if operation.path.endswith("epochs") else None
    ledger.meant.setdefault(f"{zombie.store.job_id}/chk-{pending.number}", []).append(state(50))
    zombie.store.write(pending, pins.snapshot(2, state(50)))
    assert f"chk-{pending.number}" in directories(memory)
    log = FaultInjectingFileSystem(memory)
    last = Run(log, ledger, pins).start()
    assert f"chk-{pending.number}" not in directories(memory)
    assert shared(memory) == needed(last)
    removed = [operation.path for operation in log.operations if operation.name == "remove" and JOB in operation.path]
    (manifest,) = [index for index, path in enumerate(removed) if path.endswith("_metadata")]
    assert all("/shared/" not in path for path in removed[:manifest])
    del newer


def test_what_a_newer_epoch_writes_is_not_touched(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    dying(memory, ledger, pins)
    older = Run(memory, ledger, pins).start()
    newer = Run(memory, ledger, pins).start()
    name = f"{JOB}/{newer.store.job_id}/shared/{newer.claim.epoch:06}-0123456789ab-new.sst"
    memory.create(name, b"of an attempt under way")
    memory.create(f"{JOB}/{newer.store.job_id}/shared/000001-0123456789ab-old.sst", b"of a dead attempt")
    with pytest.raises(Fenced):
        sweep_start(older.store)
    assert memory.read(name)
    sweep_start(newer.store)
    assert memory.read(name), "nor by its own start: it may be of its own attempt"
    assert shared(memory) == needed(newer) | {name.rpartition("/")[2]}


def test_nothing_is_swept_while_a_manifest_cannot_be_read(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    run = Run(memory, ledger, pins).start()
    run.checkpoint(state(1), 1)
    unreadable = run.checkpoint(state(50), 2)
    path = f"{JOB}/{unreadable.reference}/_metadata"
    before, sound = shared(memory), memory.read(path)
    memory.files[path] = sound[:-10]
    again = Run(memory, Ledger(), pins)
    again.start(f"{run.store.job_id}/chk-1")
    assert again.store.broken
    assert shared(memory) == before


def test_a_sweep_that_is_broken_off_is_finished_by_the_next_start(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    dying(memory, ledger, pins)
    storage = FaultInjectingFileSystem(
        memory, lambda operation: Crash() if "/shared/" in operation.path and operation.name == "remove" else None
    )
    with pytest.raises(ProcessDied):
        Run(storage, ledger, pins).start()
    run = Run(memory, ledger, pins).start()
    assert shared(memory) == needed(run)
    ledger.examine(memory)
