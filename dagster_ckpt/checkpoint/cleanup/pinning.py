"""Pinning a checkpoint beside a running job, which may be deleting it at the same moment.

Whoever pins writes the pin and then looks for a deletion; whoever deletes writes the deletion down and then looks for
pins (``DeletionLog.delete``). So at least one of them sees the other, and what
was reported as pinned stays.
"""

from __future__ import annotations

import uuid

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.clock import Clock, iso
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.errors import CheckpointNotFound, InvalidConfiguration

__all__ = ["pin_checkpoint", "unpin_checkpoint"]


def pin_checkpoint(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata, reason: str, clock: Clock) -> Pin:
    """Keep a completed checkpoint until it is unpinned.

    Raises:
        InvalidConfiguration: it is a savepoint.
        CheckpointNotFound: it is being deleted, or has been.
        StorageError: the storage failed; it may be pinned nevertheless.
    """
    if checkpoint.location is not None:
        raise InvalidConfiguration(
            f"{checkpoint.location} is a savepoint: unless a job claims it, only `dagster-ckpt dispose` deletes it.",
            hint="To keep it, restore it with claim_mode NO_CLAIM. See what can be pinned with "
            f"`dagster-ckpt list {catalog.job_name} --path {catalog.filesystem.url}`.",
        )
    pins = catalog.records.pins
    pin = Pin(checkpoint.reference, reason, iso(clock.time()), uuid.uuid4().hex)
    pins.add(pin)
    try:
        # In this order: a deletion that is not on record any more has removed the manifest.
        for deletion in catalog.records.deletions.pending():
            if deletion.job_id == checkpoint.job_id and checkpoint.checkpoint_id in deletion.checkpoints:
                raise CheckpointNotFound(
                    f"{checkpoint.reference} is being deleted ({deletion.reason}).",
                    hint=f"Pin another one; `dagster-ckpt list {catalog.job_name} --path {catalog.filesystem.url}` "
                    "shows them.",
                )
        catalog.load(checkpoint.job_id, checkpoint.checkpoint_id)
    except CheckpointNotFound:
        pins.remove(pin)
        raise
    return pin


def unpin_checkpoint(catalog: CheckpointCatalog, pointer: str) -> str:
    """Take all pins off the checkpoint that ``pointer`` names; it goes when the retention says so.

    Returns:
        ``{job id}/chk-N``.

    Raises:
        CheckpointNotFound: it is not pinned.
    """
    pins = catalog.records.pins
    pinned = pins.pinned()
    # Not resolved as other pointers are: the checkpoint may be gone by hand, and its pin with a reason to go too.
    named = [reference for reference in pinned if pointer in {reference, reference.partition("/")[2]}]
    if len(named) > 1:
        chosen = catalog.choice()
        named = [reference for reference in named if chosen is not None and reference.startswith(chosen[1].job_id)]
    if not named:
        raise CheckpointNotFound(
            f"{pointer} of job {catalog.job_name!r} is not pinned; pinned are: {', '.join(sorted(pinned)) or 'none'}.",
            hint="Name one of these, by its job id and number.",
        )
    pins.clear(named[0])
    return named[0]
