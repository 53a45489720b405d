"""Live locations that no start can use any more, on a disk and in the storage. A live location is not a checkpoint."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.orphans import Orphan
from dagster_ckpt.checkpoint.format import CHECKPOINT_TASK_OWNED_STATE_DIR
from dagster_ckpt.config import JobStatus
from dagster_ckpt.filesystem import FileSystem, remove_dead_scratch, remove_entries

__all__ = [
    "epoch_of_start",
    "forget_live_locations",
    "forget_stored",
    "live_orphans",
    "remove_live_directories",
    "stored_before",
]

_log = logging.getLogger(__name__)

_LATER = "Old live locations in %s are still there, until a later start: %s"
#: The directory of a start, in the working directory or in ``taskowned``: ``{epoch}-{token}``.
_START = re.compile(r"(\d{6,})-[0-9a-f]{8}(?:\.salvage)?")


def epoch_of_start(name: str) -> int | None:
    """The epoch of the start that a directory belongs to; ``None`` for any other directory."""
    match = _START.fullmatch(name)
    return int(match[1]) if match is not None else None


def stored_before(filesystem: FileSystem, job_name: str, epoch: int) -> list[str]:
    """The directories in the storage with live locations of starts before ``epoch``."""
    above = f"{job_name}/{CHECKPOINT_TASK_OWNED_STATE_DIR}"
    names = sorted(entry.name for entry in filesystem.list(above) if entry.is_directory)
    return [f"{above}/{name}" for name in names if (start := epoch_of_start(name)) is not None and start < epoch]


def live_orphans(catalog: CheckpointCatalog, epoch: int) -> list[Orphan]:
    """The objects of live locations that no start will use.

    Args:
        catalog: of the job, which is over.
        epoch: the last epoch of the job; live locations of later epochs are ignored.
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
    """Remove the directories of such live locations, after their objects."""
    if (store := catalog.filesystem.copies) is not None:
        for directory, _ in _dead(catalog, epoch):
            store.remove_below(directory)


def _dead(catalog: CheckpointCatalog, epoch: int) -> list[tuple[str, str]]:
    """The directories of live locations that no start will use, and why."""
    chosen = catalog.choice()
    newest = 0 if chosen is None else chosen[0]
    end = catalog.records.epochs.read_end(newest) if newest else None
    is_settled = end is not None and (end.discarded or end.status == JobStatus.FINISHED)
    found = []
    for directory in stored_before(catalog.filesystem, catalog.job_name, epoch + 1):
        start = epoch_of_start(directory.rpartition("/")[2])
        if start == newest and not is_settled:
            continue  # the next start salvages from this live location
        reason = "the live location of a start that is over" if start != newest else "its job has ended"
        found.append((directory, reason))
    return found


def forget_live_locations(
    working_directory: Path, filesystem: FileSystem, job_name: str, epoch: int, choice: int | None = None
) -> None:
    """Delete what starts before ``epoch`` have left and no start will use; what stays harms nobody.

    A start that was declared dead and still runs loses its live location with it, and so ends.

    Args:
        working_directory: of the job.
        filesystem: the job's storage.
        job_name: the job's stable name.
        epoch: of the start that deletes.
        choice: the epoch of the newest choice, whose live location may be salvaged; ``None`` once ``epoch`` has a
            complete checkpoint.
    """

    def is_useless(name: str) -> bool:
        start = epoch_of_start(name)
        return start is not None and start < epoch and start != choice

    try:
        remove_entries(working_directory, is_useless)
        remove_dead_scratch(working_directory)
    except OSError as error:
        _log.info("Old live locations in %s are still there: %s", working_directory, error)
    if filesystem.copies is not None:
        # A location has as many objects as state stores have files: the query's checkpoints do not wait for that.
        arguments = (filesystem, job_name, epoch, choice)
        thread = threading.Thread(target=forget_stored, args=arguments, name="dagster-ckpt-forget", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there can be no more threads
            _log.info(_LATER, filesystem.url, error)


def forget_stored(filesystem: FileSystem, job_name: str, epoch: int, choice: int | None = None) -> None:
    """The part of :func:`forget_live_locations` that concerns the storage, and takes a while."""
    if (store := filesystem.copies) is None:
        return
    try:
        for directory in stored_before(filesystem, job_name, epoch):
            if choice is None or epoch_of_start(directory.rpartition("/")[2]) != choice:
                store.remove_below(directory)
    except OSError as error:
        _log.info(_LATER, filesystem.url, error)
