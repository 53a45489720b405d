"""What every storage inherits: files side by side, listings that change meanwhile, budgets and the reserve."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem import FileSystem, Stopped, Written, reserve
from dagster_ckpt.filesystem.reserve import Reserve
from dagster_ckpt.filesystem.scratch import Budget, Scratch
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.memory import MemoryFileSystem


def never() -> bool:
    return False


class Plain(MemoryFileSystem):
    """A storage that takes from the port all that it can, and notes which directories were synced."""

    write_many, read_many, size_many = FileSystem.write_many, FileSystem.read_many, FileSystem.size_many
    list_many = FileSystem.list_many

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[set[str]] = []

    def sync_directories(self, paths: Iterable[str]) -> None:
        self.synced.append(set(paths))


def test_a_storage_says_what_it_is() -> None:
    assert (FileSystem.is_durable, FileSystem.is_distant, FileSystem.concurrency) == (True, False, 16)


@pytest.mark.parametrize("is_distant", [False, True])
def test_many_files(is_distant: bool) -> None:
    storage, told = Plain(), list[int]()
    storage.is_distant = is_distant
    assert storage.write_many([], never, told.append) == ()
    assert storage.synced == []
    written: Sequence[Written] = storage.write_many([("a/1", b"x"), ("b/2", b"yy"), ("a/3", b"")], never, told.append)
    assert [item.size for item in written] == [1, 2, 0]
    assert sorted(told) == [0, 1, 2]
    assert storage.synced == [{"a", "b"}], "their names are durable"
    assert storage.read_many(["b/2", "gone", "a/1"]) == [b"yy", None, b"x"]
    assert storage.size_many(["b/2", "gone", "a/3"]) == [2, None, 0]
    assert list(storage.read_many([])) == []
    listed = [sorted(entry.name for entry in entries) for entries in storage.list_many(["a", "gone", "b"])]
    assert listed == [["1", "3"], [], ["2"]]
    assert (storage.read_if_there("a/1"), storage.read_if_there("gone")) == (b"x", None)
    with pytest.raises(Stopped):
        storage.write_many([("c/1", b"x")], lambda: True)


class TestListed:
    def read(self, storage: FileSystem, *listings: list[str]) -> dict[str, bytes | None]:
        """What is read while the names change from listing to listing."""
        left = list(listings)
        return storage.read_listed(lambda: left.pop(0) if len(left) > 1 else left[0], lambda name: f"d/{name}")

    def test_what_is_there_is_listed_once(self, memory: MemoryFileSystem) -> None:
        memory.files |= {"d/b": b"2", "d/a": b"1"}
        found = self.read(memory, ["b", "a"], ["b", "a", "never listed"])
        assert list(found.items()) == [("b", b"2"), ("a", b"1")]

    def test_what_replaced_a_file_is_found(self, memory: MemoryFileSystem) -> None:
        memory.files |= {"d/a": b"1", "d/new": b"2"}
        found = self.read(memory, ["a", "old"], ["a", "new"])
        assert found == {"a": b"1", "new": b"2"}

    def test_what_is_listed_and_gone_is_told_as_missing(self, memory: MemoryFileSystem) -> None:
        memory.files |= {"d/a": b"1"}
        found = self.read(memory, ["a", "gone"], ["a", "gone"])
        assert found == {"a": b"1", "gone": None}


class TestBudget:
    def test_it_is_never_exceeded_but_by_one_alone(self) -> None:
        budget = Budget(10)
        asked = iter([False, True, True])
        with budget.taken(4), budget.taken(6), pytest.raises(Stopped), budget.taken(1, asked.__next__):
            pytest.fail("the budget is used up")
        with budget.taken(11), pytest.raises(Stopped), budget.taken(1, asked.__next__):
            pytest.fail("it runs alone")
        with budget.taken(10):
            pass
        with pytest.raises(Stopped), budget.taken(1, lambda: True):
            pytest.fail("nobody wants it any more")

    def test_who_waits_goes_on_when_room_is_given_back(self) -> None:
        budget, taken = Budget(10), threading.Event()

        def wait() -> None:
            with budget.taken(5):
                taken.set()

        waiting = threading.Thread(target=wait, daemon=True)
        with budget.taken(6):
            waiting.start()
            assert not taken.is_set()
        assert taken.wait(60)
        waiting.join(60)

    def test_ordinary_files_pass_through_side_by_side(self) -> None:
        with Scratch() as scratch, scratch.file(1 << 20) as one, scratch.file(1 << 20, lambda: False) as other:
            assert one != other

    def test_a_file_that_passed_through_is_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dagster_ckpt.filesystem.scratch.MAX_SCRATCH_BYTES", 10)
        with Scratch() as scratch:
            with scratch.file(10) as file:
                file.write_bytes(b"x")
                with pytest.raises(Stopped), scratch.file(1, iter([False, True]).__next__):
                    pytest.fail("there is no room")
            assert not file.parent.exists()
        assert not file.parent.parent.exists()


class TestReserve:
    @pytest.fixture
    def kept(self, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> Reserve:
        monkeypatch.setattr(reserve, "_SIZE", 8)
        made = Reserve(memory, "reserve")
        made.keep()
        return made

    def test_it_is_set_aside_once(self, kept: Reserve, memory: MemoryFileSystem) -> None:
        first = memory.files["reserve"]
        assert len(first) == 8
        kept.keep()
        assert memory.files["reserve"] == first
        memory.files["reserve"] = first[:5]
        kept.keep()
        assert len(memory.files["reserve"]) == 8, "one of another size is replaced"

    def test_a_bucket_is_never_full(self, memory: MemoryFileSystem) -> None:
        memory.is_distant = True
        Reserve(memory, "reserve").keep()
        assert memory.files == {}

    def test_a_storage_that_refuses_it_harms_nobody(self, memory: MemoryFileSystem) -> None:
        Reserve(FaultInjectingFileSystem(memory, lambda _: Fail()), "reserve").keep()

    @pytest.mark.parametrize(
        ("error", "gives_up"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False), (None, False)]
    )
    def test_only_a_full_disk_takes_it(
        self, kept: Reserve, memory: MemoryFileSystem, error: int | None, gives_up: bool
    ) -> None:
        def plan(operation: Operation) -> Action | None:
            refused = operation.name == "create" and error is not None and "reserve" in memory.files
            return Fail(OSError(error, "refused")) if refused else None

        holder = Reserve(FaultInjectingFileSystem(memory, plan), "reserve")
        if error is not None and not gives_up:
            with pytest.raises(OSError, match="refused"):
                holder.create("record", b"x")
            assert set(memory.files) == {"reserve"}
            return
        assert holder.create("record", b"x") is gives_up
        assert set(memory.files) == ({"record"} if gives_up else {"record", "reserve"})


def test_the_probe_leaves_nothing_and_names_what_is_refused(memory: MemoryFileSystem) -> None:
    memory.probe()
    assert memory.files == {}

    def refused(name: str) -> Callable[[Operation], Action | None]:
        return lambda operation: Fail(StorageError("no", hint="do this")) if operation.name == name else None

    for name in ("list", "create", "read"):
        with pytest.raises(StorageUnusable, match=r"cannot be written to .*: no") as caught:
            FaultInjectingFileSystem(memory, refused(name)).probe()
        assert caught.value.hint == "do this"


def test_where_many_are_written_side_by_side_each_is_whole(tmp_path: Path) -> None:
    storage = Plain()
    (tmp_path / "file").write_bytes(b"of a file")
    storage.write_many([("a/1", tmp_path / "file"), ("a/2", b"of bytes")], never)
    assert storage.files == {"a/1": b"of a file", "a/2": b"of bytes"}
