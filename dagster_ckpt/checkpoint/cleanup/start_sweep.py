"""Deleting what attempts that died have left: nothing refers to it, and nothing can any more.

A file in ``shared/`` carries the epoch of its writer in its name. Once an epoch has recorded its choice, whatever an
earlier one still publishes in the lineage is void; so what no complete checkpoint of the lineage refers to, and an
earlier epoch wrote, is unreachable for good. No clock is asked: how old a file is says nothing about who still writes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.format.file_names import foreign, is_checkpoint_file, left_alone, written_by
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME, checkpoint_directory, shared_directory
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore

__all__ = ["is_manifest", "left_in", "sweep", "sweep_start", "written_before"]

_log = logging.getLogger(__name__)


def sweep_start(store: CompletedCheckpointStore) -> list[str]:
    """Delete what earlier epochs left unfinished in a store's lineage, before its first checkpoint; what was deleted.

    Nothing, while there is a checkpoint that cannot be read: it may need any of it.

    Raises:
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed; the next start tries again.
    """
    if store.broken:
        return []
    completed = {metadata.checkpoint_id for metadata in (*store.quarantined, *store.retained)}
    return sweep(store.catalog, store.job_id, store.epoch, store.next_id, completed, store.in_use())


def sweep(
    catalog: CheckpointCatalog,
    job_id: str,
    epoch: int,
    first_id: int,
    completed: Collection[int],
    in_use: Collection[str],
) -> list[str]:
    """Delete what earlier epochs left behind in a lineage, before the first checkpoint of ``epoch``; what was deleted.

    What makes a checkpoint complete goes first. Broken off, the next start finishes it. What no run has named stays.

    Args:
        catalog: of the job.
        job_id: the lineage.
        epoch: the caller's, which has recorded its choice in the lineage, so that what came before it is settled.
        first_id: the first checkpoint id of ``epoch``.
        completed: the ids of the complete checkpoints of the lineage; every one of them can be read.
        in_use: the names in ``shared/`` that these need.

    Raises:
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    storage, shared = catalog.filesystem, shared_directory(catalog.job_name, job_id)
    unfinished = [
        checkpoint_directory(catalog.job_name, job_id, number)
        for number in catalog.numbers(job_id)
        if number < first_id and number not in completed
    ]
    paths = []
    for directory in unfinished:
        own, others = left_in(catalog, directory)
        paths += own
        if others:
            _log.warning("%s", left_alone(storage, directory, others))
    paths += [f"{shared}/{name}" for name in written_before(catalog, job_id, epoch) if name not in in_use]
    paths.sort(key=lambda path: not is_manifest(path))
    if paths:
        catalog.records.epochs.check(epoch)
    for path in paths:
        storage.remove(path)
    for directory in sorted({path.rpartition("/")[0] for path in paths} - {shared}):
        storage.remove_directory(directory)
    return paths


def left_in(catalog: CheckpointCatalog, directory: str) -> tuple[list[str], list[str]]:
    """What a ``chk-N`` holds: the paths of files that a run has put there, and the names of all else."""
    entries = catalog.filesystem.list(directory)
    own = [f"{directory}/{entry.name}" for entry in entries if not foreign([entry], is_checkpoint_file)]
    return own, foreign(entries, is_checkpoint_file)


def written_before(catalog: CheckpointCatalog, job_id: str, epoch: int) -> list[str]:
    """The names in ``shared/`` of a lineage that epochs before ``epoch`` wrote."""
    found = []
    for entry in catalog.filesystem.list(shared_directory(catalog.job_name, job_id)):
        writer = None if entry.is_directory else written_by(entry.name)
        if writer is not None and writer < epoch:
            found.append(entry.name)
    return found


def is_manifest(path: str) -> bool:
    """Whether what lies there makes a checkpoint complete."""
    return path.endswith(f"/{METADATA_FILE_NAME}")
