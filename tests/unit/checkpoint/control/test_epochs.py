from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim, End, Epochs
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.errors import CorruptCheckpoint, Fenced, ForeignCheckpoint, PublishUnknown, StorageUnusable
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import FailAfter, FaultInjectingFileSystem, Lie, Operation, at_operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import resealed

CHOICE = Choice("0" * 32, None, 1, 0, "/live", "h", None, "because")
tokens = itertools.count()


def claim(storage: FileSystem, series: int | None = None, run: str = "r") -> Claim:
    return Epochs(storage, JOB).claim(token=str(next(tokens)), series=series, run_id=run, host="h", pid=1, now="2026")


def test_each_claim_takes_the_next_epoch_and_fences_the_others(memory: MemoryFileSystem) -> None:
    epochs = Epochs(memory, JOB)
    assert epochs.highest() == 0
    first, second = claim(memory, run="one"), claim(memory, run="two")
    assert (first.epoch, second.epoch) == (1, 2)
    epochs.check(2)
    with pytest.raises(Fenced, match=r"Epoch 1 is fenced: run two on h has claimed epoch 2") as raised:
        epochs.check(1)
    assert "stops" in raised.value.hint
    assert epochs.read_claim(1) == first
    assert epochs.read_claim(3) is None


def test_a_restart_keeps_its_series(memory: MemoryFileSystem) -> None:
    assert [claim(memory, series).series for series in (None, 1, 1, None, 4)] == [1, 1, 1, 4, 4]


def test_a_claim_that_was_overtaken_takes_the_next(memory: MemoryFileSystem) -> None:
    disturbed = FaultInjectingFileSystem(memory)
    others = iter(["first", "second"])

    def overtake(operation: object) -> None:
        if disturbed.operations[-1:] != () and (run := next(others, None)) is not None:
            claim(memory, run=run)

    disturbed.plan = overtake
    mine = claim(disturbed, run="mine")
    assert mine.epoch == 3
    found = [Epochs(memory, JOB).read_claim(epoch) for epoch in (1, 2, 3)]
    assert [record.run_id for record in found if record] == ["first", "second", "mine"]


def test_a_claim_with_a_lost_reply_fences_and_is_claimed_anew(memory: MemoryFileSystem) -> None:
    with pytest.raises(PublishUnknown):
        claim(FaultInjectingFileSystem(memory, at_operation(1, FailAfter())))
    assert claim(memory).epoch == 2


def test_a_claim_of_one_epoch_that_is_tried_again_finds_what_it_has_created(memory: MemoryFileSystem) -> None:
    epochs, before = Epochs(memory, JOB), claim(memory)

    def again(token: str, storage: FileSystem = memory) -> Claim:
        return Epochs(storage, JOB).claim(
            token=token, series=1, run_id="r", host="h", pid=1, now="2026", after=before.epoch, is_start=True
        )

    losing = FaultInjectingFileSystem(memory, lambda operation: FailAfter() if operation.name == "create" else None)
    with pytest.raises(PublishUnknown):
        again("mine", losing)
    assert again("mine") == epochs.read_claim(2)
    with pytest.raises(Fenced, match="has claimed epoch 2"):
        again("another")
    claim(memory)
    with pytest.raises(Fenced, match="has claimed epoch 3"):
        again("mine")
    assert epochs.highest() == 3


def test_a_listing_that_never_shows_what_is_there_ends_a_claim(memory: MemoryFileSystem) -> None:
    claim(memory)
    lying = FaultInjectingFileSystem(memory, lambda operation: Lie() if operation.name == "list" else None)
    with pytest.raises(StorageUnusable, match=r"Epoch 1 cannot be claimed in memory/flights/control/epochs") as raised:
        claim(lying)
    assert "listings are consistent" in raised.value.hint
    assert [operation.name for operation in lying.operations].count("create") == 11
    assert Epochs(memory, JOB).highest() == 1


def test_a_claim_outlasts_any_number_of_faster_ones(memory: MemoryFileSystem) -> None:
    """They show in the listing, so it comes further each time."""
    left = iter(range(50))

    def overtake(operation: Operation) -> None:
        if operation.name == "create" and next(left, None) is not None:
            claim(memory)

    assert claim(FaultInjectingFileSystem(memory, overtake)).epoch == 51


