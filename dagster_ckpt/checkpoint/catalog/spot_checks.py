"""Verifies a checkpoint bit by bit: that every file is there, and the content of as many as one look may cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.format import CheckpointMetadata, FileEntry

__all__ = ["SpotCheck", "spot_check"]


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """What one look at a checkpoint has read.

    Attributes:
        files: how many files were read.
        bytes: their size.
        until: the name of the last one; the next look goes on after it.
        share: the part of the checkpoint's bytes that were read, from 0 to 1.
    """

    files: int
    bytes: int
    until: str
    share: float


def spot_check(
    catalog: CheckpointCatalog, metadata: CheckpointMetadata, *, after: str, most_files: int, most_bytes: int
) -> SpotCheck:
    """Make sure that every file of a checkpoint is listed, and that the next ones are what was written.

    The files are read in the order of their names, from the one after ``after`` on and round. So successive looks read
    every file, whatever the checkpoint is that is the newest at each look.

    Args:
        catalog: the job's checkpoints.
        metadata: the checkpoint.
        after: the ``until`` of the look before; empty for the first.
        most_files: how many files are read at most.
        most_bytes: how many bytes are read at most; one file is read in any case.

    Raises:
        CheckpointNotFound: the checkpoint was deleted meanwhile.
        CheckpointFileMissing: a file is gone; every broken file that was found is named.
        CheckpointFileChanged: a file is not what was written.
        StorageError: the storage failed.
    """
    missing = tuple(islice(_missing(catalog, metadata), most_files))
    in_order = sorted(metadata.files, key=lambda file: (file.path <= after, file.path))
    chosen: list[FileEntry] = []
    size = 0
    for file in in_order:
        if chosen and (len(chosen) == most_files or size + file.size > most_bytes):
            break
        chosen.append(file)
        size += file.size
    gone = {file.path for file in missing}
    read = (*missing, *(file for file in chosen if file.path not in gone))
    verify_checkpoint(catalog, replace(metadata, files=read))
    share = size / metadata.size if metadata.size else 1.0
    return SpotCheck(len(chosen), size, chosen[-1].path if chosen else "", share)


def _missing(catalog: CheckpointCatalog, metadata: CheckpointMetadata) -> Iterator[FileEntry]:
    """The files that the listing of their directory does not show."""
    storage = catalog.storage_of(metadata)
    listed: dict[str, set[str]] = {}
    for file in metadata.files:
        if file.reference is None:
            continue
        directory, _, name = catalog.stored_path(metadata, file.reference).rpartition("/")
        if directory not in listed:
            listed[directory] = {entry.name for entry in storage.list(directory)}
        if name not in listed[directory]:
            yield file
