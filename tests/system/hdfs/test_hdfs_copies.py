"""Files of HDFS that are pinned, read and copied, against a real NameNode and DataNode."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import Copy, HdfsFileSystem, Part, ServerSide, Stopped, Stored, crc32c_of
from dagster_ckpt.filesystem.hdfs import client_calls
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import JavaFailure
from tests.servers.hdfs_cluster import MiniDfs
from tests.system.hdfs.conftest import IMPATIENT

pytestmark = pytest.mark.integration

DATA = b"the bytes of a file"


@pytest.fixture
def copies(storage: HdfsFileSystem) -> ServerSide:
    return storage.copies


def test_a_file_is_known_by_its_inode_and_its_checksum(storage: HdfsFileSystem, copies: ServerSide) -> None:
    storage.create("a/b c/ä", DATA)
    assert storage.copies is copies, "what it has pinned is known as its own"
    found = copies.stored("a/b c/ä")
    assert (found.size, found.crc32c) == (len(DATA), crc32c_of(DATA))
    storage.replace("a/b c/ä", DATA)
    assert copies.stored("a/b c/ä").version != found.version, "the same bytes, written again, are another file"
    with pytest.raises(FileNotFoundError):
        copies.stored("a/b c")


def test_everything_below_a_directory(storage: HdfsFileSystem, copies: ServerSide) -> None:
    for name in ("live/a", "live/x/y z", "live/x/ä", "live2/b"):
        storage.create(name, name.encode())
    found = copies.stored_below("live")
    assert set(found) == {"a", "x/y z", "x/ä"}
    there = copies.stored("live/x/y z")
    assert (found["x/y z"].size, found["x/y z"].version) == (there.size, there.version)
    assert not copies.stored_below("nothing")
    assert copies.remove_below("live") == 3
    assert copies.remove_below("live") == 0
    assert [entry.name for entry in storage.list("")] == ["live2"]


def test_what_was_pinned_or_nothing(
    storage: HdfsFileSystem, copies: ServerSide, cluster: MiniDfs, directory: str, tmp_path: Path
) -> None:
    storage.create("live/a", DATA)
    storage.create("live/other", DATA[::-1])
    pinned = copies.stored_below("live")["a"]
    other = copies.stored_below("live")["other"]
    assert copies.read_stored("live/a", pinned.version) == DATA
    assert copies.read_stored("live/a", pinned.version, Part(4, 5)) == DATA[4:9]
    assert copies.read_stored("live/a", pinned.version, Part(4, 500)) == DATA[4:]
    assert copies.fetch_stored("live/a", pinned, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    made = copies.copy(Copy("live/a", pinned, "copy"))
    assert (made.size, made.crc32c, storage.read("copy")) == (len(DATA), crc32c_of(DATA), DATA)
    storage.replace("live/a", DATA)
    for wrong in (pinned, other, Stored(len(DATA), "16385/../x")):
        for ask in (
            lambda wrong=wrong: copies.read_stored("live/a", wrong.version),
            lambda wrong=wrong: copies.fetch_stored("live/a", wrong, tmp_path / f"b{wrong.version[:5]}"),
            lambda wrong=wrong: copies.copy(Copy("live/a", wrong, "no")),
            lambda wrong=wrong: copies.copy(Copy("gone", wrong, "no")),
        ):
            with pytest.raises(FileNotFoundError):
                ask()
    assert cluster.names(directory) == ["copy", "live"]


@pytest.mark.parametrize("size", [0, (5 << 20) + 3])
def test_a_file_of_several_blocks_or_of_none(cluster: MiniDfs, directory: str, size: int, tmp_path: Path) -> None:
    """Copied into blocks of another size, it has the same checksum; and more bytes than go through py4j arrive."""
    small = HdfsFileSystem(cluster.authority(), directory, {**IMPATIENT, "dfs.blocksize": str(2 << 20)})
    large = HdfsFileSystem(cluster.authority(), directory, IMPATIENT)
    data = os.urandom(size)
    small.create("live/a", data)
    pinned = small.copies.stored_below("live")["a"]
    made = large.copies.copy(Copy("live/a", pinned, "copy"))
    assert made == large.copies.stored("copy")
    assert (made.size, made.crc32c) == (size, crc32c_of(data))
    assert large.copies.read_stored("copy", made.version) == data
    assert large.copies.fetch_stored("copy", made, tmp_path / "copy")


def test_a_copy_of_other_bytes_is_refused(
    storage: HdfsFileSystem, copies: ServerSide, cluster: MiniDfs, directory: str
) -> None:
    storage.create("a", DATA[::-1])
    mistaken = copies.stored("a")
    with pytest.raises(StorageError, match="came out with other bytes"):
        copies.copy(Copy("a", Stored(mistaken.size, mistaken.version, crc32c_of(DATA)), "copy"))
    storage.create("taken", DATA)
    with pytest.raises(StorageError, match="exists already and holds something else"):
        copies.copy(Copy("a", mistaken, "taken"))
    assert storage.read("taken") == DATA
    assert cluster.names(directory) == ["a", "taken"]


def test_a_copy_that_was_made_before_is_there(storage: HdfsFileSystem, copies: ServerSide) -> None:
    storage.create("a", DATA)
    pinned = copies.stored("a")
    made = copies.copy(Copy("a", pinned, "copy"))
    assert copies.copy(Copy("a", pinned, "copy")) == made
    assert copies.copy(Copy("a", None, "copy")) == made


def test_a_copy_that_fails_leaves_nothing(
    storage: HdfsFileSystem,
    copies: ServerSide,
    cluster: MiniDfs,
    directory: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The DataNodes tell no checksum, or another one; or the source goes while its copy begins."""
    storage.create("a", DATA)
    pinned = copies.stored("a")

    def fails(*_: object) -> str:
        raise JavaFailure("lost", [("SocketTimeoutException", "60000 millis timeout")])

    for crc32c, told in ((fails, "60000 millis timeout"), (lambda *_: "AAAAAA==", "have stored other bytes")):
        with monkeypatch.context() as patched:
            patched.setattr(client_calls, "crc32c", crc32c)
            with pytest.raises(StorageError, match=told):
                copies.copy(Copy("a", pinned, "copy"))
        assert cluster.names(directory) == ["a"]
    real = client_calls.copy

    def goes(*arguments: object) -> tuple[int, str]:
        storage.remove("a")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client_calls, "copy", goes)
    with pytest.raises(FileNotFoundError):
        copies.copy(Copy("a", pinned, "copy"))
    assert cluster.names(directory) == []


