"""Restoring files that the store had copied for a checkpoint: it copies them again, and their bytes stay with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import BrokenFile, compared_copy, gone, unpinned
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.filesystem import Copy, ServerSide, Stored, unheard

__all__ = ["copy_files"]


def copy_files(
    catalog: CheckpointCatalog,
    store: ServerSide,
    metadata: CheckpointMetadata,
    files: Sequence[FileEntry],
    directory: str,
    told: Callable[[int], object] = unheard,
) -> list[Stored]:
    """Copy files of a checkpoint below a fresh directory of the same storage; what each copy is.

    Each copy is compared by size and CRC32C (and MD5, where the store knows it) with what the manifest says. A file of
    which the manifest has no checksum is copied only if it is the very object that was written for the checkpoint.

    Args:
        catalog: of the job.
        store: its storage.
        metadata: the checkpoint.
        files: those of its files that the store had copied for it.
        directory: where they go.
        told: is told the size of each, on several threads.

    Raises:
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
        StorageError: the storage failed.
    """

    def copied(file: FileEntry) -> Stored | BrokenFile:
        path = catalog.stored_path(metadata, file.reference or "")
        where = f"{catalog.filesystem.url}/{path}"
        # Only where nothing else is known of the version on record: else a job's directory can be copied elsewhere, and
        # still restores.
        pinned = None if file.stored is None or file.stored.has_checksum else file.stored
        try:
            if pinned is not None and (broken := unpinned(store, file, path, where)) is not None:
                return broken
            made = store.copy(Copy(path, pinned, f"{directory}/{file.path}"))
        except FileNotFoundError:
            return gone(file, where)
        told(file.size)
        return compared_copy(file, made, where) or made

    if not files:
        return []
    with ThreadPoolExecutor(min(store.concurrency, len(files)), "dagster-ckpt-copy") as pool:
        found = list(pool.map(copied, files))
    if broken := [item for item in found if isinstance(item, BrokenFile)]:
        raise catalog.refusal(metadata, broken)
    return [item for item in found if isinstance(item, Stored)]
