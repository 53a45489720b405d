"""Savepoints of a job whose live location lies in a bucket: its bytes come from there, and go to wherever they should.

All stores alike.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot, StoredSource
from dagster_ckpt.checkpoint.taking.savepoint_files import write_savepoint
from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.filesystem import FileSystem, ObjectFileSystem, server_side
from dagster_ckpt.filesystem.buckets import bucket as object_store
from tests.helpers.checkpoint.savepoints import described, quiet, saved
from tests.unit.filesystem.buckets.stores import Asked, DisturbedStore, Store, Trouble

#: Larger and smaller than a piece, and small enough for the manifest.
CONTENTS = {f"checkpoint/state/0/{size}.sst": bytes([size % 251]) * size for size in (10, 900, 1000, 1500, 4000)}
INLINE, PIECE, ROOM = 16, 1000, 4500


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setattr("dagster_ckpt.filesystem.scratch.MAX_SCRATCH_BYTES", ROOM)
    monkeypatch.setattr(server_side, "_CHUNK", PIECE)
    return path


def _pinned(bucket: ObjectFileSystem) -> Snapshot:
    store = bucket.copies
    assert store is not None
    for path, data in CONTENTS.items():
        bucket.create(f"live/{path}", data)
    found = store.stored_below("live")
    files = (
        PinnedFile(path, "", of.size, source=StoredSource(store, f"live/{path}", of)) for path, of in found.items()
    )
    return Snapshot(1, tuple(files), Facts(), None, lambda: None)


def _save(target: FileSystem, snapshot: Snapshot) -> CheckpointMetadata:
    return write_savepoint(target, "a" * 32, snapshot, described, quiet(), inline_threshold=INLINE)


def test_it_has_the_bytes_themselves(copying: Store, temporary: Path) -> None:
    target = copying.storage("saved")
    metadata = _save(target, _pinned(copying.storage()))
    assert saved(target, metadata) == CONTENTS
    assert all(file.sha256 for file in metadata.files)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("kind", ["read", "put"])
@pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.RESET, Trouble.LOST, Trouble.BUSY_AFTER])
def test_one_fault_that_passes_by_is_not_noticed(
    disturbed_copying: DisturbedStore, temporary: Path, kind: str, trouble: Trouble
) -> None:
    disturbed_copying.hurry()
    target = disturbed_copying.storage("saved")
    snapshot = _pinned(disturbed_copying.storage())
    struck: list[Asked] = []

    def once(asked: Asked) -> Trouble | None:
        if asked.kind != kind or struck or not asked.name.endswith(".sst"):
            return None
        struck.append(asked)
        return trouble

    disturbed_copying.plan(once)
    metadata = _save(target, snapshot)
    assert struck
    assert saved(target, metadata) == CONTENTS
    assert len(target.list(metadata.name)) == len(CONTENTS), "with _metadata, and one file in it"
    assert not list(temporary.iterdir())


def test_what_spark_deletes_between_two_pieces_drops_the_attempt(
    disturbed_copying: DisturbedStore, temporary: Path
) -> None:
    snapshot = _pinned(disturbed_copying.storage())
    pieces: list[Asked] = []

    def deletes(asked: Asked) -> None:
        if asked.kind == "read" and asked.name.endswith("/4000.sst"):
            pieces.append(asked)
            if len(pieces) == 2:
                disturbed_copying.discard("base/live/checkpoint/state/0/4000.sst")

    disturbed_copying.plan(deletes)
    with pytest.raises(CaptureIncomplete, match=r"4000\.sst is not what was pinned"):
        _save(disturbed_copying.storage("saved"), snapshot)
    assert not [name for name in disturbed_copying.objects() if name.startswith("saved/")]
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("disturbed", ["gs"], indirect=True)
def test_what_comes_side_by_side_is_held_in_memory_within_the_bound(
    disturbed: DisturbedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_MOST_IN_FLIGHT", 2 * PIECE)
    bucket = disturbed.storage()
    files = {file.path: file.source for file in _pinned(bucket).files}
    source = files["checkpoint/state/0/4000.sst"]
    assert source is not None
    disturbed.server.latency = 0.02
    disturbed.server.most_at_once = 0
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(source.fetch, [tmp_path / str(number) for number in range(8)]))
    assert disturbed.server.most_at_once <= 2
