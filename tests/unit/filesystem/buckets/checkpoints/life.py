"""What a job does with its storage, from the first checkpoint to the run after the crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import FileSystem
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state


def live(storage: Callable[[], FileSystem], home: Path) -> None:
    """Take and subsume checkpoints, vanish, and go on from what is stored; everything promised is there each time."""
    pins, ledger = Pins(home), Ledger()
    for first in (1, 4):
        filesystem = storage()
        run = Run(filesystem, ledger, pins).start()
        for step in range(first, first + 3):
            run.checkpoint(state(step), step)
            run.subsume(2)
        ledger.examine(filesystem)
        catalog = CheckpointCatalog(filesystem, JOB)
        newest = find_newest(catalog).metadata
        assert newest is not None
        assert newest.batch == first + 2
        assert len(run.store.retained) == 2
        for metadata in run.store.retained:
            verify_checkpoint(catalog, metadata)
