"""Whether the code of a job was changed and may return, as the new version has yet to complete a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control import Choice, End
from dagster_ckpt.checkpoint.format import Upgrade
from dagster_ckpt.errors import CheckpointNotFound, CorruptCheckpoint, CorruptRecord

__all__ = ["pending_upgrade", "taken_back_since"]


def taken_back_since(catalog: CheckpointCatalog, epoch: int, names: Mapping[int, set[str]]) -> End | None:
    """The last end since ``epoch`` by which a version was taken back, from the listing ``names`` of the epochs."""
    for later in sorted((later for later, kinds in names.items() if later >= epoch and "end" in kinds), reverse=True):
        if (end := catalog.records.epochs.read_end(later)) is not None and end.taken_back is not None:
            return end
    return None


def pending_upgrade(catalog: CheckpointCatalog, epoch: int, choice: Choice) -> Upgrade | None:
    """The upgrade that the newest choice is part of, ``None`` once the new version has completed a checkpoint.

    A version that was taken back stays so: an upload of it may complete later. After a cleanup that has deleted what
    the version before would go on from, there is nothing to return to.

    Args:
        catalog: of the job.
        epoch: that recorded ``choice``.
        choice: the newest one.
    """
    upgrade = choice.code.upgrade
    if upgrade is None:
        return None
    names = catalog.records.epochs.names()
    end = taken_back_since(catalog, epoch, names)
    if end is not None and (end.taken_back, end.returns_to) == (choice.code.version, upgrade.before):
        return upgrade
    is_here = (upgrade.checkpoint or "").startswith(f"{choice.job_id}/")
    if is_here and catalog.given_up_since(epoch, names) is not None:
        return None
    return None if _has_completed(catalog, choice, upgrade) else upgrade


def _has_completed(catalog: CheckpointCatalog, choice: Choice, upgrade: Upgrade) -> bool:
    """Whether a query of the new version has completed a checkpoint, which may have been deleted or damaged since.

    What a start has salvaged or repartitioned was there before its query ran.
    """
    with contextlib.suppress(CorruptRecord):
        heartbeat = catalog.records.heartbeat.read()
        completed = None if heartbeat is None else heartbeat.completed
        if completed is not None and completed.epoch >= upgrade.epoch:
            return True
    first = catalog.records.epochs.read_choice(upgrade.epoch) or choice
    for number in reversed(catalog.numbers(choice.job_id)):
        if first.job_id == choice.job_id and number < first.first_id:
            break
        try:
            metadata = catalog.load(choice.job_id, number)
        except CheckpointNotFound:
            continue
        except CorruptCheckpoint:
            return True
        if metadata.epoch >= upgrade.epoch and metadata.kind == "checkpoint":
            return True
    return False
