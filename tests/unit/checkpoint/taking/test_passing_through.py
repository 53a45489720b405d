"""Files that come from one store and go to another pass through the temporary directory, and never fill it."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.file_reader import read_files
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.taking import savepoint_files as writing
from dagster_ckpt.checkpoint.taking.progress import Gauge
from dagster_ckpt.checkpoint.taking.savepoint_files import write_savepoint
from dagster_ckpt.errors import CaptureIncomplete, StorageError
from dagster_ckpt.filesystem import FileSystem, Part, PosixFileSystem, Stopped, Written, server_side
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import INLINE, ManualClock
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem, UnprovingMemory
from tests.helpers.checkpoint.savepoints import described, quiet, saved, stored_snapshot

#: Of three files of this size the temporary directory has room, and of four not.
SIZE, ROOM = 1000, 3500


class Disk:
    """The temporary directory, and the most that was seen in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.most = 0
        self._lock = threading.Lock()

    def look(self) -> int:
        with self._lock:
            total = sum(_size(Path(above) / name) for above, _, names in os.walk(self.path) for name in names)
            self.most = max(self.most, total)
            return total


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # deleted in this moment
        return 0


class Bucket(CopyingMemory):
    """Where the live location lies; what is read of it is on record, and may be answered otherwise."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk
        self.reads: list[str] = []
        self.before_read: Callable[[str], object] = lambda _: None
        self.answer: Callable[[bytes], bytes] = bytes

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        self.disk.look()
        self.reads.append(path)
        self.before_read(path)
        return self.answer(super().read_stored(path, version, part))


class Target(MemoryFileSystem):
    """The user's directory for savepoints, to which files go one after the other."""

    concurrency = 1

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk
        self.before_write: Callable[[], object] = lambda: None

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        self.before_write()
        self.disk.look()
        return super().write(path, source, stop)


class Wide(Target):
    """One to which many go side by side."""

    concurrency = 8


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setattr("dagster_ckpt.filesystem.scratch.MAX_SCRATCH_BYTES", ROOM)
    return Disk(path)


@pytest.fixture
def bucket(disk: Disk) -> Bucket:
    return Bucket(disk)


@pytest.fixture
def target(disk: Disk) -> Target:
    return Target(disk)


def _files(sizes: Sequence[int]) -> dict[str, bytes]:
    return {f"checkpoint/state/0/{number}.sst": bytes([number]) * size for number, size in enumerate(sizes)}


def _save(
    bucket: CopyingMemory,
    target: FileSystem,
    contents: Mapping[str, bytes],
    stop: Callable[[], bool] = lambda: False,
    storing: Gauge | None = None,
) -> CheckpointMetadata:
    snapshot = stored_snapshot(bucket, contents)
    return write_savepoint(
        target, "a" * 32, snapshot, described, storing or quiet(), inline_threshold=INLINE, stop=stop
    )


def test_a_few_are_on_the_disk_at_a_time(bucket: Bucket, disk: Disk) -> None:
    target = Wide(disk)
    # No write begins before three files are here: so many do come side by side.
    together = threading.Barrier(3, timeout=60)
    target.before_write = together.wait
    contents = _files([SIZE] * 12)
    assert saved(target, _save(bucket, target, contents)) == contents
    assert disk.most == 3 * SIZE
    assert disk.look() == 0


def test_one_that_is_larger_than_the_room_goes_alone(bucket: Bucket, disk: Disk) -> None:
    target = Wide(disk)
    contents = _files([SIZE, SIZE, 3 * ROOM, SIZE, SIZE, 2 * ROOM])
    assert saved(target, _save(bucket, target, contents)) == contents
    assert disk.most == 3 * ROOM
    assert disk.look() == 0


