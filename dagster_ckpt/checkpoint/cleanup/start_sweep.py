"""Deletes files of checkpoint attempts that died: no checkpoint refers to these files, and none ever can.

A file in ``shared/`` has the epoch of its writer in its name. Once an epoch has recorded its choice, every checkpoint
that an earlier epoch still publishes in the lineage is void. So a file that an earlier epoch wrote and no complete
checkpoint of the lineage refers to is unreachable for good. No clock is used, because the age of a file does not tell
whether its writer is still alive.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.format import (
    METADATA_FILE_NAME,
    checkpoint_directory,
    foreign,
    is_checkpoint_file,
    left_alone,
    shared_directory,
    written_by,
)
from dagster_ckpt.checkpoint.taking import CompletedCheckpointStore
from dagster_ckpt.garbage_collector import without_collection

__all__ = ["is_manifest", "left_in", "sweep", "sweep_start", "written_before"]

_log = logging.getLogger(__name__)


def sweep_start(store: CompletedCheckpointStore) -> list[str]:
    """Delete leftovers of earlier epochs in a store's lineage, before its first checkpoint; returns the deleted paths.

    Nothing is deleted while there is an unreadable checkpoint, because it may need any file.

    Raises:
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed; the next start tries again.
    """
    if store.broken:
        return []
    completed = {metadata.checkpoint_id for metadata in (*store.quarantined, *store.retained)}
    return sweep(store.catalog, store.job_id, store.epoch, store.next_id, completed, store.in_use())


@without_collection()
def sweep(
    catalog: CheckpointCatalog,
    job_id: str,
    epoch: int,
    first_id: int,
    completed: Collection[int],
    in_use: Collection[str],
) -> list[str]:
    """Delete leftovers of earlier epochs in a lineage, before the first checkpoint of ``epoch``; returns their paths.

    Manifests are deleted first. The next start finishes an interrupted sweep. Foreign files stay.

    Args:
        catalog: of the job.
        job_id: the lineage.
        epoch: the caller's epoch, which has recorded its choice in the lineage: earlier epochs can complete nothing.
        first_id: the first checkpoint id of ``epoch``.
        completed: the ids of the lineage's complete checkpoints, all of them readable.
        in_use: the names in ``shared/`` that these checkpoints need.

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
    """The content of a ``chk-N``: the paths of files that a run of the job wrote, and the names of foreign files."""
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
    """Whether ``path`` is a manifest, which makes a checkpoint complete."""
    return path.endswith(f"/{METADATA_FILE_NAME}")
