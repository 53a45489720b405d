"""Copies with repartitioned state whose start recorded no choice: the newest is only a copy of the newest."""

from __future__ import annotations

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


def _newest(memory: MemoryFileSystem) -> CheckpointMetadata | None:
    return find_newest(CheckpointCatalog(memory, JOB)).metadata


def _copied(run: Run, restored: CheckpointMetadata) -> CheckpointMetadata:
    """The copy of a start that dies before its choice."""
    run.claim_epoch()
    run.open(run.choose(restored.reference))
    return run.store.write(run.begin(), run.pins.snapshot(9, state(9)), kind="rescale")


def test_a_rollback_that_was_broken_off_is_none(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    run = Run(memory, ledger, pins).start()
    older, newer = run.checkpoint(state(1)), run.checkpoint(state(2))
    copy = _copied(Run(memory, ledger, pins), older)
    assert copy.key > newer.key
    assert _newest(memory) == newer
    again = Run(memory, ledger, pins).start()
    assert again.store.restored_from == newer.reference
    assert _newest(memory) == newer


def test_a_copy_of_the_newest_is_the_newest_and_so_is_a_copy_of_that(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    run = Run(memory, ledger, pins).start()
    run.checkpoint(state(1))
    first = _copied(Run(memory, ledger, pins), run.checkpoint(state(2)))
    assert _newest(memory) == first
    second = _copied(Run(memory, ledger, pins), first)
    assert _newest(memory) == second


def test_a_copy_of_what_a_start_began_with(memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    restored = Run(memory, ledger, pins).start().checkpoint(state(1))
    Run(memory, ledger, pins).start()
    copy = _copied(Run(memory, ledger, pins), restored)
    assert _newest(memory) == copy
    begun = Run(memory, ledger, pins).start()
    assert begun.store.restored_from == copy.reference
    assert _newest(memory) == copy
    assert _newest(memory) != begun.checkpoint(state(3))
    assert _newest(memory) == begun.store.retained[-1]
