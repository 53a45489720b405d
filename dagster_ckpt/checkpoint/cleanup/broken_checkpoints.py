"""Deletes a quarantined or unreadable checkpoint at a user's request."""

from __future__ import annotations

from functools import partial

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, find_newest, shared_in_use
from dagster_ckpt.errors import CorruptCheckpoint, CorruptMetadata, InvalidConfiguration

__all__ = ["dispose_broken", "is_broken"]

_REASON = "somebody asked for it"


def is_broken(catalog: CheckpointCatalog, job_id: str, number: int) -> bool:
    """Whether a checkpoint is in quarantine, or its manifest cannot be read."""
    if f"{job_id}/chk-{number}" in catalog.records.quarantine.names():
        return True
    try:
        catalog.load(job_id, number)
    except CorruptMetadata:
        return True
    except (CorruptCheckpoint, OSError):
        return False
    return False


def dispose_broken(catalog: CheckpointCatalog, job_id: str, number: int) -> bool:
    """Delete a broken checkpoint and the shared files that only it needs, as far as its manifest names them.

    A live run may be about to refer to such a file, so the run is asked to delete the checkpoint itself.

    Returns:
        ``False`` when the job is not over: then the live run deletes the checkpoint with its next checkpoint, or the
        next start of the job deletes it.

    Raises:
        InvalidConfiguration: the checkpoint is pinned, or the job would restore it next.
        Fenced: the job was started at this moment; ask again.
        StorageError: the storage failed; ask again.
    """
    reference = f"{job_id}/chk-{number}"
    if reference in catalog.records.pins.pinned():
        raise _pinned(catalog, reference)
    _refuse_if_next(catalog, reference)
    epoch = catalog.records.epochs.highest()
    names: list[str] = []
    completed, _ = catalog.completed(job_id)
    for item in completed:
        if item.reference == reference:
            names = sorted(name.rpartition("/")[2] for name in item.references if name.startswith("../"))
    log = catalog.records.deletions
    end = catalog.records.epochs.read_end(epoch)
    if end is None or not end.is_final:
        log.ask(epoch, job_id, [number], names, _REASON)
        return False

    if not log.delete(epoch, job_id, [number], names, _REASON, partial(shared_in_use, catalog, job_id)):
        raise _pinned(catalog, reference)
    catalog.records.quarantine.lift(reference)
    return True


def _pinned(catalog: CheckpointCatalog, reference: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{reference} of job {catalog.job_name!r} is pinned.",
        hint=f"Run `dagster-ckpt unpin {catalog.job_name} {reference} {catalog.filesystem.path_option}` first.",
    )


def _refuse_if_next(catalog: CheckpointCatalog, reference: str) -> None:
    """Refuse to delete the newest checkpoint: the job would silently resume from an older one."""
    if reference in catalog.records.quarantine.names():
        return
    try:
        find_newest(catalog)
    except CorruptCheckpoint as error:
        if error.checkpoint == reference:
            raise InvalidConfiguration(
                f"{reference} is what job {catalog.job_name!r} would go on from: {error.message}",
                hint="First launch the job with restore_from another checkpoint, or set fallback_to_older.",
            ) from error
