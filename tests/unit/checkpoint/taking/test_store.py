from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot, StoredSource
from dagster_ckpt.checkpoint.taking.progress import PendingCheckpoint
from dagster_ckpt.checkpoint.taking.shared_files import MAX_INLINE_BYTES
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.errors import (
    CheckpointFailure,
    CheckpointNotFound,
    Fenced,
    PublishConflict,
    PublishUnknown,
    StorageError,
)
from dagster_ckpt.filesystem import Stopped
from dagster_ckpt.testing import (
    Action,
    Crash,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Operation,
    Plan,
    ProcessDied,
    Torn,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, content, directories, once, shared, state
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem, UnprovingMemory


class TestWriting:
    def test_what_is_written_is_what_was_pinned(self, run: Run, memory: MemoryFileSystem) -> None:
        metadata = run.checkpoint(state(3), 17)
        assert content(memory, metadata) == state(3)
        assert (metadata.checkpoint_id, metadata.epoch, metadata.batch) == (1, 1, 17)
        assert (metadata.mode, metadata.kind, metadata.restored_from) == ("EXACTLY_ONCE", "checkpoint", None)
        assert metadata.facts == Facts(query_id="q", batch=17)
        assert metadata.sink == {"kind": "file", "batch": 17}
        assert metadata.new_bytes == metadata.size == sum(map(len, state(3).values()))
        assert metadata.writer["host"] == "h"
        assert CheckpointCatalog(memory, JOB).load(run.store.job_id, 1) == metadata

    def test_data_first_then_the_manifest_and_nothing_after(
        self, run: Run, disturbed: FaultInjectingFileSystem
    ) -> None:
        before = len(disturbed.operations)
        run.checkpoint(state(1))
        changes = [operation for operation in disturbed.operations[before:] if operation.changes]
        data = [operation for operation in changes if operation.name == "write"]
        assert data
        assert all("/shared/000001-" in operation.path for operation in data)
        assert changes[-1].name == "create"
        assert changes[-1].path.endswith("chk-1/_metadata")
        synced = [operation for operation in changes if operation.name == "sync_directories"]
        assert synced[-1].sequence > data[-1].sequence, "names of data are durable before the manifest"

    def test_a_writer_that_lost_deletes_nothing_that_a_newer_run_went_on_from(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its manifest was there, and is gone again: the newer run has deleted it, and keeps its files."""
        create = memory.create
        newer = Run(memory, ledger, pins)

        def late(path: str, data: bytes) -> None:
            create(path, data)
            monkeypatch.undo()
            newer.start().checkpoint(state(3))
            newer.subsume(1)
            raise PublishConflict(f"{path} was created by somebody else, and is gone again.")

        pending = run.begin()
        ledger.meant[f"{run.store.job_id}/chk-1"] = [state(2)]
        monkeypatch.setattr(memory, "create", late)
        with pytest.raises(Fenced):
            run.store.write(pending, pins.snapshot(2, state(2)))
        [metadata] = newer.store.retained
        assert metadata.checkpoint_id > 1
        assert any("/000001-" in reference for reference in metadata.references), "nothing is shared: a test of nothing"
        assert content(memory, metadata) == state(3)

    def test_unchanged_files_are_shared(self, run: Run, memory: MemoryFileSystem) -> None:
        first = run.checkpoint(state(2))
        second = run.checkpoint(state(3))
        common = first.references & second.references
        assert len(common) >= 2
        assert second.new_bytes < second.size
        assert content(memory, second) == state(3)

    def test_after_a_restart_content_decides(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """A name alone says nothing: Spark may rewrite it."""
        first = run.checkpoint(state(2))
        again = Run(memory, ledger, pins).start()
        same, other = dict(state(2)), dict(state(2))
        other["checkpoint/state/base.sst"] = other["checkpoint/state/base.sst"].swapcase()
        second, third = again.checkpoint(same), again.checkpoint(other)
        assert first.references == second.references
        assert content(memory, third) == other
        assert content(memory, first) == same

    @pytest.mark.parametrize("damage", [lambda data: None, lambda data: data.swapcase()], ids=["gone", "changed"])
    def test_after_a_restart_no_stored_file_is_shared_that_is_not_what_was_written(
        self,
        run: Run,
        memory: MemoryFileSystem,
        ledger: Ledger,
        pins: Pins,
        damage: Callable[[bytes], bytes | None],
    ) -> None:
        for reference in run.checkpoint(state(2)).references:
            path = f"{JOB}/{run.store.job_id}/{reference.removeprefix('../')}"
            if (data := damage(memory.files[path])) is None:
                memory.remove(path)
            else:
                memory.replace(path, data)
        again = Run(memory, ledger, pins).start()
        assert content(memory, again.checkpoint(state(2))) == state(2)

    def test_a_file_with_a_known_identity_is_not_read_again(
        self, run: Run, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        """Neither a shared one nor an inline one: their bytes may be gone."""
        run.checkpoint(state(2))
        snapshot = pins.snapshot(2, state(2))
        for file in snapshot.files:
            Path(file.local).unlink()
        assert content(memory, run.store.write(run.begin(), snapshot)) == state(2)

    def test_an_identity_is_believed_only_for_its_own_path(self, run: Run, memory: MemoryFileSystem) -> None:
        """Two names with one content (one inode) must both come back."""
        data = b"two names, one inode, and long enough to be shared"
        for step in range(3):
            both = {f"state/a{step}": data, "state/b": data}
            assert content(memory, run.checkpoint(both)) == both

    def test_small_files_are_inline_up_to_a_mebibyte(
        self, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run = Run(memory, ledger, pins).start()
        store = CompletedCheckpointStore(
            run.catalog,
            run.claim,
            job_id=run.store.job_id,
            first_id=1,
            restored_from=None,
            mode="EXACTLY_ONCE",
            clock=run.clock,
        )
        files = {f"offsets/{number}": bytes([number]) * 20_000 for number in range(100)}
        files["offsets/large"] = b"x" * 20_481
        metadata = store.write(store.begin(), pins.snapshot(1, files))
        inline = [file for file in metadata.files if file.inline is not None]
        assert len(inline) == MAX_INLINE_BYTES // 20_000
        assert content(memory, metadata) == files
        assert len(metadata.references) == 2, "one pack and one large file"
        least = store.write(store.begin(), pins.snapshot(2, {"offsets/1": b"y" * 20_480, "offsets/2": b"y" * 20_481}))
        assert [file.path for file in least.files if file.inline is not None] == ["offsets/1"]

    @pytest.mark.parametrize("size", [3, 300])
    def test_a_file_that_changes_while_it_is_written_is_refused(
        self, run: Run, memory: MemoryFileSystem, tmp_path: Path, size: int
    ) -> None:
        local = tmp_path / "changing"
        local.write_bytes(b"x" * size)
        snapshot = Snapshot(1, (PinnedFile("state/f", str(local), size + 1),), Facts(), None, lambda: None)
        with pytest.raises(CheckpointFailure, match=f"state/f changed while it was written: {size} bytes"):
            run.store.write(run.begin(), snapshot)
        assert shared(memory) == directories(memory) == set()


class TestInTheDriversMemory:
    """A storage with a limit of each file's size keeps all of a checkpoint in its manifest."""

    LIMIT = 100

    @pytest.fixture
    def store(self, run: Run) -> CompletedCheckpointStore:
        return CompletedCheckpointStore(
            run.catalog,
            run.claim,
            job_id=run.store.job_id,
            first_id=1,
            restored_from=None,
            mode="EXACTLY_ONCE",
            clock=run.clock,
            max_state_size=self.LIMIT,
        )

    def test_everything_is_inline_and_what_is_known_is_not_read_again(
        self, store: CompletedCheckpointStore, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        first = store.write(store.begin(), pins.snapshot(1, state(2)))
        assert content(memory, first) == state(2)
        assert first.references == frozenset()
        assert shared(memory) == set()
        assert first.new_bytes == first.size == sum(map(len, state(2).values()))
        snapshot = pins.snapshot(2, {**state(2), "checkpoint/state/new": b"x" * self.LIMIT})
        for file in snapshot.files[:-1]:
            Path(file.local).unlink()
        second = store.write(store.begin(), snapshot)
        assert second.new_bytes == self.LIMIT, "a file of exactly the limit may be"

    def test_a_file_beyond_the_limit_is_refused(
        self, store: CompletedCheckpointStore, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        with pytest.raises(CheckpointFailure, match=f"Size={self.LIMIT + 1}, maxSize={self.LIMIT}") as refused:
            store.write(store.begin(), pins.snapshot(1, {"checkpoint/state/f": b"x" * (self.LIMIT + 1)}))
        assert "max_state_size" in refused.value.hint
        assert directories(memory) == set()

    def test_an_expired_attempt_stops(self, store: CompletedCheckpointStore, pins: Pins) -> None:
        pending = store.begin()
        assert pending.expire()
        with pytest.raises(Stopped):
            store.write(pending, pins.snapshot(1, state(1)))


class TestIds:
    def test_they_begin_at_one_and_rise_with_gaps(self, run: Run, disturbed: FaultInjectingFileSystem) -> None:
        assert run.checkpoint(state(1)).checkpoint_id == 1
        disturbed.plan = once("write", "", Fail())
        with pytest.raises(StorageError):
            run.checkpoint(state(5))
        assert run.checkpoint(state(6)).checkpoint_id == 3

    def test_an_aborted_attempts_id_is_never_issued_again(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run.checkpoint(state(1))
        for _ in range(3):
            run.begin()
        disturbed.plan = lambda operation: Crash() if operation.name == "write" else None
        with pytest.raises(ProcessDied):
            run.checkpoint(state(2))
        again = Run(memory, ledger, pins).start()
        assert again.checkpoint(state(2)).checkpoint_id == 6
        numbers = [number for _, number, _ in ledger.issued]
        assert numbers == sorted(set(numbers))

    def test_a_fenced_writer_cannot_lower_what_was_issued(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """It has passed its check and sleeps, while a newer run issues ids and aborts these attempts."""
        newer: list[Run] = []

        def sleep_before_recording(operation: Operation) -> None:
            if operation.name == "create" and "/issued/" in operation.path and not newer:
                newer.append(Run(memory, ledger, pins).start())
                for _ in range(5):
                    newer[0].begin()

        disturbed.plan = sleep_before_recording
        run.store.begin()
        highest = max(number for _, number, epoch in ledger.issued if epoch == 2)
        assert Run(memory, ledger, pins).start().begin().number > highest

    def test_a_lineage_that_goes_on_continues_its_numbers(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        for step in range(4):
            run.checkpoint(state(step))
        run.subsume(1)
        assert Run(memory, ledger, pins).start().checkpoint(state(9)).checkpoint_id == 5


class TestFailing:
    def test_an_expired_attempt_is_not_published_and_its_files_are_gone(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem
    ) -> None:
        for name, ending in (("write", ""), ("sync_directories", "shared"), ("list", "epochs")):
            pending = run.begin()
            expired: list[bool] = []
            disturbed.plan = self.expire_at(name, ending, pending, expired)
            with pytest.raises(Stopped):
                run.store.write(pending, run.pins.snapshot(1, state(1)))
            assert expired == [True]
            assert shared(memory) == directories(memory) == set()

    def expire_at(self, name: str, ending: str, pending: PendingCheckpoint, expired: list[bool]) -> Plan:
        def plan(operation: Operation) -> None:
            if not expired and operation.name == name and operation.path.endswith(ending):
                expired.append(pending.expire())

        return plan

    def test_an_attempt_that_is_being_published_cannot_expire(
        self, run: Run, disturbed: FaultInjectingFileSystem
    ) -> None:
        pending = run.begin()
        refused = []

        def expire(operation: Operation) -> None:
            if operation.path.endswith("_metadata"):
                refused.append(pending.expire())

        disturbed.plan = expire
        assert run.store.write(pending, run.pins.snapshot(1, state(1))).checkpoint_id == pending.number
        assert refused == [False]

    @pytest.mark.parametrize("action", [Fail(), Torn(5, StorageError("full"))])
    def test_a_refused_data_file_leaves_nothing(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, action: Action
    ) -> None:
        run.checkpoint(state(1))
        before = shared(memory)
        disturbed.plan = once("write", ".sst", action)
        with pytest.raises(StorageError):
            run.checkpoint(state(9))
        assert shared(memory) == before
        assert directories(memory) == {"chk-1"}

    def test_a_refused_manifest_leaves_nothing(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem
    ) -> None:
        disturbed.plan = once("create", "_metadata", Fail())
        with pytest.raises(StorageError):
            run.checkpoint(state(1))
        assert shared(memory) == directories(memory) == set()

    def test_a_storage_that_is_down_does_not_hide_why_the_attempt_ended(
        self, run: Run, disturbed: FaultInjectingFileSystem
    ) -> None:
        pending = run.begin()

        def down(operation: Operation) -> Action | None:
            if operation.name == "write":
                pending.expire()
            return Fail() if operation.name in {"remove", "remove_directory"} else None

        disturbed.plan = down
        with pytest.raises(Stopped):
            run.store.write(pending, run.pins.snapshot(1, state(1)))

    def test_an_unknown_publish_is_read_back_before_anything_is_deleted(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger
    ) -> None:
        run.checkpoint(state(2))
        disturbed.plan = once("create", "_metadata", FailAfter())
        with pytest.raises(PublishUnknown):
            run.checkpoint(state(3))
        ledger.examine(memory)
        run.checkpoint(state(8))
        discarded = run.subsume(2)
        assert [item.metadata.name for item in discarded] == ["chk-1"]
        assert [metadata.name for metadata in run.store.retained] == ["chk-2", "chk-3"]
        ledger.examine(memory)
        assert run.subsume(2) == []
        assert [metadata.name for metadata in run.store.retained] == ["chk-2", "chk-3"], "it counts once"

    def test_an_attempt_that_a_newer_one_overtook_is_refused(self, run: Run, memory: MemoryFileSystem) -> None:
        older, newer = run.begin(), run.begin()
        run.store.write(newer, run.pins.snapshot(2, state(2)))
        with pytest.raises(CheckpointFailure, match="chk-1 was subsumed by chk-2"):
            run.store.write(older, run.pins.snapshot(1, state(1)))
        assert directories(memory) == {"chk-2"}

    def test_a_fenced_writer_changes_nothing(
        self, run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        run.checkpoint(state(1))
        run.checkpoint(state(2))
        pending = run.begin()
        Run(memory, ledger, pins).start()
        before = dict(memory.files)
        with pytest.raises(Fenced):
            run.begin()
        with pytest.raises(Fenced):
            run.store.write(pending, pins.snapshot(3, state(3)))
        with pytest.raises(Fenced):
            run.store.subsume(Retention(1))
        with pytest.raises(Fenced):
            run.store.discard_all("never")
        assert memory.files == before

    def test_a_publish_that_came_too_late_is_void(
        self, run: Run, disturbed: FaultInjectingFileSystem, memory: MemoryFileSystem, ledger: Ledger, pins: Pins
    ) -> None:
        """The zombie passed its check, slept while a new run took over, and publishes now."""
        run.checkpoint(state(1))
        newer: list[Run] = []

        def sleep_before_publishing(operation: Operation) -> None:
            if operation.path.endswith("chk-2/_metadata") and not newer:
                newer.append(Run(memory, ledger, pins).start())
                newer[0].checkpoint({"checkpoint/state/other": b"nothing that the zombie could share"})
                newer[0].subsume(1)

        disturbed.plan = sleep_before_publishing
        with pytest.raises(Fenced):
            run.checkpoint(state(2))
        assert f"{JOB}/{1:032x}/chk-2/_metadata" in memory.files, "it did publish"
        ledger.examine(memory)
        with pytest.raises(CheckpointNotFound, match="is void: epoch 1 published it after epoch 2") as raised:
            CheckpointCatalog(memory, JOB).resolve("chk-2")
        assert "dagster-ckpt list flights" in raised.value.hint
        newest = find_newest(CheckpointCatalog(memory, JOB)).metadata
        assert newest is not None
        assert newest.epoch == 2


class TestDiscarding:
    def test_afterwards_no_checkpoint_is_taken(self, run: Run, memory: MemoryFileSystem, pins: Pins) -> None:
        run.checkpoint(state(1))
        under_way = run.begin()
        run.cleanup()
        stored = dict(memory.files)
        with pytest.raises(CheckpointFailure, match="have been discarded"):
            run.store.write(under_way, pins.snapshot(2, state(2)))
        with pytest.raises(CheckpointFailure, match="have been discarded"):
            run.store.begin()
        assert memory.files == stored
        assert directories(memory) == set()


def test_only_the_newest_run_owns_the_job(run: Run, memory: MemoryFileSystem, ledger: Ledger, pins: Pins) -> None:
    run.store.check_owner()
    Run(memory, ledger, pins).claim_epoch()
    with pytest.raises(Fenced):
        run.store.check_owner()


@pytest.mark.parametrize(
    ("kind", "known", "new_bytes"),
    [(CopyingMemory, False, 0), (CopyingMemory, True, 0), (UnprovingMemory, True, 0), (UnprovingMemory, False, 280)],
)
def test_an_object_that_was_copied_from_a_stored_file_is_not_copied_back(
    ledger: Ledger, pins: Pins, kind: type[CopyingMemory], known: bool, new_bytes: int
) -> None:
    """If its checksum tells that, or whoever copied it; a stored file of another lineage is nobody's to share."""
    bucket = kind()
    bucket.replace("live/000001.sst", bytes(280))
    source = StoredSource(bucket, "live/000001.sst", bucket.stored("live/000001.sst"))

    def snapshot(identity: str) -> Snapshot:
        file = PinnedFile("checkpoint/state/000001.sst", "", 280, (identity,), source=source)
        return Snapshot(1, (file,), Facts(), None, lambda: None)

    first = Run(bucket, ledger, pins).start()
    taken = first.store.write(first.begin(), snapshot("before"))
    again = Run(bucket, ledger, pins).start()
    elsewhere = taken.files[0]._replace(reference="../shared/of-another-lineage")
    again.store.know([(elsewhere, ("after",))])
    if known:
        again.store.know([(taken.files[0], ("after",))])
    second = again.store.write(again.begin(), snapshot("after"))
    assert (taken.new_bytes, second.new_bytes) == (280, new_bytes)
    assert (second.references == taken.references) is (new_bytes == 0)
