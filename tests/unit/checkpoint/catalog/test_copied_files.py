"""Files that a bucket has copied for a checkpoint: known by a checksum, or by their version alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog import file_reader
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import copy_files, materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.errors import CheckpointFileChanged, CheckpointFileMissing, CheckpointNotFound, CorruptCheckpoint
from dagster_ckpt.filesystem import Stored
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST
from tests.helpers.checkpoint.memory import CopyingMemory, UnprovingMemory

CHECKPOINT = f"job/{JOB_ID}/chk-1"
CONTENT = {"state/a": b"first", "state/b": b"second!"}


@pytest.fixture(params=[CopyingMemory, UnprovingMemory], ids=["known by a checksum", "known by a version"])
def bucket(request: pytest.FixtureRequest) -> CopyingMemory:
    made: CopyingMemory = request.param()
    return made


@pytest.fixture
def checkpoint(bucket: CopyingMemory) -> CheckpointMetadata:
    return stored(bucket, CONTENT)


def stored(bucket: CopyingMemory, content: dict[str, bytes]) -> CheckpointMetadata:
    """A checkpoint of copied files."""
    files = []
    for path, data in content.items():
        name = path.replace("/", "-")
        bucket.replace(f"{CHECKPOINT}/{name}", data)
        found = bucket.stored(f"{CHECKPOINT}/{name}")
        files.append(FileEntry(path, len(data), None, reference=name, stored=found))
    metadata = replace(MANIFEST, files=tuple(files))
    bucket.replace(f"{CHECKPOINT}/_metadata", metadata.encode())
    return metadata


def copy(bucket: CopyingMemory, metadata: CheckpointMetadata, told: Callable[[int], object] = print) -> list[Stored]:
    return copy_files(CheckpointCatalog(bucket, "job"), bucket, metadata, metadata.files, "live", told)


def materialize(bucket: CopyingMemory, metadata: CheckpointMetadata, target: Path) -> None:
    materialize_checkpoint(CheckpointCatalog(bucket, "job"), metadata, target)


def test_copies_are_the_files(bucket: CopyingMemory, checkpoint: CheckpointMetadata, tmp_path: Path) -> None:
    told: list[int] = []
    made = copy(bucket, checkpoint, told.append)
    assert {path: bucket.read(f"live/{path}") for path in CONTENT} == CONTENT
    assert made == [bucket.stored(f"live/{path}") for path in CONTENT]
    assert sorted(told) == [5, 7]
    verify_checkpoint(CheckpointCatalog(bucket, "job"), checkpoint)
    materialize(bucket, checkpoint, tmp_path / "target")
    assert {path: (tmp_path / "target" / path).read_bytes() for path in CONTENT} == CONTENT


def test_a_checkpoint_without_copied_files_has_nothing_to_copy(bucket: CopyingMemory) -> None:
    assert copy(bucket, stored(bucket, {})) == []


DAMAGES: dict[str, tuple[bytes | None, type[Exception], str, str]] = {
    "gone": (None, CheckpointFileMissing, "is gone", "is gone"),
    "other bytes": (b"FIRST", CheckpointFileChanged, "was changed", "version 1"),
    "more bytes": (b"first and more", CheckpointFileChanged, "has 14 bytes instead of 5", "version 1"),
}


WAYS: dict[str, Callable[[CopyingMemory, CheckpointMetadata, Path], object]] = {
    "copy": lambda bucket, metadata, _: copy(bucket, metadata),
    "verify": lambda bucket, metadata, _: verify_checkpoint(CheckpointCatalog(bucket, "job"), metadata),
    "materialize": materialize,
}


@pytest.mark.parametrize("read", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name(
    bucket: CopyingMemory,
    checkpoint: CheckpointMetadata,
    tmp_path: Path,
    damage: str,
    read: Callable[[CopyingMemory, CheckpointMetadata, Path], object],
) -> None:
    data, error, by_checksum, by_version = DAMAGES[damage]
    if data is None:
        bucket.remove(f"{CHECKPOINT}/state-a")
    else:
        bucket.replace(f"{CHECKPOINT}/state-a", data)
    told = by_checksum if bucket.tells_checksums else by_version
    with pytest.raises(error, match=f"cannot be restored: .*{CHECKPOINT}/state-a .state/a. .*{told}") as caught:
        read(bucket, checkpoint, tmp_path / "target")
    assert isinstance(caught.value, CorruptCheckpoint)
    assert caught.value.checkpoint == checkpoint.reference
    assert "restore_from: none" in caught.value.hint
    assert "of its 2 files" not in caught.value.message


def test_every_broken_file_is_named_up_to_a_limit(
    bucket: CopyingMemory, checkpoint: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state-a", "state-b"):
        bucket.remove(f"{CHECKPOINT}/{name}")
    with pytest.raises(
        CheckpointFileMissing, match=r"2 of its 2 files are broken: .*state-a .*; .*state-b .*is gone\."
    ):
        copy(bucket, checkpoint)
    monkeypatch.setattr(file_reader, "_MOST_NAMED", 1)
    with pytest.raises(CheckpointFileMissing, match=r"state-a .* is gone; and 1 more\."):
        copy(bucket, checkpoint)


def test_a_checkpoint_that_was_deleted_meanwhile_is_not_broken(
    bucket: CopyingMemory, checkpoint: CheckpointMetadata
) -> None:
    bucket.remove(f"{CHECKPOINT}/state-a")
    bucket.replace(f"{CHECKPOINT}/_metadata", b"what is no manifest is there")
    with pytest.raises(CheckpointFileMissing):
        copy(bucket, checkpoint)
    bucket.remove(f"{CHECKPOINT}/_metadata")
    with pytest.raises(CheckpointNotFound, match="was deleted while its files were read") as caught:
        copy(bucket, checkpoint)
    assert "dagster-ckpt pin job latest" in caught.value.hint


def test_files_at_the_top_and_in_directories_below_one_another(tmp_path: Path) -> None:
    content = {"metadata": b"1", "state/0/a": b"2", "state/b": b"3", "state/0/1/c": b"4"}
    bucket = CopyingMemory()
    materialize(bucket, stored(bucket, content), tmp_path / "new")
    assert {path: (tmp_path / "new" / path).read_bytes() for path in content} == content


def test_a_file_in_the_manifest_itself_is_compared_too() -> None:
    """Otherwise what a mended or hand-made manifest holds would be restored unseen."""
    bucket = CopyingMemory()
    metadata = replace(MANIFEST, files=(FileEntry("state/a", 3, "0" * 64, inline=b"abc"),))
    bucket.replace(f"{CHECKPOINT}/_metadata", metadata.encode())
    with pytest.raises(CheckpointFileChanged, match=r"_metadata \(state/a\) was changed"):
        verify_checkpoint(CheckpointCatalog(bucket, "job"), metadata)
