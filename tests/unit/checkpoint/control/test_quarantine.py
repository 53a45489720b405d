"""Checkpoints in quarantine: never chosen, counted or deleted, until somebody asks for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import Unreadable, line_of_descent, unreadable
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.broken_checkpoints import dispose_broken, is_broken
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_deletions
from dagster_ckpt.checkpoint.control.epochs import Choice, End
from dagster_ckpt.checkpoint.control.quarantine import FellBack, Quarantine, Quarantined
from dagster_ckpt.errors import CorruptCheckpoint, InvalidConfiguration, PublishUnknown
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Late
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, directories, once, pin, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.unit.checkpoint.protocol.lives import Held, arrive

LINEAGE = f"{1:032x}"


def put_away(storage: FileSystem, *names: str, reason: str = "A file is gone.") -> None:
    for name in names:
        Quarantine(storage, JOB).add(Quarantined(f"{LINEAGE}/{name}", reason, 1, "run", "host", "then"))


def start(storage: FileSystem, ledger: Ledger, pins: Pins) -> Run:
    """A start of the job that may go past what is in quarantine."""
    ledger.floor = (None, (0, 0))
    ledger.discarded = True
    return Run(storage, ledger, pins).start()


def unreadable_manifest(memory: MemoryFileSystem, name: str) -> None:
    path = f"{JOB}/{LINEAGE}/{name}/_metadata"
    memory.files[path] = memory.files[path][:-5]


class TestRecords:
    def test_the_first_reason_stands(self, memory: MemoryFileSystem) -> None:
        put_away(memory, "chk-3", "chk-12")
        put_away(memory, "chk-3", reason="It is still gone.")
        quarantine = Quarantine(memory, JOB)
        assert quarantine.names() == {f"{LINEAGE}/chk-3", f"{LINEAGE}/chk-12"}
        assert quarantine.numbers(LINEAGE) == {3, 12}
        assert quarantine.numbers("0" * 32) == frozenset()
        assert quarantine.records()[f"{LINEAGE}/chk-3"].reason == "A file is gone."

    def test_lifting(self, memory: MemoryFileSystem) -> None:
        put_away(memory, "chk-1", "chk-11")
        quarantine = Quarantine(memory, JOB)
        assert quarantine.lift(f"{LINEAGE}/chk-1")
        assert not quarantine.lift(f"{LINEAGE}/chk-1")
        assert not quarantine.lift("/some/savepoint")
        assert quarantine.names() == {f"{LINEAGE}/chk-11"}


class TestLateRecords:
    """A start is fenced while it puts a checkpoint away, and the newer start has verified that checkpoint."""

    def fenced(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> tuple[Run, Held]:
        """A start whose record the network holds back."""
        Run(memory, ledger, pins).start().checkpoint(state(1))
        held: Held = []
        disk = FaultInjectingFileSystem(memory, once("create", "chk-1", Late(held)))
        start = Run(disk, ledger, pins)
        start.claim_epoch()
        with pytest.raises(PublishUnknown):
            start.catalog.records.quarantine.add(self.record(start))
        return start, held

    def record(self, run: Run, reason: str = "The storage was mad.") -> Quarantined:
        return Quarantined(f"{LINEAGE}/chk-1", reason, run.claim.epoch, "run", "host", "then")

    def test_the_newer_verification_counts(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        _, held = self.fenced(memory, ledger, pins)
        again = Run(memory, ledger, pins).start()
        arrive(held)
        catalog = CheckpointCatalog(memory, JOB)
        assert [name for name in memory.files if "/quarantine/" in name]
        assert catalog.records.quarantine.names() == frozenset()
        assert catalog.records.quarantine.numbers(LINEAGE) == frozenset()
        assert catalog.records.quarantine.records() == {}
        found = find_newest(catalog)
        assert (found.metadata and found.metadata.name, found.passed_over) == ("chk-1", ())
        again.checkpoint(state(2))
        again.subsume(1)
        assert directories(memory) == {"chk-2"}, "retention counts it and deletes it"

    def test_the_next_start_removes_the_record(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        _, held = self.fenced(memory, ledger, pins)
        Run(memory, ledger, pins).start()
        arrive(held)
        last = Run(memory, ledger, pins).start()
        assert last.store.restored_from == f"{LINEAGE}/chk-1"
        assert not [name for name in memory.files if "/quarantine/" in name]

    def test_what_a_newer_start_finds_broken_is_put_away(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        _, held = self.fenced(memory, ledger, pins)
        Run(memory, ledger, pins).start()
        arrive(held)
        newest = Run(memory, ledger, pins)
        newest.claim_epoch()
        quarantine = newest.catalog.records.quarantine
        quarantine.add(self.record(newest, "A bit is wrong."))
        assert quarantine.records()[f"{LINEAGE}/chk-1"].reason == "A bit is wrong."

    def test_a_record_that_cannot_be_read_counts(self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        _, held = self.fenced(memory, ledger, pins)
        Run(memory, ledger, pins).start()
        arrive(held)
        path = f"{JOB}/control/quarantine/q-{LINEAGE}-chk-1"
        memory.files[path] = memory.files[path][:-5]
        assert Quarantine(memory, JOB).names() == {f"{LINEAGE}/chk-1"}


class TestRetentionAndCleanup:
    def test_it_is_neither_counted_nor_deleted(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        put_away(memory, "chk-4")
        again = start(memory, ledger, pins)
        assert again.store.restored_from == f"{LINEAGE}/chk-3"
        assert [item.name for item in again.store.retained] == ["chk-1", "chk-2", "chk-3"]
        for step in range(4, 9):
            again.checkpoint(state(step))
            again.subsume(2)
        assert [item.name for item in again.store.retained] == ["chk-8", "chk-9"]
        assert directories(memory) == {"chk-4", "chk-8", "chk-9"}
        kept = CheckpointCatalog(memory, JOB).load(LINEAGE, 4)
        assert content(memory, kept) == state(3), "what it shares is all there"
        needed = {name.rpartition("/")[2] for item in (kept, *again.store.retained) for name in item.references}
        assert shared(memory) == needed, "and nothing else"

    @pytest.mark.parametrize("readable", [True, False])
    def test_the_cleanup_at_the_end_keeps_it(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, *, readable: bool
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        put_away(memory, "chk-3")
        if not readable:
            unreadable_manifest(memory, "chk-3")
        again = start(memory, ledger, pins)
        again.checkpoint(state(3))
        files = shared(memory)
        again.cleanup()
        assert directories(memory) == {"chk-3"}
        if readable:
            assert content(memory, CheckpointCatalog(memory, JOB).load(LINEAGE, 3)) == state(2)
        else:
            assert shared(memory) == files, "nobody can say which of them it needs"
        last = start(memory, ledger, pins)  # it finishes what the cleanup left
        assert last.store.job_id != LINEAGE
        assert directories(memory) == {"chk-3"}

    def test_while_it_is_there_the_store_says_so(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(2):
            run.checkpoint(state(step))
        put_away(memory, "chk-2")
        unreadable_manifest(memory, "chk-2")
        again = start(memory, ledger, pins)
        assert [error.checkpoint for error in again.store.broken] == [f"{LINEAGE}/chk-2"]


class TestDisposal:
    def test_of_a_job_that_is_over(self, run: Run, memory: MemoryFileSystem) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        put_away(memory, "chk-4")
        run.catalog.records.epochs.record_end(1, End("FINISHED", "done", discarded=False, ended_at="now"))
        catalog = CheckpointCatalog(memory, JOB)
        assert is_broken(catalog, LINEAGE, 4)
        assert not is_broken(catalog, LINEAGE, 3)
        assert dispose_broken(catalog, LINEAGE, 4)
        assert directories(memory) == {"chk-1", "chk-2", "chk-3"}
        assert not catalog.records.quarantine.names()
        needed = {name.rpartition("/")[2] for item in catalog.completed(LINEAGE)[0] for name in item.references}
        assert shared(memory) == needed

    def test_one_that_cannot_be_looked_at_is_not_known_to_be_broken(
        self, run: Run, memory: MemoryFileSystem, disturbed: FaultInjectingFileSystem
    ) -> None:
        run.checkpoint(state(0))
        manifest = f"{JOB}/{LINEAGE}/chk-1/_metadata"
        disturbed.plan = lambda asked: Fail() if asked.path == manifest else None
        assert not is_broken(CheckpointCatalog(disturbed, JOB), LINEAGE, 1)
        assert not is_broken(CheckpointCatalog(memory, JOB), LINEAGE, 2), "one that there is not"

    def test_beside_a_run_the_run_does_it(self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        """It may be about to refer to what only that checkpoint has."""
        for step in range(3):
            run.checkpoint(state(step))
        put_away(memory, "chk-3")
        again = start(memory, ledger, pins)
        catalog = CheckpointCatalog(memory, JOB)
        under_way = again.begin()
        ledger.meant[f"{LINEAGE}/chk-{under_way.number}"] = [state(2)]
        assert not dispose_broken(catalog, LINEAGE, 3)
        assert "chk-3" in directories(memory)
        again.store.write(under_way, pins.snapshot(2, state(2)))  # the very files of chk-3
        again.subsume(10)
        assert directories(memory) == {"chk-1", "chk-2", "chk-4"}
        assert content(memory, catalog.load(LINEAGE, 4)) == state(2)
        again.checkpoint(state(3))
        needed = {name.rpartition("/")[2] for item in again.store.retained for name in item.references}
        assert shared(memory) == needed
        finish_deletions(catalog, again.claim.epoch)
        assert not catalog.records.quarantine.names(), "the record goes when the checkpoint is gone"

    def test_beside_a_run_that_dies_the_next_one_does_it(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        put_away(memory, "chk-3")
        assert not dispose_broken(CheckpointCatalog(memory, JOB), LINEAGE, 3)
        again = start(memory, ledger, pins)
        assert again.store.restored_from == f"{LINEAGE}/chk-2"
        assert directories(memory) == {"chk-1", "chk-2"}

    def test_of_a_manifest_that_cannot_be_read(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """What its going would leave the job to go on from must have been chosen by somebody."""
        for step in range(3):
            run.checkpoint(state(step))
        unreadable_manifest(memory, "chk-3")
        catalog = CheckpointCatalog(memory, JOB)
        with pytest.raises(CorruptCheckpoint):
            find_newest(catalog)
        with pytest.raises(InvalidConfiguration, match=f"is what job {JOB!r} would go on from"):
            dispose_broken(catalog, LINEAGE, 3)
        again = Run(memory, ledger, pins).start("chk-2")
        assert not dispose_broken(catalog, LINEAGE, 3)
        again.checkpoint(state(7))
        again.subsume(1)
        assert directories(memory) == {"chk-4"}
        assert again.store.broken == []

    def test_of_a_pinned_one(self, run: Run, memory: MemoryFileSystem, ledger: Ledger) -> None:
        for step in range(2):
            run.checkpoint(state(step))
        pin(memory, ledger, "chk-2")
        put_away(memory, "chk-2")
        with pytest.raises(InvalidConfiguration, match="is pinned") as caught:
            dispose_broken(CheckpointCatalog(memory, JOB), LINEAGE, 2)
        assert "dagster-ckpt unpin" in caught.value.hint
        assert directories(memory) == {"chk-1", "chk-2"}


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6),
    st.sets(st.integers(1, 24)),
)
def test_what_cannot_be_read_has_its_place_on_the_line(starts: list[tuple[int, int]], hidden: set[int]) -> None:
    """The line of descent is the same whichever manifests on it cannot be read."""
    choices: dict[int, Choice] = {}
    nodes: list[Unreadable] = []
    number = 0
    restored: str | None = None
    for epoch, (taken, back) in enumerate(starts, start=1):
        if nodes:
            restored = nodes[max(len(nodes) - 1 - back, 0)].reference
        choices[epoch] = Choice(LINEAGE, restored, number + 1, number, "/live", "h", None, "")
        for _ in range(taken):
            number += 1
            nodes.append(Unreadable(f"{LINEAGE}/chk-{number}", number, epoch, restored))
    seen = [
        unreadable(LINEAGE, node.checkpoint_id, choices) if node.checkpoint_id in hidden else node for node in nodes
    ]
    assert seen == nodes
    for node in nodes:
        assert line_of_descent(node, seen) == line_of_descent(node, nodes)


@pytest.mark.parametrize(
    ("fell_back", "told"),
    [
        (
            FellBack((f"{LINEAGE}/chk-3",), f"{LINEAGE}/chk-2", 7, 7, None, None),
            f"chk-3 is broken, and it fell back to {LINEAGE}/chk-2 (batch 7): no batch is known to be run again",
        ),
        (
            FellBack((f"{LINEAGE}/chk-3",), "/savepoints/savepoint-1", 7, 8, 1, 2),
            "chk-3 is broken, and it fell back to /savepoints/savepoint-1 (batch 7): batch 8 is run again "
            "(1 batch, 1 files, 2 rows)",
        ),
        (
            FellBack((f"{LINEAGE}/chk-4", f"{LINEAGE}/chk-3"), f"{LINEAGE}/chk-2", 7, 9, None, 0),
            f"chk-4, chk-3 are broken, and it fell back to {LINEAGE}/chk-2 (batch 7): batches 8 to 9 are run again "
            "(2 batches, 0 rows)",
        ),
    ],
)
def test_what_falling_back_costs_is_told(fell_back: FellBack, told: str) -> None:
    assert str(fell_back) == told
    assert fell_back.batches == fell_back.last - 7
