"""Pins a checkpoint beside a running job, which may be deleting the checkpoint at the same moment.

The user's process records the pin and then looks for a deletion. The job records the deletion and then looks for pins
(``DeletionLog.delete``). So at least one of them sees the other, and a checkpoint that was reported as pinned stays.
"""

from __future__ import annotations

import uuid

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control import Pin
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration

__all__ = ["pin_checkpoint", "unpin_checkpoint"]


def pin_checkpoint(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata, reason: str, clock: Clock) -> Pin:
    """Keep a completed checkpoint until it is unpinned.

    Raises:
        InvalidConfiguration: ``checkpoint`` is a savepoint.
        CheckpointNotFound: the checkpoint is being deleted, or has been.
        StorageError: the storage failed; the checkpoint may be pinned nevertheless.
    """
    if checkpoint.location is not None:
        raise InvalidConfiguration(
            f"{checkpoint.location} is a savepoint: unless a job claims it, only `dagster-ckpt dispose` deletes it.",
            hint="To keep a savepoint, restore it with claim_mode NO_CLAIM. See what can be pinned with "
            f"`dagster-ckpt list {catalog.job_name} {catalog.filesystem.path_option}`.",
        )
    pins = catalog.records.pins
    pin = Pin(checkpoint.reference, reason, iso(clock.time()), uuid.uuid4().hex)
    pins.add(pin)
    try:
        # Look for deletions first, then load: a deletion without a record has removed the manifest.
        for deletion in catalog.records.deletions.pending():
            if deletion.job_id == checkpoint.job_id and checkpoint.checkpoint_id in deletion.checkpoints:
                raise CheckpointNotFound(
                    f"{checkpoint.reference} is being deleted ({deletion.reason}).",
                    hint="Pin another checkpoint; "
                    f"`dagster-ckpt list {catalog.job_name} {catalog.filesystem.path_option}` shows them.",
                )
        catalog.load(checkpoint.job_id, checkpoint.checkpoint_id)
    except CheckpointNotFound:
        pins.remove(pin)
        raise
    return pin


def unpin_checkpoint(catalog: CheckpointCatalog, pointer: str) -> str:
    """Remove all pins of the checkpoint that ``pointer`` names; from then on retention may delete the checkpoint.

    Returns:
        ``{job id}/chk-N``.

    Raises:
        CheckpointNotFound: no pinned checkpoint has that name.
    """
    pins = catalog.records.pins
    pinned = pins.pinned()
    # The pointer is matched with the pins only: the checkpoint may have been deleted by hand, and its pin must go too.
    named = [reference for reference in pinned if pointer in {reference, reference.partition("/")[2]}]
    if len(named) > 1:
        chosen = catalog.choice()
        named = [reference for reference in named if chosen is not None and reference.startswith(chosen[1].job_id)]
    if not named:
        raise CheckpointNotFound(
            f"{pointer} of job {catalog.job_name!r} is not pinned; pinned are: {', '.join(sorted(pinned)) or 'none'}.",
            hint="Name one of the pinned checkpoints, by job id and number, as `dagster-ckpt list "
            f"{catalog.job_name} {catalog.filesystem.path_option}` shows them.",
        )
    pins.clear(named[0])
    return named[0]
