from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import pytest

from dagster_ckpt.errors import (
    InvalidConfiguration,
    PublishConflict,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import (
    Entry,
    FileSystem,
    PosixFileSystem,
    Stopped,
    Written,
    open_filesystem,
)
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Flip, Lie, Operation
from tests.checkpoint.memory import MemoryFileSystem


def never() -> bool:
    return False


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "base" / "storage")


@pytest.fixture(params=["posix", "faults", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    """The port's contract holds for the real one, the wrapper and the test double alike."""
    match request.param:
        case "posix":
            return PosixFileSystem(tmp_path / "storage")
        case "faults":
            return FaultInjectingFileSystem(PosixFileSystem(tmp_path / "storage"))
        case _:
            return MemoryFileSystem()


class TestContract:
    def test_create_is_exclusive(self, storage: FileSystem) -> None:
        storage.create("a/b/f", b"first")
        with pytest.raises(PublishConflict, match="a/b/f"):
            storage.create("a/b/f", b"second")
        assert storage.read("a/b/f") == b"first"

    def test_create_that_finds_its_own_bytes_has_succeeded(self, storage: FileSystem) -> None:
        storage.create("f", b"mine")
        storage.create("f", b"mine")
        assert [entry.name for entry in storage.list("")] == ["f"]

    def test_replace_puts_new_content_in_place(self, storage: FileSystem) -> None:
        storage.replace("a/f", b"first")
        storage.replace("a/f", b"second")
        assert storage.read("a/f") == b"second"
        assert storage.list("a") == [Entry("f", is_directory=False)]

    def test_write_fetch_and_checksum_tell_what_they_moved(self, storage: FileSystem, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        (tmp_path / "source").write_bytes(data)
        expected = Written(len(data), hashlib.sha256(data).hexdigest())
        assert storage.write("shared/f", tmp_path / "source", never) == expected
        assert storage.checksum("shared/f") == expected
        assert storage.fetch("shared/f", tmp_path / "target") == expected
        assert (tmp_path / "target").read_bytes() == data

    def test_write_never_overwrites(self, storage: FileSystem, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"new")
        storage.create("f", b"old")
        with pytest.raises(OSError, match="f"):
            storage.write("f", tmp_path / "source", never)
        assert storage.read("f") == b"old"

    def test_a_stopped_write_leaves_nothing(self, storage: FileSystem, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"x" * (3 << 20))
        with pytest.raises(Stopped):
            storage.write("d/f", tmp_path / "source", lambda: True)
        assert storage.list("d") == []

    def test_write_many_keeps_the_order(self, storage: FileSystem, tmp_path: Path) -> None:
        items = []
        for number in range(40):
            source = tmp_path / str(number)
            source.write_bytes(b"x" * number)
            items.append((f"d{number % 3}/{number}", source))
        assert [written.size for written in storage.write_many(items, never)] == list(range(40))
        assert list(storage.write_many([], never)) == []

    def test_what_is_missing(self, storage: FileSystem, tmp_path: Path) -> None:
        for read in (storage.read, storage.checksum, lambda path: storage.fetch(path, tmp_path / "target")):
            with pytest.raises(FileNotFoundError):
                read("no/such/file")
        assert list(storage.list("no/such/directory")) == []
        storage.remove("no/such/file")
        storage.remove_directory("no/such/directory")
        storage.sync_directories(["no/such/directory"])

    def test_list_tells_directories_from_files(self, storage: FileSystem) -> None:
        storage.create("d/sub/f", b"")
        storage.create("d/f", b"")
        assert set(storage.list("d")) == {Entry("sub", is_directory=True), Entry("f", is_directory=False)}

    def test_remove_directory_only_when_empty(self, storage: FileSystem) -> None:
        storage.create("d/f", b"x")
        storage.remove_directory("d")
        assert storage.read("d/f") == b"x"
        storage.remove("d/f")
        storage.remove_directory("d")
        assert "d" not in {entry.name for entry in storage.list("")}
        storage.create("d/f", b"again")
        assert storage.read("d/f") == b"again"

    def test_probe_leaves_nothing_behind(self, storage: FileSystem) -> None:
        storage.probe()
        assert list(storage.list("")) == []


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/outside"])
def test_nothing_outside_the_root_can_be_touched(disk: PosixFileSystem, path: str) -> None:
    for operation in (disk.read, disk.remove, disk.remove_directory, disk.list, disk.checksum):
        with pytest.raises(StorageError, match="not a path below"):
            operation(path)
    with pytest.raises(StorageError, match="not a path below"):
        disk.create(path, b"x")


class TestProbeRefuses:
    def test_a_storage_that_creates_twice(self) -> None:
        class Overwriting(MemoryFileSystem):
            def create(self, path: str, data: bytes) -> None:
                self.replace(path, data)

        with pytest.raises(StorageUnusable, match="created twice") as raised:
            Overwriting().probe()
        assert "exclusive create" in raised.value.hint

    @pytest.mark.parametrize(
        ("name", "action"), [("list", Lie()), ("read", Flip()), ("create", Lie()), ("read", Fail())]
    )
    def test_a_storage_that_lies(self, name: str, action: Lie | Flip | Fail) -> None:
        def plan(operation: Operation) -> Lie | Flip | Fail | None:
            return action if operation.name == name else None

        with pytest.raises(StorageUnusable):
            FaultInjectingFileSystem(MemoryFileSystem(), plan).probe()


class TestOpen:
    def test_paths_and_file_urls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert open_filesystem("ckpt").url == str(tmp_path / "ckpt")
        assert open_filesystem("~/ckpt").url == str(tmp_path / "ckpt")
        assert open_filesystem(f"file://{tmp_path}/with%20space").url == f"{tmp_path}/with space"

    @pytest.mark.parametrize("location", ["", "/", "file:///"])
    def test_no_directory(self, location: str) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            open_filesystem(location)
        assert raised.value.hint

    def test_another_scheme_is_refused_without_its_credentials(self) -> None:
        with pytest.raises(InvalidConfiguration, match="'s3'") as raised:
            open_filesystem("s3://user:secret@bucket/path?token=hidden#fragment")
        assert "secret" not in str(raised.value)
        assert "hidden" not in str(raised.value)

    def test_it_can_be_sent_to_another_process(self, disk: PosixFileSystem) -> None:
        disk.create("f", b"x")
        copied = pickle.loads(pickle.dumps(disk))
        assert copied.read("f") == b"x"
        assert repr(copied) == repr(disk)
