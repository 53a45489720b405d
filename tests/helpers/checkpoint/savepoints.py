"""Savepoints as the tests see them: what one holds, and which there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot, StoredSource
from dagster_ckpt.checkpoint.taking.progress import Gauge
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import FileSystem
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.manifests import MANIFEST
from tests.helpers.checkpoint.memory import CopyingMemory


def saved(target: FileSystem, metadata: CheckpointMetadata) -> dict[str, bytes]:
    """What a restore would find in a savepoint, by its own directory alone."""
    directory = metadata.name
    stored = CheckpointMetadata.decode(target.read(f"{directory}/{METADATA_FILE_NAME}"), directory)
    assert replace(stored, location=metadata.location) == metadata
    found = {}
    for file in stored.files:
        data = file.inline
        if data is None:
            assert file.reference is not None
            assert "/" not in file.reference, "a savepoint is one flat directory"
            data = target.read(f"{directory}/{file.reference}")
            if file.offset is not None:
                data = data[file.offset : file.offset + file.size]
        found[file.path] = data
    return found


def stored_snapshot(bucket: CopyingMemory, contents: Mapping[str, bytes], seen: FileSystem | None = None) -> Snapshot:
    """A snapshot whose files lie in a store, as far as it is seen through ``seen``, and were pinned there only."""
    store = (seen or bucket).copies
    assert store is not None
    files = []
    for path, data in contents.items():
        bucket.replace(f"live/{path}", data)
        source = StoredSource(store, f"live/{path}", bucket.stored(f"live/{path}"))
        files.append(PinnedFile(path, "", len(data), source=source))
    return Snapshot(1, tuple(files), Facts(), None, lambda: None)


def savepoints(target: FileSystem) -> list[str]:
    """Directories that are savepoints."""
    return sorted(
        entry.name
        for entry in target.list("")
        if entry.is_directory and METADATA_FILE_NAME in {inner.name for inner in target.list(entry.name)}
    )


def described(entries: tuple[FileEntry, ...]) -> CheckpointMetadata:
    return replace(MANIFEST, job_name=JOB, kind="savepoint", files=entries)


def quiet() -> Gauge:
    """Of an attempt whose progress nobody asks for."""
    return Gauge(SystemClock(), lambda *_: None)
