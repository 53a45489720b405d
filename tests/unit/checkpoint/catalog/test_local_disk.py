"""What a disk of this machine refuses is not taken for the storage's fault, nor for a broken checkpoint."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import read_files
from dagster_ckpt.checkpoint.format.manifest import FileEntry
from dagster_ckpt.errors import StorageError, WorkingDirectoryFailed
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem, local_failure
from dagster_ckpt.filesystem.local_disk import refused_write
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.mounts import mounted

_DATA = bytes(range(256)) * 2000
_HERE = Path("/nowhere/live")


@pytest.fixture
def storage(tmp_path: Path) -> PosixFileSystem:
    filesystem = PosixFileSystem(tmp_path / "storage")
    filesystem.create("one", _DATA)
    filesystem.create("pack", _DATA)
    return filesystem


def entry(path: str, **where: object) -> FileEntry:
    return FileEntry(path, len(_DATA), hashlib.sha256(_DATA).hexdigest(), **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "files",
    [
        [entry("a/one", reference="one")],
        [entry("a/one", reference="pack", offset=0), entry("a/two", reference="pack", offset=0)],
        [entry("a/one", inline=_DATA)],
    ],
    ids=["a file", "a pack", "in the manifest"],
)
def test_a_disk_that_is_full(storage: FileSystem, tmp_path: Path, files: list[FileEntry]) -> None:
    target = tmp_path / "small"
    target.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(target)):
        (target / "a").mkdir()
        with pytest.raises(WorkingDirectoryFailed, match="could not be unpacked to") as raised:
            read_files(storage, files, lambda reference: reference, target)
        assert isinstance(raised.value.__cause__, OSError)
    assert str(target) in raised.value.message
    assert "No space left on device" in raised.value.message
    assert f"{sum(file.size for file in files) / (1 << 20):.1f} MiB" in raised.value.message
    assert "files are free there" in raised.value.message
    assert "working_directory" in raised.value.hint


def test_a_directory_that_was_removed_meanwhile_is_no_broken_checkpoint(storage: FileSystem, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(WorkingDirectoryFailed, match="No such file or directory"):
        read_files(storage, [entry("a/one", reference="one")], lambda reference: reference, target)
    (target / "a").mkdir()
    (broken,) = read_files(storage, [entry("a/one", reference="gone")], lambda reference: reference, target)
    assert broken.what == "is gone"


def test_what_the_storage_says_stays_what_it_says(storage: FileSystem, tmp_path: Path) -> None:
    down = FaultInjectingFileSystem(storage, lambda _: Fail(StorageError("the bucket is down")))
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="the bucket is down") as raised:
        read_files(down, [entry("a/one", reference="one")], lambda reference: reference, tmp_path)
    assert not isinstance(raised.value, WorkingDirectoryFailed)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "Free space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Free space"),
        (OSError(errno.EIO, "Input/output error"), "Free space"),
        (OSError(errno.EMFILE, "Too many open files", str(_HERE / "a")), "ulimit -n"),
        (PermissionError(errno.EACCES, "Permission denied", str(_HERE / "a")), "writable"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/elsewhere/a", None, str(_HERE / "a")), "Free space"),
        (shutil.Error([("/elsewhere/a", str(_HERE / "a"), "[Errno 28] No space left on device")]), "Free space"),
    ],
)
def test_what_is_of_the_working_directory(error: OSError, remedy: str) -> None:
    named = local_failure(error, _HERE)
    assert named is not None
    assert str(_HERE) in named.message
    assert remedy in named.hint
    assert named.recoverable


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/sink/a"),
        PermissionError(errno.EACCES, "Permission denied", "/nowhere/living/a"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError("timed out"),
        StorageError("the bucket is down"),
        KeyError("a"),
    ],
)
def test_what_is_not(error: Exception) -> None:
    assert local_failure(error, _HERE) is None


def test_how_much_room_there_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def statvfs(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_bavail=3, f_frsize=1 << 19, f_favail=1234)

    monkeypatch.setattr("os.statvfs", statvfs)
    failure = refused_write(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "gone" / "too", 5 << 20)
    assert failure is not None
    told = f"of 5.0 MiB could not be unpacked to {tmp_path}/gone/too: No space left on device; 1.5 MiB and 1,234 files"
    assert told in failure.message
    assert asked == [tmp_path], "the nearest directory that is there"