def test_choice_and_end_are_recorded_once(memory: MemoryFileSystem) -> None:
    epochs = Epochs(memory, JOB)
    epoch = claim(memory).epoch
    assert epochs.read_choice(epoch) is None
    epochs.record_choice(epoch, CHOICE)
    assert epochs.read_choice(epoch) == CHOICE
    listing = epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="2026").epoch
    epochs.record_choice(listing, replace(CHOICE, complete=(3, 7)))
    assert epochs.read_choice(listing) == replace(CHOICE, complete=(3, 7))
    ended = End("FINISHED", "done", discarded=False, ended_at="2026")
    assert epochs.record_end(epoch, ended)
    assert not epochs.record_end(epoch, End("FAILED", "no", discarded=True, ended_at="2027"))
    assert epochs.read_end(epoch) == ended
    assert epochs.names() == {1: {"claim", "choice", "end"}, 2: {"claim", "choice"}}


def test_a_fenced_run_cannot_record_its_choice(memory: MemoryFileSystem) -> None:
    old = claim(memory).epoch
    claim(memory)
    with pytest.raises(Fenced):
        Epochs(memory, JOB).record_choice(old, CHOICE)
    assert Epochs(memory, JOB).read_choice(old) is None


def test_a_choice_recorded_while_another_claims_is_not_acted_upon(memory: MemoryFileSystem) -> None:
    mine = claim(memory).epoch

    def another_claims(operation: Operation) -> None:
        if operation.name == "create":
            claim(memory)

    disturbed = FaultInjectingFileSystem(memory, another_claims)
    with pytest.raises(Fenced):
        Epochs(disturbed, JOB).record_choice(mine, CHOICE)


def test_an_unreadable_record_is_corrupt_and_named(memory: MemoryFileSystem) -> None:
    epoch = claim(memory).epoch
    path = f"{JOB}/control/epochs/e-{epoch:010}"
    memory.replace(path, b"not json")
    with pytest.raises(CorruptCheckpoint, match=path) as raised:
        Epochs(memory, JOB).read_claim(epoch)
    assert "backup" in raised.value.hint


def test_other_names_among_the_epochs_are_ignored(memory: MemoryFileSystem) -> None:
    for name in (".e-0000000009.abc.tmp", "e-9", "e-0000000009.bak", "x"):
        memory.create(f"{JOB}/control/epochs/{name}", b"")
    assert claim(memory).epoch == 1


def test_hundreds_of_starts_that_came_to_nothing_do_not_forget_the_choice(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    """Else a loop of restarts over an unreadable checkpoint would end in a start from scratch."""
    newest = Run(memory, ledger, pins).start().checkpoint(state(1), 1)
    for _ in range(450):
        claim(memory)
    found = find_newest(CheckpointCatalog(memory, JOB)).metadata
    assert found is not None
    assert found.reference == newest.reference


def test_old_epochs_are_forgotten(memory: MemoryFileSystem) -> None:
    epochs = Epochs(memory, JOB)
    for _ in range(300):
        epochs.record_choice(claim(memory).epoch, CHOICE)
    names = epochs.names()
    assert max(names) == 300
    assert 200 <= len(names) <= 202
    assert claim(memory).epoch == 301


def test_two_deployments_do_not_share_a_job_by_accident(memory: MemoryFileSystem) -> None:
    JobRecords(memory, JOB).claim_ownership("production")
    JobRecords(memory, JOB).claim_ownership("production")
    with pytest.raises(ForeignCheckpoint, match=r"memory/flights belongs to deployment 'production'") as raised:
        JobRecords(memory, JOB).claim_ownership("staging")
    assert "deployment='production'" in raised.value.hint
    JobRecords(memory, "other").claim_ownership("staging")
    owner = f"{JOB}/control/owner"
    memory.files[owner] = resealed(memory.files[owner], since="what a later release adds")
    JobRecords(memory, JOB).claim_ownership("production")
