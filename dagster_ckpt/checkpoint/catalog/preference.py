"""What a recovery goes on from where savepoints count, too: ``prefer_checkpoint_for_recovery=False``, as in Flink.

Only savepoints that the newest start of the job took are looked at: their line is the one the job is on. What an older
start took was weighed when the newer one chose, and is abandoned if that chose an earlier checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, Newest
from dagster_ckpt.checkpoint.catalog.newest import last_known
from dagster_ckpt.checkpoint.control.epochs import NOTHING
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.manifest import SAVEPOINT, CheckpointMetadata
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound

__all__ = ["fallback_of", "newest_preferred"]

_log = logging.getLogger(__name__)


def newest_preferred(catalog: CheckpointCatalog, *, prefer_checkpoint: bool) -> Newest:
    """What an automatic recovery goes on from.

    Args:
        catalog: the job's checkpoints.
        prefer_checkpoint: whether savepoints do not count. If they do, the newest one that is there is gone on from
            where it is newer than every completed checkpoint. It stays the user's, and the lineage stays the same.

    Raises:
        CorruptMetadata: what must be the newest cannot be read; an older one is never taken silently.
        CorruptRecord: a record that tells what is the newest cannot be read.
        CheckpointNotFound: the recorded choice is gone although nothing gave it up.
    """
    chosen = catalog.choice()
    if prefer_checkpoint or chosen is None or catalog.given_up() is not None:
        return catalog.newest()
    epoch, choice = chosen
    known = RecordedSavepoints(catalog.filesystem, catalog.job_name).taken_in(epoch)
    taken = [savepoint for savepoint in known if savepoint.job_id == choice.job_id]
    last = max(catalog.last_completed(choice.job_id), last_known(catalog, epoch, choice)) if taken else 0
    return _newest_of(catalog, [savepoint for savepoint in taken if savepoint.checkpoint_id > last])


def fallback_of(newest: Newest) -> str | None:
    """What to put on record as the ``fallback`` of a choice; ``None`` where there is none."""
    otherwise = newest.otherwise
    if otherwise is None:
        return None
    try:
        while otherwise is not None:
            newest = otherwise()
            otherwise = newest.otherwise
    except (CheckpointError, OSError) as error:
        _log.warning("There is nothing to fall back on if the savepoint should go: %s", _first_line(error))
        return None
    return NOTHING if newest.metadata is None else newest.metadata.reference


def _newest_of(catalog: CheckpointCatalog, newer: Sequence[RecordedSavepoint]) -> Newest:
    """The first of ``newer`` that can be read, else the newest checkpoint."""
    for position, savepoint in enumerate(newer, start=1):
        try:
            metadata = _read(catalog, savepoint)
        except (CheckpointError, OSError) as error:
            _log.warning(
                "Savepoint %s, which is newer than every checkpoint, is passed over: %s",
                savepoint.reference,
                _first_line(error),
            )
            continue
        return Newest(
            metadata,
            savepoint.job_id,
            f"{metadata.name} is newer than every complete checkpoint (epoch {savepoint.epoch}), and no checkpoint is "
            "preferred",
            lambda: _newest_of(catalog, newer[position:]),  # noqa: B023 - of the iteration that returns
        )
    return catalog.newest()


def _read(catalog: CheckpointCatalog, savepoint: RecordedSavepoint) -> CheckpointMetadata:
    metadata = catalog.resolve(savepoint.reference)
    if (metadata.kind, metadata.job_id, metadata.key) != (SAVEPOINT, savepoint.job_id, savepoint.key):
        raise CheckpointNotFound(f"{metadata.reference} lies there now, of epoch {metadata.epoch}.")
    return metadata


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
