"""Dropping old checkpoints: what goes, what stays, and what a crash in between leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control import epochs
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import Fenced, StorageError
from dagster_ckpt.testing import (
    Action,
    Crash,
    Fail,
    FaultInjectingFileSystem,
    Operation,
    ProcessDied,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, directories, once, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem


class TestSubsuming:
    def names(self, checkpoints: Sequence[CheckpointMetadata]) -> list[str]:
        return [metadata.name for metadata in checkpoints]

    def test_the_newest_stay(self, run: Run, memory: MemoryFileSystem, ledger: Ledger) -> None:
        for step in range(12):
            run.checkpoint(state(step))
        discarded = run.subsume(3)
        assert [item.metadata.checkpoint_id for item in discarded] == list(range(1, 10))
        assert {item.reason for item in discarded} == {"not among the 3 newest"}
        assert self.names(run.store.retained) == ["chk-10", "chk-11", "chk-12"]
        assert directories(memory) == {"chk-10", "chk-11", "chk-12"}
        assert run.subsume(3) == []
        ledger.examine(memory)

    def test_a_shared_file_stays_as_long_as_anybody_needs_it(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        for step in range(8):
            run.checkpoint(state(step))
            run.subsume(2)
            needed = {name.rpartition("/")[2] for item in run.store.retained for name in item.references}
            assert shared(memory) == needed, "no more and no less"
            ledger.examine(memory)

    def test_after_a_restart_too(self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        again = Run(memory, ledger, pins).start()
        again.checkpoint(state(4))
        again.subsume(1)
        assert directories(memory) == {"chk-5"}
        assert shared(memory) == {name.rpartition("/")[2] for name in again.store.retained[0].references}

    def test_with_an_unreadable_manifest_no_shared_file_is_deleted(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        taken = [run.checkpoint(state(step)) for step in range(4)]
        broken = f"{JOB}/{taken[1].reference}/_metadata"
        whole = memory.files[broken]
        memory.files[broken] = whole[:-5]
        again = Run(memory, ledger, pins).start()
        assert len(again.store.broken) == 1
        before = shared(memory)
        again.checkpoint(state(9))
        again.store.subsume(Retention(1))
        assert directories(memory) == {"chk-2", "chk-5"}
        assert before <= shared(memory)
        memory.files[broken] = whole  # somebody has found a backup
        assert content(memory, CheckpointCatalog(memory, JOB).load(run.store.job_id, 2)) == state(1)

    def test_nor_when_a_deletion_is_finished_by_the_next_run(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        taken = [run.checkpoint(state(step)) for step in range(3)]
        disturbed.plan = lambda operation: Crash() if operation.name == "remove" else None
        with pytest.raises(ProcessDied):
            run.subsume(2)
        memory.files[f"{JOB}/{taken[1].reference}/_metadata"] += b"x"
        before = shared(memory)
        Run(memory, ledger, pins).start()
        assert shared(memory) == before

    def test_what_the_job_went_back_to_is_not_dropped_before_there_is_a_newer_one(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(5):
            run.checkpoint(state(step))
        again = Run(memory, ledger, pins).start("chk-2")
        again.store.subsume(Retention(1))
        newest = find_newest(CheckpointCatalog(memory, JOB)).metadata
        assert newest is not None
        assert newest.name == "chk-2"

    @pytest.mark.parametrize("restarted", [False, True], ids=["known by its identity", "found by its content"])
    def test_a_file_that_an_attempt_reuses_is_not_deleted_under_it(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, *, restarted: bool
    ) -> None:
        """Two attempts at once: while the newer one is being written, the older one's subsumption drops chk-1."""
        disk = FaultInjectingFileSystem(memory)
        if restarted:
            run.checkpoint(state(2))
            run = Run(disk, ledger, pins).start()
        else:
            run = Run(disk, ledger, pins).start()
            run.checkpoint(state(2))
        older, newer = run.begin(), run.begin()

        def older_completes(operation: Operation) -> None:
            if operation.name == "write":
                disk.plan = lambda _: None
                run.store.write(older, pins.snapshot(3, {"checkpoint/state/other.sst": b"nothing of chk-1" * 9}))
                run.subsume(1)
                assert directories(memory) == {f"chk-{older.number}"}

        disk.plan = older_completes
        files = {**state(2), "checkpoint/state/new.sst": b"is written last" * 9}
        assert content(memory, run.store.write(newer, pins.snapshot(4, files))) == files

    def test_discard_all_leaves_nothing_of_the_lineage(self, run: Run, memory: MemoryFileSystem) -> None:
        for step in range(3):
            run.checkpoint(state(step))
        run.cleanup()
        assert [name for name in memory.files if name.startswith(f"{JOB}/{1:032x}/")] == []
        assert f"{JOB}/{1:032x}" not in memory.directories
        assert DeletionLog(memory, JOB).pending() == []


def test_the_records_of_ids_do_not_grow_with_the_starts(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "_KEPT", 3)
    for step in range(12):
        run = Run(memory, ledger, pins).start()
        run.checkpoint(state(step))
        run.checkpoint(state(step + 1))
        run.subsume(2)
    issued = [entry.name for entry in memory.list(f"{JOB}/control/issued/{run.store.job_id}")]
    assert sorted(issued) == [f"e-{epoch:010}-{2 * epoch:015}" for epoch in range(9, 13)]
    assert set(run.catalog.records.epochs.names()) == set(range(9, 13))
    assert Run(memory, ledger, pins).start().store.next_id == 25


