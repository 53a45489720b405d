"""Whether the code of a job was changed and the new version has yet to complete a checkpoint."""

from __future__ import annotations

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control import Choice, Upgrade

__all__ = ["pending_upgrade"]


def pending_upgrade(catalog: CheckpointCatalog, choice: Choice) -> Upgrade | None:
    """The upgrade that the newest choice is part of, ``None`` once the new version has completed a checkpoint."""
    upgrade = choice.code.upgrade
    if upgrade is None:
        return None
    completed, _ = catalog.completed(choice.job_id)
    # What the first start has salvaged of the version before is of its epoch, and no proof of the new version.
    proven = any(item.epoch >= upgrade.epoch and item.reference != upgrade.checkpoint for item in completed)
    return None if proven else upgrade
