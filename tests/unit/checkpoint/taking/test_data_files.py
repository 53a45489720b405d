"""The stored files of one attempt: packed small files, copies that the bucket makes, and how far storing has come."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.format.manifest import FileEntry
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, StoredSource
from dagster_ckpt.checkpoint.taking import data_files
from dagster_ckpt.checkpoint.taking.data_files import DataFiles
from dagster_ckpt.checkpoint.taking.progress import (
    CheckpointInProgress,
    Gauge,
    PendingCheckpoint,
    RestoreInProgress,
)
from dagster_ckpt.errors import CaptureIncomplete, CheckpointFailure
from dagster_ckpt.filesystem import Stopped
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem
from tests.helpers.checkpoint.savepoints import quiet


def never() -> bool:
    return False


def local(directory: Path, contents: Sequence[bytes]) -> list[PinnedFile]:
    files = []
    for number, data in enumerate(contents):
        (directory / str(number)).write_bytes(data)
        files.append(PinnedFile(f"state/{number}", str(directory / str(number)), len(data)))
    return files


def content(storage: MemoryFileSystem, entry: FileEntry) -> bytes:
    data = storage.files[f"shared/{str(entry.reference).removeprefix('../shared/')}"]
    begin = entry.offset or 0
    return data[begin : begin + entry.size]


class TestPacks:
    @pytest.mark.parametrize(
        ("sizes", "packs"),
        [((10,), [10]), ((4, 6), [10]), ((4, 7), [4, 7]), ((10, 1), [10, 1]), ((5, 5, 5, 5, 5, 5, 5), [10, 10, 10, 5])],
    )
    def test_a_pack_is_filled_up_to_its_limit(
        self,
        memory: MemoryFileSystem,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        sizes: Sequence[int],
        packs: object,
    ) -> None:
        monkeypatch.setattr(data_files, "MAX_PACK_BYTES", 10)
        monkeypatch.setattr(data_files, "_PACKS", 2)
        contents = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        written = DataFiles(memory, "shared", quiet(), prefix="p-", referred_as="../shared/")
        entries = written.write_packed(local(tmp_path, contents), never)
        assert [content(memory, entry) for entry in entries] == contents
        assert [entry.sha256 for entry in entries] == [hashlib.sha256(data).hexdigest() for data in contents]
        assert [len(memory.files[name]) for name in dict.fromkeys(_names(entries))] == packs
        assert len(memory.files) == len(set(_names(entries)))
        written.undo()
        assert memory.files == {}

    def test_without_files_there_is_no_pack(self, memory: MemoryFileSystem) -> None:
        assert DataFiles(memory, "shared", quiet()).write_packed([], never) == []
        assert memory.files == {}

    def test_a_file_that_changes_while_it_is_packed_is_refused(self, memory: MemoryFileSystem, tmp_path: Path) -> None:
        files = local(tmp_path, [b"first", b"second"])
        (tmp_path / "1").write_bytes(b"second and more")
        with pytest.raises(CheckpointFailure, match="state/1 changed while it was written: 15 bytes instead of 6"):
            DataFiles(memory, "shared", quiet()).write_packed(files, never)

    def test_a_stop_is_heard_between_two_files(self, memory: MemoryFileSystem, tmp_path: Path) -> None:
        asked = iter([False, True])
        with pytest.raises(Stopped):
            DataFiles(memory, "shared", quiet()).write_packed(local(tmp_path, [b"a", b"b"]), lambda: next(asked))


def _names(entries: Sequence[FileEntry]) -> list[str]:
    return [f"shared/{str(entry.reference).removeprefix('../shared/')}" for entry in entries]


class TestCopies:
    def pinned(self, bucket: CopyingMemory, of: CopyingMemory | None = None) -> list[PinnedFile]:
        files = []
        for name in ("a", "b"):
            where = of or bucket
            where.replace(f"live/{name}", name.encode() * 3)
            source = StoredSource(where, f"live/{name}", where.stored(f"live/{name}"))
            files.append(PinnedFile(f"state/{name}", "", 3, source=source))
        return files

    def test_the_bucket_copies_what_it_has(self, tmp_path: Path) -> None:
        bucket, other = CopyingMemory(), CopyingMemory()
        storing = Gauge(ManualClock(), lambda *_: None)
        storing.begin(100)
        files = [*self.pinned(bucket), *self.pinned(bucket, other), *local(tmp_path, [b"here"])]
        written = DataFiles(bucket, "shared", storing, referred_as="../shared/")
        entries = written.write_whole(files[:2], never)
        assert [content(bucket, entry) for entry in entries] == [b"aaa", b"bbb"]
        assert [entry.stored for entry in entries] == [bucket.stored(name) for name in _names(entries)]
        carried = written.write_whole(files[2:], never)
        assert [content(bucket, entry) for entry in carried] == [b"aaa", b"bbb", b"here"]
        assert [entry.stored for entry in carried] == [None, None, None]
        assert storing._arrived == 3 * 4 + 4
        written.undo()
        assert sorted(bucket.files) == ["live/a", "live/b"]

    def test_an_object_that_is_gone_leaves_the_capture_incomplete(self) -> None:
        bucket = CopyingMemory()
        files = self.pinned(bucket)
        bucket.remove("live/b")
        with pytest.raises(CaptureIncomplete):
            DataFiles(bucket, "shared", quiet()).write_whole(files, never)


class TestGauge:
    def test_it_tells_every_ten_seconds(self, clock: ManualClock) -> None:
        told: list[CheckpointInProgress] = []
        storing = Gauge.of_checkpoint(7, clock, told.append)
        clock.advance(100)
        storing.begin(4 << 20)
        for seconds in (9.5, 0.5, 9.5, 0.5):
            clock.advance(seconds)
            storing.add(1 << 19)
        assert told == [
            CheckpointInProgress(7, 1 << 20, 4 << 20, 10),
            CheckpointInProgress(7, 2 << 20, 4 << 20, 20),
        ]
        assert str(told[0]) == "Checkpoint 7: 1.0 of 4.0 MiB are stored after 10 s"
        storing.begin(1)
        clock.advance(10)
        storing.look()
        assert told[-1] == CheckpointInProgress(7, 0, 1, 10)

    def test_a_restore(self) -> None:
        told = str(RestoreInProgress("chk-3", 3 << 19, 2 << 20, 12.4))
        assert told == "chk-3: 1.5 of 2.0 MiB are restored after 12 s"


def test_either_its_publish_or_its_expiry_wins(clock: ManualClock) -> None:
    first, second = (PendingCheckpoint(number, 0.0, 0.0, quiet()) for number in (1, 2))
    assert not first.expired
    first.seal()
    assert not first.expire()
    assert not first.expired
    assert second.expire()
    assert second.expired
    with pytest.raises(Stopped):
        second.seal()