def test_a_listing_of_ids_that_fails_hides_no_deletion(
    run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem
) -> None:
    memory.files[f"{JOB}/control/issued/{run.store.job_id}/e-0000000000-{0:015}"] = b"0\n"
    for step in (1, 4):
        run.checkpoint(state(step))
    disturbed.plan = lambda operation: Fail() if operation.name == "list" and "/issued/" in operation.path else None
    assert [item.metadata.name for item in run.subsume(1)] == ["chk-1"]
    disturbed.plan = lambda _: None
    run.checkpoint(state(5))
    run.subsume(1)
    assert [entry.name for entry in memory.list(f"{JOB}/control/issued/{run.store.job_id}")] == [f"e-{1:010}-{3:015}"]


class TestDeletionLog:
    def test_written_down_then_decided_then_manifest_then_data_then_struck(
        self, run: Run, disturbed: FaultInjectingFileSystem
    ) -> None:
        for step in (1, 4):
            run.checkpoint(state(step))
        before = len(disturbed.operations)
        run.subsume(1)
        changes = [operation for operation in disturbed.operations[before:] if operation.changes]
        paths = [operation.path for operation in changes if operation.name in {"create", "remove"}]
        ids = [path for path in paths if "/control/issued/" in path]
        assert paths[len(paths) - len(ids) :] == ids, "records of old ids go last"
        paths = paths[: len(paths) - len(ids)]
        assert "/deletions/d-0000000001-" in paths[0]
        assert "/deletions/x-0000000001-" in paths[1]
        assert paths[2].endswith("chk-1/_metadata")
        assert all("/shared/" in path for path in paths[3:-2])
        assert paths[3:-2]
        assert paths[-2:] == paths[:2]

    def test_the_record_is_for_people_too(self, run: Run, disturbed: FaultInjectingFileSystem) -> None:
        for step in (1, 4):
            run.checkpoint(state(step))
        disturbed.plan = lambda operation: Crash() if operation.name == "remove" else None
        with pytest.raises(ProcessDied):
            run.subsume(1)
        storage = disturbed.inner
        names = sorted(entry.name for entry in storage.list(f"{JOB}/control/deletions"))
        record, decision = (json.loads(storage.read(f"{JOB}/control/deletions/{name}")) for name in names)
        assert record["checkpoints"] == [1]
        assert decision["spared"] == []
        assert record["reason"] == "subsumed: retained are the 1 newest"
        assert [deletion.checkpoints for deletion in DeletionLog(storage, JOB).pending()] == [(1,)]

    @pytest.mark.parametrize("position", range(8))
    def test_after_a_crash_the_next_run_finishes_it(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, position: int
    ) -> None:
        disturbed = FaultInjectingFileSystem(memory)
        run = Run(disturbed, ledger, pins).start()
        for step in (1, 2, 4):
            run.checkpoint(state(step))
        seen = [0]

        def plan(operation: Operation) -> Action | None:
            seen[0] += operation.name == "remove"
            return Crash() if operation.name == "remove" and seen[0] == position + 1 else None

        disturbed.plan = plan
        with pytest.raises(ProcessDied):
            run.subsume(1)
        again = Run(memory, ledger, pins).start()
        assert DeletionLog(memory, JOB).pending() == []
        assert directories(memory) == {"chk-3"}
        assert shared(memory) == {name.rpartition("/")[2] for name in again.store.retained[0].references}
        ledger.examine(memory)

    def test_one_that_the_storage_refused_is_tried_again(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem
    ) -> None:
        for step in (1, 4):
            run.checkpoint(state(step))
        disturbed.plan = once("remove", "", Fail())
        with pytest.raises(StorageError):
            run.subsume(1)
        assert len(DeletionLog(memory, JOB).pending()) == 1
        run.subsume(1)
        assert DeletionLog(memory, JOB).pending() == []
        assert directories(memory) == {"chk-2"}

    def test_the_record_of_a_writer_that_was_fenced_is_void(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """A zombie writes a deletion down after a newer run chose the same checkpoint, and dies before its check."""
        for step in range(3):
            run.checkpoint(state(step))
        newer: list[Run] = []

        def take_over(operation: Operation) -> Action | None:
            if operation.name == "create" and "/deletions/" in operation.path:
                newer.append(Run(memory, ledger, pins).start("chk-1"))
                return None
            return Crash() if newer else None

        disturbed.plan = take_over
        with pytest.raises(ProcessDied):
            run.store.subsume(Retention(1))
        assert len(DeletionLog(memory, JOB).pending()) == 1
        last = Run(memory, ledger, pins).start()
        assert last.store.restored_from == f"{1:032x}/chk-1"
        assert DeletionLog(memory, JOB).pending() == []
        assert directories(memory) == {"chk-1", "chk-2", "chk-3"}
        ledger.examine(memory)

    def test_a_deletion_of_a_fenced_writer_is_withdrawn(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(3):
            run.checkpoint(state(step))

        def take_over(operation: Operation) -> None:
            if operation.name == "create" and "/deletions/" in operation.path:
                Run(memory, ledger, pins).start()

        disturbed.plan = take_over
        with pytest.raises(Fenced):
            run.store.subsume(Retention(1))
        assert DeletionLog(memory, JOB).pending() == []
        assert directories(memory) == {"chk-1", "chk-2", "chk-3"}
