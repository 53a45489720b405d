"""A last checkpoint from what a dead run left behind, so that no work is lost."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.epochs import Choice
from dagster_ckpt.checkpoint.store import CompletedCheckpointStore
from dagster_ckpt.errors import Fenced
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.kinds import position_reader
from dagster_ckpt.spark.state_files import Provider
from dagster_ckpt.spark.streaming_source import StreamingSource

__all__ = ["salvage", "salvageable"]

_log = logging.getLogger(__name__)


def salvageable(catalog: CheckpointCatalog, choice: Choice, providers: Mapping[str, Provider]) -> int | None:
    """The last batch of the live location of ``choice`` when no checkpoint has it yet, else ``None``.

    Raises:
        CorruptMetadata: the newest checkpoint cannot be read.
        CheckpointNotFound: the recorded choice is gone although nothing gave it up.
    """
    if not Path(choice.live).is_dir():
        return None
    newest = catalog.newest()
    if newest.job_id is None:
        return None  # its state was given up
    batch = CheckpointLocation(Path(choice.live), providers).last_committed()
    if batch is None or (newest.metadata is not None and newest.metadata.batch >= batch):
        return None
    return batch


def salvage(
    store: CompletedCheckpointStore, choice: Choice, batch: int, providers: Mapping[str, Provider], pins: Path
) -> None:
    """Take a checkpoint of ``batch`` from the live location of ``choice``, if it is whole.

    Args:
        store: where it goes, under the epoch of the caller.
        choice: of the run before.
        batch: the last that it committed.
        providers: the state store providers whose files are known, by class.
        pins: a directory that does not exist, for pinned files.

    Raises:
        Fenced: a newer run has taken the job over.
    """
    source = StreamingSource(
        CheckpointLocation(Path(choice.live), providers),
        pins,
        position_reader(choice),
        None,
        lambda: None,
        choice.accepted_loss,
    )
    try:
        pending = store.begin()
        snapshot = source.pin(batch)
        try:
            metadata = store.write(pending, snapshot, kind="salvage")
        finally:
            snapshot.release()
    except Fenced:
        raise
    except Exception as error:  # whatever is wrong with what a dead run left, the retained checkpoints are there
        _log.warning(
            "Batch %d of the run before could not be salvaged from %s, going on from the newest checkpoint: %s",
            batch,
            choice.live,
            error,
        )
    else:
        _log.info("Salvaged batch %d of the run before as %s", batch, metadata.name)
    finally:
        shutil.rmtree(pins, ignore_errors=True)
