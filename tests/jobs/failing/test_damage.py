"""Checkpoints that are not what was written: refused, named, and the way to the one before works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileChanged,
    CheckpointFileMissing,
    CorruptMetadata,
    CorruptRecord,
    UnknownMetadataVersion,
)

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
    from tests.jobs.harness import Bench

Damage: TypeAlias = "Callable[[Path, FileEntry], None]"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def _flip_in_the_middle(path: Path) -> None:
    _flip(path, path.stat().st_size // 2)


def _flip_in_the_digest(path: Path) -> None:
    _flip(path, path.stat().st_size - 10)


def _next_version(path: Path) -> None:
    document = json.loads(path.read_bytes())
    document["version"] = 5
    path.write_text(json.dumps(document), encoding="utf-8")


def test_a_newest_metadata_that_is_deleted_is_missed(ticked: Bench) -> None:
    """Without a word an older checkpoint was the newest then."""
    _, older, newest = ticked.checkpoints()
    (Path(ticked.catalog.pointer(newest)) / "_metadata").unlink()
    refusal = ticked.refused(CheckpointFileMissing, restore_from="latest")
    assert newest.reference in refusal.message
    assert f"restore_from: {older.reference}" in refusal.hint
    _goes_on_from(ticked, older)


def test_a_damaged_choice_refuses_latest_and_lets_a_checkpoint_be_named(ticked: Bench) -> None:
    newest = ticked.checkpoints()[-1]
    choices = sorted(Path(ticked.catalog.filesystem.url, ticked.catalog.job_name, "control/epochs").glob("*.choice"))
    _flip_in_the_middle(choices[-1])
    refusal = ticked.refused(CorruptRecord, restore_from="latest")
    assert choices[-1].name in refusal.message
    assert "restore_from: {job id}/chk-N" in refusal.hint
    again = ticked.tick(1, restore_from=newest.reference)
    assert again.started.restored == newest
    assert again.completed[-1].checkpoint_id > newest.checkpoint_id
    assert find_newest(ticked.catalog).metadata == again.completed[-1]
    ticked.assert_exact()


@pytest.mark.parametrize(
    ("damage", "error", "says", "way_on"),
    [
        (_truncate, CorruptMetadata, "truncated or was changed", "dagster-ckpt list"),
        *(
            pytest.param(
                damage,
                CorruptMetadata,
                "truncated or was changed",
                "dagster-ckpt list",
                marks=pytest.mark.exhaustive,
            )
            for damage in (_empty, _flip_in_the_middle, _flip_in_the_digest)
        ),
        (_next_version, UnknownMetadataVersion, "version 5; this release reads version 4", "newer release"),
    ],
)
def test_damaged_metadata(
    ticked: Bench, damage: Callable[[Path], None], error: type[CheckpointError], says: str, way_on: str
) -> None:
    _, older, newest = ticked.checkpoints()
    path = Path(ticked.catalog.pointer(newest)) / "_metadata"
    damage(path)
    for pointer in ("latest", newest.reference, str(path)):
        refusal = ticked.refused(error, restore_from=pointer)
        assert str(path) in refusal.message
        assert says in refusal.message
        assert way_on in refusal.hint
        if error is CorruptMetadata and pointer == "latest":
            assert "fallback_to_older: true" in refusal.hint
    assert not ticked.catalog.records.quarantine.names(), "nobody has asked for that"
    _goes_on_from(ticked, older)


def test_metadata_that_was_put_back(ticked: Bench) -> None:
    newest = ticked.checkpoints()[-1]
    path = Path(ticked.catalog.pointer(newest)) / "_metadata"
    whole = path.read_bytes()
    _truncate(path)
    ticked.refused(CorruptMetadata)
    path.write_bytes(whole)
    assert ticked.tick(1).started.restored == newest
    ticked.assert_exact()


def _remove(path: Path, entry: FileEntry) -> None:
    path.unlink()


def _shorten(path: Path, entry: FileEntry) -> None:
    path.write_bytes(path.read_bytes()[: (entry.offset or 0) + entry.size - 1])


def _change(path: Path, entry: FileEntry) -> None:
    _flip(path, (entry.offset or 0) + entry.size // 2)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (_remove, CheckpointFileMissing, "is gone"),
        (_shorten, CheckpointFileChanged, "bytes instead of"),
        (_change, CheckpointFileChanged, "was changed"),
    ],
)
@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["whole", "packed"])
def test_a_damaged_data_file(
    ticked: Bench, damage: Damage, error: type[CheckpointError], says: str, *, packed: bool
) -> None:
    """Only files that the checkpoint before does not need, so that there is a way on."""
    ticked.tick(1, ticked.job(inline_threshold=20 * 1024 if packed else 1))
    *_, older, newest = ticked.checkpoints()
    entry, path = _own_file(ticked, newest, older, packed=packed)
    damage(path, entry)
    refusal = ticked.refused(error)
    assert str(path) in refusal.message
    if damage is _change or not packed:
        assert entry.path in refusal.message  # else any file of the pack may be the one that is named
    assert newest.name in refusal.message
    assert says in refusal.message
    assert f"restore_from: {older.reference}" in refusal.hint
    assert f"batch {older.batch} instead of {newest.batch}" in refusal.hint
    assert f"dagster-ckpt verify tiny {older.reference}" in refusal.hint
    assert "fallback_to_older: true" in refusal.hint
    assert ticked.refused(error, restore_from=newest.reference).message == refusal.message
    _goes_on_from(ticked, older)


def test_the_only_checkpoint_is_damaged(bench: Bench) -> None:
    bench.tick(2)
    (only,) = bench.checkpoints()
    entry = next(entry for entry in only.files if entry.reference is not None)
    _path(bench, only, entry).unlink()
    refusal = bench.refused(CheckpointFileMissing)
    assert "no older checkpoint" in refusal.hint
    assert "restore_from: none" in refusal.hint


def _goes_on_from(bench: Bench, older: CheckpointMetadata) -> None:
    again = bench.tick(1, restore_from=older.reference)
    assert again.started.restored == older
    assert again.completed[-1].checkpoint_id > older.checkpoint_id + 1  # the id of the broken one is not used again
    assert find_newest(bench.catalog).metadata == again.completed[-1]
    verify_checkpoint(bench.catalog, again.completed[-1])  # it does not lean on what is broken
    bench.assert_exact()


def _own_file(
    bench: Bench, newest: CheckpointMetadata, older: CheckpointMetadata, *, packed: bool
) -> tuple[FileEntry, Path]:
    for entry in reversed(newest.files):
        own = entry.reference is not None and entry.reference not in older.references
        if own and (entry.offset is not None) == packed and entry.size > 1:
            return entry, _path(bench, newest, entry)
    raise AssertionError("the newest checkpoint has no such file of its own")


def _path(bench: Bench, metadata: CheckpointMetadata, entry: FileEntry) -> Path:
    assert entry.reference is not None
    return bench.storage / "tiny" / metadata.job_id / entry.reference.removeprefix("../")
