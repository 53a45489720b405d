"""Live locations in the storage that can help nobody any more. They are no checkpoints, and hold none."""

from __future__ import annotations

import re

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.orphans import Orphan
from dagster_ckpt.checkpoint.format.layout import CHECKPOINT_TASK_OWNED_STATE_DIR
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.filesystem import FileSystem

__all__ = ["epoch_of_start", "live_orphans", "remove_live_directories", "stored_before"]

#: Directories of starts, in the working directory and in ``taskowned``: ``{epoch}-{token}``.
_START = re.compile(r"(\d{6,})-[0-9a-f]{8}(?:\.salvage)?")


def epoch_of_start(name: str) -> int | None:
    """The epoch of the start that a directory is of; ``None`` for any other directory."""
    match = _START.fullmatch(name)
    return int(match[1]) if match is not None else None


def stored_before(filesystem: FileSystem, job_name: str, epoch: int) -> list[str]:
    """The directories in the storage of the live locations of starts before ``epoch``."""
    above = f"{job_name}/{CHECKPOINT_TASK_OWNED_STATE_DIR}"
    names = sorted(entry.name for entry in filesystem.list(above) if entry.is_directory)
    return [f"{above}/{name}" for name in names if (start := epoch_of_start(name)) is not None and start < epoch]


def live_orphans(catalog: CheckpointCatalog, epoch: int) -> list[Orphan]:
    """The objects of live locations that nobody will go on from.

    Args:
        catalog: of the job, which is over.
        epoch: its last; of a later one nothing is looked at.
    """
    store = catalog.filesystem.copies
    if store is None:
        return []
    return [
        Orphan(f"{directory}/{name}", stored.size, reason)
        for directory, reason in _dead(catalog, epoch)
        for name, stored in sorted(store.stored_below(directory).items())
    ]


def remove_live_directories(catalog: CheckpointCatalog, epoch: int) -> None:
    """Remove what marks the directories of such locations, after their objects."""
    if (store := catalog.filesystem.copies) is not None:
        for directory, _ in _dead(catalog, epoch):
            store.remove_below(directory)


def _dead(catalog: CheckpointCatalog, epoch: int) -> list[tuple[str, str]]:
    """The directories of such locations, and why."""
    chosen = catalog.choice()
    newest = 0 if chosen is None else chosen[0]
    end = catalog.records.epochs.read_end(newest) if newest else None
    is_settled = end is not None and (end.discarded or end.status == JobStatus.FINISHED)
    found = []
    for directory in stored_before(catalog.filesystem, catalog.job_name, epoch + 1):
        start = epoch_of_start(directory.rpartition("/")[2])
        if start == newest and not is_settled:
            continue  # the next start salvages from it
        reason = "the live location of a start that is over" if start != newest else "its job has ended"
        found.append((directory, reason))
    return found
