"""Forgetting the live locations of starts before one that has a complete checkpoint: they can help nobody any more."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from dagster_ckpt.checkpoint.cleanup.live_locations import epoch_of_start, stored_before
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.filesystem.private_directories import remove_entries

__all__ = ["forget_attempts", "forget_stored"]

_log = logging.getLogger(__name__)


def forget_attempts(working_directory: Path, filesystem: FileSystem, job_name: str, epoch: int) -> None:
    """Delete what starts before ``epoch``, which has a complete checkpoint, have left; what stays harms nobody.

    A start that was declared dead and still runs loses its live location with it, and so ends.
    """

    def is_old(name: str) -> bool:
        start = epoch_of_start(name)
        return start is not None and start < epoch

    try:
        remove_entries(working_directory, is_old)
    except OSError as error:
        _log.info("Old live locations in %s are still there: %s", working_directory, error)
    if filesystem.copies is not None:
        # A location has as many objects as state stores have files: the query's checkpoints do not wait for that.
        arguments = (filesystem, job_name, epoch)
        threading.Thread(target=forget_stored, args=arguments, name="dagster-ckpt-forget", daemon=True).start()


def forget_stored(filesystem: FileSystem, job_name: str, epoch: int) -> None:
    """The part of :func:`forget_attempts` that concerns the storage, and takes a while."""
    if (store := filesystem.copies) is None:
        return
    try:
        for directory in stored_before(filesystem, job_name, epoch):
            store.remove_below(directory)
    except OSError as error:
        _log.info("Old live locations in %s are still there, until a later start: %s", filesystem.url, error)
