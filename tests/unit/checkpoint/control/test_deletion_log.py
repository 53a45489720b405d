"""Recorded deletions: who may carry them out, and in which order."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.errors import Fenced
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, directories, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


def _asked_to_delete_the_first(run: Run, memory: MemoryFileSystem) -> DeletionLog:
    """Of two checkpoints."""
    run.checkpoint(state(1))
    run.checkpoint(state(2))
    log = DeletionLog(memory, JOB)
    log.ask(run.claim.epoch, run.store.job_id, [1], [], "asked for by a user")
    return log


def test_a_run_that_was_fenced_meanwhile_carries_out_no_recorded_deletion(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    log = _asked_to_delete_the_first(run, memory)
    Run(memory, ledger, pins).claim_epoch()
    before = dict(memory.files)
    with pytest.raises(Fenced):
        log.retry(run.claim.epoch, run.store.in_use)
    assert memory.files == before


def test_that_a_manifest_is_gone_is_durable_before_anything_else_goes(
    run: Run, memory: MemoryFileSystem, disturbed: FaultInjectingFileSystem
) -> None:
    """Otherwise a power cut could bring the manifest back, and not its files."""
    for step in (0, 2, 4):
        run.checkpoint(state(step))
    begun = len(disturbed.operations)
    run.subsume(1)
    assert directories(memory) == {"chk-3"}
    changes = [(operation.name, operation.path) for operation in disturbed.operations[begun:] if operation.changes]
    directory = f"{JOB}/{run.store.job_id}"
    shared = [at for at, (name, path) in enumerate(changes) if name == "remove" and "/shared/" in path]
    assert shared
    for number in (1, 2):
        gone = changes.index(("remove", f"{directory}/chk-{number}/_metadata"))
        assert changes[gone + 1] == ("sync_directories", f"{directory}/chk-{number}")
        assert gone + 1 < shared[0]


def test_what_a_broken_off_publish_left_beside_a_manifest_goes_with_it(run: Run, memory: MemoryFileSystem) -> None:
    run.checkpoint(state(1))
    run.checkpoint(state(2))
    memory.replace(f"{JOB}/{run.store.job_id}/chk-1/._metadata.{'0' * 32}.tmp", b"torn")
    run.subsume(1)
    assert directories(memory) == {"chk-2"}


def test_a_deletion_asked_for_under_an_epoch_that_is_over_leaves_no_record(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    """The next epoch would carry the deletion out."""
    run.checkpoint(state(1))
    Run(memory, ledger, pins).claim_epoch()
    before = dict(memory.files)
    with pytest.raises(Fenced):
        DeletionLog(memory, JOB).ask(run.claim.epoch, run.store.job_id, [1], [], "asked for by a user")
    assert memory.files == before


def test_a_damaged_record_hides_no_other(run: Run, memory: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    log = DeletionLog(memory, JOB)
    for number in (1, 2, 3):
        log.ask(run.claim.epoch, run.store.job_id, [number], [], "asked for by a user")
    for damaged in sorted(memory.list(f"{JOB}/control/deletions"), key=lambda entry: entry.name)[:2]:
        memory.replace(f"{JOB}/control/deletions/{damaged.name}", b"damaged")
    memory.create(f"{JOB}/control/deletions/a note of the user's", b"is no record")
    assert len(log.pending()) == 1
    assert caplog.text.count("A deletion is left alone") == 2


def test_a_run_that_died_before_it_chose_voids_no_deletion(
    run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    log = _asked_to_delete_the_first(run, memory)
    Run(memory, ledger, pins).claim_epoch()
    later = Run(memory, ledger, pins)
    later.claim_epoch()
    assert [deletion.checkpoints for deletion in log.recover(later.claim.epoch, lambda _: None)] == [(1,)]
    assert directories(memory) == {"chk-2"}
