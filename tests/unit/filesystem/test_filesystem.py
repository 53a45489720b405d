from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt.errors import (
    InvalidConfiguration,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import DriverMemory, FileSystem, PosixFileSystem, memory, open_filesystem
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Flip, Lie, Operation
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.orchestration.vault import Vault


@pytest.fixture
def disk(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "base" / "storage")


class TestPosix(FileSystemContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> FileSystem:
        return PosixFileSystem(tmp_path / "storage")


@pytest.mark.parametrize("what", ["a pipe", "a device"])
def test_what_never_ends_is_no_file(disk: PosixFileSystem, tmp_path: Path, what: str) -> None:
    """Whoever reads a pipe waits for a writer, and /dev/zero fills the memory."""
    disk.create("job/sound", b"record")
    path = disk.local("job/heartbeat")
    if what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")  # /dev/zero would fill the memory where this test fails
    fetch = partial(disk.fetch, target=tmp_path / "copy")
    reads: list[Callable[[str], object]] = [disk.read, disk.checksum, disk.read_if_there, fetch]
    for read in reads:
        with pytest.raises(StorageError, match=r"heartbeat is a pipe or a device") as caught:
            _within_a_moment(partial(read, "job/heartbeat"))
        assert "delete what is there" in caught.value.hint
    assert disk.read("job/sound") == b"record"


def _within_a_moment(read: Callable[[], object]) -> None:
    """Raises what ``read`` raises; a ``read`` that does not return is interrupted."""

    def end(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class TestPosixCopyingByteByByte(FileSystemContract):
    """As long as what is asked of one buffer is kept with any other."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> FileSystem:
        return PosixFileSystem(tmp_path / "storage", write_buffer_size=4096)


class TestFaultInjectingWithoutFaults(FileSystemContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> FileSystem:
        return FaultInjectingFileSystem(PosixFileSystem(tmp_path / "storage"))


class TestMemory(FileSystemContract):
    @pytest.fixture
    def storage(self) -> FileSystem:
        return memory.MemoryFileSystem()


class TestDriverMemory(FileSystemContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> FileSystem:
        return DriverMemory(PosixFileSystem(tmp_path / "control"), "control")


class TestCustom(FileSystemContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> FileSystem:
        return Vault(str(tmp_path / "vault"))


def test_of_a_drivers_memory_only_control_is_on_the_disk(tmp_path: Path) -> None:
    storage = DriverMemory(PosixFileSystem(tmp_path), "control")
    storage.create("job/control/epochs/e-1", b"claim")
    storage.create("job/0123/chk-1/_metadata", b"manifest")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "job/control/epochs/e-1"
    ]
    assert {entry.name for entry in storage.list("job")} == {"control", "0123"}
    copied = pickle.loads(pickle.dumps(storage))
    assert {entry.name for entry in copied.list("job")} == {"control"}, "another process has no part in the memory"
    assert not storage.is_durable


@pytest.mark.parametrize(("buffer", "reads"), [(4096, 4), (1 << 14, 1), (1 << 20, 1)])
def test_the_write_buffer_is_what_is_copied_at_a_time(tmp_path: Path, buffer: int, reads: int) -> None:
    (tmp_path / "source").write_bytes(b"x" * (1 << 14))
    asked: list[int] = []
    storage = PosixFileSystem(tmp_path / "storage", write_buffer_size=buffer)
    storage.write("f", tmp_path / "source", lambda: bool(asked.append(0)))  # type: ignore[func-returns-value]
    assert len(asked) == reads


def test_a_file_is_not_deleted_as_a_directory(disk: PosixFileSystem) -> None:
    disk.create("f", b"x")
    with pytest.raises(StorageError, match="Could not delete"):
        disk.remove_directory("f")
    assert disk.read("f") == b"x"


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
        assert open_filesystem(f"file://{tmp_path}/a%20#?b").url == f"{tmp_path}/a%20#?b"

    @pytest.mark.parametrize("location", ["", "/", "file:///"])
    def test_no_directory(self, location: str) -> None:
        with pytest.raises(InvalidConfiguration) as raised:
            open_filesystem(location)
        assert raised.value.hint

    def test_another_scheme_is_refused_without_its_credentials(self) -> None:
        with pytest.raises(InvalidConfiguration, match="'maprfs'") as raised:
            open_filesystem("maprfs://user:secret@bucket/path?token=hidden#fragment")
        assert "secret" not in str(raised.value)
        assert "hidden" not in str(raised.value)

    def test_it_can_be_sent_to_another_process(self, disk: PosixFileSystem) -> None:
        disk.create("f", b"x")
        copied = pickle.loads(pickle.dumps(disk))
        assert copied.read("f") == b"x"
        assert repr(copied) == repr(disk)


@pytest.mark.parametrize(
    "location",
    [
        "s3://[x",
        "s3://user:secret@[x",
        "gs://user:secret@bucket:port/x",
        "hdfs://namenode:99999/x",
        "file://[x",
        "~no-such-user/x",
        "/a\0b",
        "file:///a\0b",
        "file://var/db",
        "file:a",
        "file:~/a",
        " file:///a",
        "\ts3://bucket/a",
        "gs://bucket/a\nb",
        "hdfs://namenode/a\tb",
        "abfs://data@mine.dfs.core.windows.net/a./b",
        "a:b",
        f"/{'x' * 256}",
        "/x" * 5000,
        "/\ud800",
        "gs://bucket/\udcff",
        "",
    ],
)
def test_what_is_no_path_and_no_url_is_refused(location: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        open_filesystem(location)
    assert caught.value.hint
    assert "secret" not in str(caught.value)