@given(sizes=st.lists(st.integers(0, 2 * ROOM), max_size=20), proving=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
def test_whatever_the_sizes(disk: Disk, sizes: list[int], *, proving: bool) -> None:
    disk.most = 0
    bucket, target = CopyingMemory() if proving else UnprovingMemory(), Wide(disk)
    contents = _files(sizes)
    metadata = _save(bucket, target, contents)
    assert saved(target, metadata) == contents
    assert all(file.sha256 for file in metadata.files), "it can be verified wherever it is moved to"
    assert disk.most <= max([ROOM, *sizes])
    assert disk.look() == 0


def test_small_ones_are_packed(bucket: Bucket, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_INLINE_BYTES", 0)
    contents = _files([INLINE] * 40 + [SIZE] * 2)
    metadata = _save(bucket, target, contents)
    assert saved(target, metadata) == contents
    assert len({file.reference for file in metadata.files}) == 1 + 2


def test_one_that_expires_stops_between_two_pieces(
    bucket: Bucket, target: Target, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_side, "_CHUNK", 100)
    with pytest.raises(Stopped):
        _save(bucket, target, _files([SIZE] * 12), lambda: len(bucket.reads) >= 13)
    assert len(bucket.reads) == 13, "one file, and three pieces of the next"
    assert not target.files
    assert disk.look() == 0


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_one_that_expires_stops_between_small_files(
    bucket: Bucket, target: Target, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(writing, "MAX_INLINE_BYTES", inline)
    with pytest.raises(Stopped):
        _save(bucket, target, _files([INLINE] * 40), lambda: len(bucket.reads) >= 3)
    assert len(bucket.reads) == 3
    assert not target.files


@pytest.mark.parametrize("replaced", [False, True])
def test_what_vanishes_while_others_are_written_drops_the_attempt_at_once(
    bucket: Bucket, target: Target, disk: Disk, *, replaced: bool
) -> None:
    contents = _files([SIZE] * 12)

    def by_spark() -> None:
        victim = "live/checkpoint/state/0/4.sst"
        bucket.remove(victim)
        if replaced:
            bucket.replace(victim, b"x" * SIZE)

    target.before_write = by_spark
    with pytest.raises(CaptureIncomplete, match=r"4\.sst is not what was pinned"):
        _save(bucket, target, contents)
    asked_for = [path.rpartition("/")[2] for path in bucket.reads]
    assert asked_for == ["0.sst", "1.sst", "2.sst", "3.sst", "4.sst"], "the others are not waited for"
    assert not target.files
    assert disk.look() == 0


def test_what_vanishes_is_told_and_not_that_others_broke_off(
    bucket: Bucket, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_side, "_CHUNK", 100)
    target = Wide(disk)
    last_is_asked_for = threading.Event()

    def before_read(path: str) -> None:
        if path.endswith("/11.sst"):
            last_is_asked_for.set()
        elif path.endswith("/10.sst"):
            assert last_is_asked_for.wait(60)

    bucket.before_read = before_read
    # It is asked for when another one has been written.
    target.before_write = lambda: bucket.remove("live/checkpoint/state/0/11.sst")
    with pytest.raises(CaptureIncomplete, match=r"11\.sst is not what was pinned"):
        _save(bucket, target, _files([SIZE] * 12))
    assert not target.files
    assert disk.look() == 0


def test_what_comes_as_other_bytes_is_not_stored(bucket: Bucket, target: Target, disk: Disk) -> None:
    bucket.answer = lambda data: data[:-1] + b"x"
    with pytest.raises(CaptureIncomplete, match="do not match the pinned object"):
        _save(bucket, target, _files([SIZE]))
    assert not target.files
    assert disk.look() == 0


@pytest.mark.parametrize("at", range(4))
def test_a_read_that_fails_ends_it_and_leaves_nothing(bucket: Bucket, target: Target, disk: Disk, at: int) -> None:
    asked: list[Operation] = []

    def plan(operation: Operation) -> Fail | None:
        if operation.name != "read_stored":
            return None
        asked.append(operation)
        return Fail() if len(asked) > at else None

    snapshot = stored_snapshot(bucket, _files([SIZE] * 3 + [INLINE]), FaultInjectingFileSystem(bucket, plan))
    with pytest.raises(StorageError, match="injected"):
        write_savepoint(target, "a" * 32, snapshot, described, quiet(), inline_threshold=INLINE)
    assert len(asked) == at + 1
    assert not target.files
    assert disk.look() == 0


def test_it_is_told_between_the_pieces_of_one_file(
    bucket: Bucket, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Passing(ManualClock):
        """Four seconds from one look to the next."""

        def monotonic(self) -> float:
            self.advance(4)
            return super().monotonic()

    monkeypatch.setattr(server_side, "_CHUNK", 100)
    told: list[tuple[int, int, int]] = []
    storing = Gauge(Passing(), lambda stored, total, _: told.append((len(bucket.reads), stored, total)))
    _save(bucket, target, _files([SIZE] * 2), storing=storing)
    assert [item for item in told if 0 < item[0] < 10], "while the first file comes"
    assert [item for item in told if 10 < item[0] < 20], "while the second one comes"
    assert {stored for reads, stored, _ in told if reads < 10} == {0}
    assert {stored for reads, stored, _ in told if 10 < reads < 20} == {SIZE}
    assert {total for _, _, total in told} == {2 * SIZE}


def test_to_a_directory(bucket: Bucket, disk: Disk, tmp_path: Path) -> None:
    target = PosixFileSystem(tmp_path / "savepoints")
    contents = _files([SIZE] * 40)
    assert saved(target, _save(bucket, target, contents)) == contents
    assert 0 < disk.most <= ROOM
    assert disk.look() == 0


def test_a_verification_has_a_few_on_the_disk_at_a_time(disk: Disk) -> None:
    class Read(MemoryFileSystem):
        concurrency = 8
        together = threading.Barrier(3, timeout=60)

        def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
            written = super().fetch(path, target, part)
            self.together.wait()
            disk.look()
            self.together.wait()
            return written

    storage, bucket = Read(), CopyingMemory()
    contents = _files([SIZE] * 12)
    entries = []
    for path, data in contents.items():
        storage.replace(path, data)
        bucket.replace(path, data)
        entries.append(FileEntry(path, len(data), None, reference=path, stored=bucket.stored(path)))
    assert read_files(storage, entries, lambda reference: reference, None) == []
    assert disk.most == 3 * SIZE
    assert disk.look() == 0