def test_copies_leave_threads_for_the_heartbeat(
    storage: HdfsFileSystem, copies: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("a", DATA)
    real, goes_on, begun = client_calls.copy, Event(), Semaphore(0)

    def hangs(*arguments: object) -> tuple[int, str]:
        begun.release()
        assert goes_on.wait(300)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client_calls, "copy", hangs)
    with ThreadPoolExecutor(1) as pool:
        try:
            all_made = pool.submit(copies.copy_many, [Copy("a", None, f"copies/{number}") for number in range(40)])
            for _ in range(copies.concurrency):
                assert begun.acquire(timeout=300)
            storage.replace("control/heartbeat", b"a beat")
            assert storage.read("control/heartbeat") == b"a beat"
            assert not all_made.done()
        finally:
            goes_on.set()
    assert len(storage.list("copies")) == 40


def test_copies_stop_when_they_are_asked_to(
    storage: HdfsFileSystem, copies: ServerSide, cluster: MiniDfs, directory: str, tmp_path: Path
) -> None:
    storage.create("a", DATA)
    with pytest.raises(Stopped):
        copies.copy_many([Copy("a", None, "copy")], lambda: True)
    with pytest.raises(Stopped):
        copies.fetch_stored("a", copies.stored("a"), tmp_path / "a", lambda: True)
    assert cluster.names(directory) == ["a"]
