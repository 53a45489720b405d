"""The contract that every storage of checkpoints must keep, as tests to run against your own storage.

.. code-block:: python

    from dagster_ckpt.testing.filesystem_contract import FileSystemContract

    class TestVault(FileSystemContract):
        @pytest.fixture
        def storage(self) -> FileSystem:
            return VaultFileSystem("test")

Needs pytest.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from dagster_ckpt.errors import PublishConflict, StorageError
from dagster_ckpt.filesystem import Entry, FileSystem, Part, Stopped, Written

__all__ = ["FileSystemContract"]

_THREADS = 8


class FileSystemContract:
    """The contract of :class:`~dagster_ckpt.filesystem.FileSystem`; override :meth:`storage`."""

    @pytest.fixture
    def storage(self) -> FileSystem:
        """An empty storage, new for each test."""
        raise NotImplementedError("Override the fixture `storage` with one that gives an empty storage.")

    def test_create_is_exclusive(self, storage: FileSystem) -> None:
        storage.create("a/b/f", b"first")
        with pytest.raises(PublishConflict, match="a/b/f"):
            storage.create("a/b/f", b"second")
        assert storage.read("a/b/f") == b"first"

    def test_create_that_finds_its_own_bytes_has_succeeded(self, storage: FileSystem) -> None:
        storage.create("f", b"mine")
        storage.create("f", b"mine")
        assert [entry.name for entry in storage.list("")] == ["f"]

    def test_of_many_that_create_one_name_one_wins(self, storage: FileSystem) -> None:
        """Everything rests on this: a create claims an epoch, and a create completes a checkpoint."""
        for turn in range(20):
            at_once = Barrier(_THREADS)

            def create(number: int, path: str = f"claims/{turn}", at_once: Barrier = at_once) -> bool:
                at_once.wait()
                try:
                    storage.create(path, f"{number}".encode() * 1000)
                except PublishConflict:
                    return False
                return True

            with ThreadPoolExecutor(_THREADS) as pool:
                won = list(pool.map(create, range(_THREADS)))
            assert won.count(True) == 1
            assert storage.read(f"claims/{turn}") == f"{won.index(True)}".encode() * 1000

    def test_replace_puts_new_content_in_place(self, storage: FileSystem) -> None:
        storage.replace("a/f", b"first")
        storage.replace("a/f", b"second")
        assert storage.read("a/f") == b"second"
        assert list(storage.list("a")) == [Entry("f", is_directory=False)]

    def test_write_fetch_and_checksum_tell_what_they_moved(self, storage: FileSystem, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        (tmp_path / "source").write_bytes(data)
        expected = Written(len(data), hashlib.sha256(data).hexdigest())
        assert storage.write("shared/f", tmp_path / "source", _never) == expected
        assert storage.checksum("shared/f") == expected
        assert storage.size("shared/f") == len(data)
        assert storage.fetch("shared/f", tmp_path / "target") == expected
        assert (tmp_path / "target").read_bytes() == data

    @pytest.mark.parametrize("content", [b"", b"\r", b"\n", b"a\r\n", b"\n\na\r", b"--\r\n", bytes(range(256))])
    def test_every_byte_comes_back(self, storage: FileSystem, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(content)
        storage.write("written", tmp_path / "source", _never)
        storage.create("created", content)
        storage.replace("replaced", content)
        for path in ("written", "created", "replaced"):
            assert storage.read(path) == content
            storage.fetch(path, tmp_path / path)
            assert (tmp_path / path).read_bytes() == content

    def test_a_part_of_a_file(self, storage: FileSystem, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        storage.write("f", data, _never)
        beyond = Part(0, len(data) + 1), Part(len(data) - 9, 1 << 20)
        for part in (Part(0, 1), Part(1_000_003, 1_500_000), Part(len(data) - 1, 1), Part(7, 0), *beyond):
            wanted = data[part.offset : part.offset + part.size]
            target = tmp_path / f"{part.offset}-{part.size}"
            assert storage.fetch("f", target, part) == Written(len(wanted), hashlib.sha256(wanted).hexdigest())
            assert target.read_bytes() == wanted
            assert storage.checksum("f", part) == Written(len(wanted), hashlib.sha256(wanted).hexdigest())

    def test_a_part_that_begins_where_the_file_ends(self, storage: FileSystem, tmp_path: Path) -> None:
        for number, data in enumerate((b"", b"abc")):
            storage.write(f"{number}", data, _never)
            part = Part(len(data), 5)
            assert storage.fetch(f"{number}", tmp_path / f"{number}", part) == Written.of(b"")
            assert storage.checksum(f"{number}", part) == Written.of(b"")

    def test_write_never_overwrites(self, storage: FileSystem, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"new")
        storage.create("f", b"old")
        with pytest.raises(OSError, match="f"):
            storage.write("f", tmp_path / "source", _never)
        assert storage.read("f") == b"old"

    def test_a_stopped_write_leaves_nothing(self, storage: FileSystem, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"x" * (3 << 20))
        with pytest.raises(Stopped):
            storage.write("d/f", tmp_path / "source", lambda: True)
        assert list(storage.list("d")) == []

    def test_write_many_keeps_the_order(self, storage: FileSystem, tmp_path: Path) -> None:
        items: list[tuple[str, Path | bytes]] = []
        for number in range(40):
            source = tmp_path / str(number)
            source.write_bytes(b"x" * number)
            items.append((f"d{number % 3}/{number}", source))
        assert [written.size for written in storage.write_many(items, _never)] == list(range(40))
        assert list(storage.write_many([], _never)) == []

    def test_many_threads_write_and_list_at_once(self, storage: FileSystem) -> None:
        def work(number: int) -> None:
            for turn in range(10):
                storage.create(f"job/chk-{number}/{turn}", f"{number} {turn}".encode())
                assert f"{turn}" in {entry.name for entry in storage.list(f"job/chk-{number}")}
                storage.remove(f"job/chk-{number}/{turn - 1}")

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))
        for number in range(_THREADS):
            assert [entry.name for entry in storage.list(f"job/chk-{number}")] == ["9"]
            assert storage.read(f"job/chk-{number}/9") == f"{number} 9".encode()

    def test_what_is_missing(self, storage: FileSystem, tmp_path: Path) -> None:
        reads: tuple[Callable[[str], object], ...] = (
            storage.read,
            storage.checksum,
            storage.size,
            lambda path: storage.fetch(path, tmp_path / "target"),
        )
        for read in reads:
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

    def test_a_directory_is_no_file_and_a_file_no_directory(self, storage: FileSystem, tmp_path: Path) -> None:
        """Foreign files and directories in a job's directories must not break reading them."""
        storage.create("d/f", b"1")
        assert list(storage.list("d/f")) == []
        for read in (storage.read, storage.checksum, storage.size, lambda path: storage.fetch(path, tmp_path / "it")):
            with pytest.raises(FileNotFoundError):
                read("d")
        storage.remove("d")
        assert storage.read("d/f") == b"1"

    def test_a_name_that_begins_with_another_is_not_inside_it(self, storage: FileSystem) -> None:
        storage.create("job/chk-1/_metadata", b"1")
        storage.create("job/chk-10/_metadata", b"10")
        assert list(storage.list("job/chk-1")) == [Entry("_metadata", is_directory=False)]

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
    def test_nothing_outside_the_root_can_be_touched(self, storage: FileSystem, path: str) -> None:
        for operation in (storage.read, storage.remove, storage.remove_directory, storage.list, storage.checksum):
            with pytest.raises(StorageError):
                operation(path)
        with pytest.raises(StorageError):
            storage.create(path, b"x")

    def test_its_url_has_no_credentials(self, storage: FileSystem) -> None:
        assert storage.url
        assert "@" not in storage.url

    def test_it_can_be_sent_to_another_process(self, storage: FileSystem) -> None:
        storage.create("f", b"x")
        copied = pickle.loads(pickle.dumps(storage))  # noqa: S301 - our own bytes
        assert copied.url == storage.url
        if storage.is_durable:
            assert copied.read("f") == b"x"


def _never() -> bool:
    return False
