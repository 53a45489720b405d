"""Deleting a checkpoint that is in quarantine, or that cannot be read, because somebody asks for it."""

from __future__ import annotations

from functools import partial

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, shared_in_use
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import FAILING
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
    """Delete a checkpoint that is broken, with the shared files that only it needs, as far as its manifest tells them.

    A run that is under way may be about to refer to such a file, so it is asked to do it itself.

    Returns:
        ``False`` when the job is not over: the run that is under way does it with its next checkpoint, or the next
        start of the job.

    Raises:
        InvalidConfiguration: it is pinned, or it is what the job would go on from.
        Fenced: the job was started in this moment; ask again.
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
    if end is None or end.status == FAILING:
        log.ask(epoch, job_id, [number], names, _REASON)
        return False

    if not log.delete(epoch, job_id, [number], names, _REASON, partial(shared_in_use, catalog, job_id)):
        raise _pinned(catalog, reference)
    catalog.records.quarantine.lift(reference)
    return True


def _pinned(catalog: CheckpointCatalog, reference: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{reference} of job {catalog.job_name!r} is pinned.",
        hint=f"`dagster-ckpt unpin {catalog.job_name} {reference} --path {catalog.filesystem.url}` first.",
    )


def _refuse_if_next(catalog: CheckpointCatalog, reference: str) -> None:
    """Without it in its place, an older one would be gone on from with no word said."""
    if reference in catalog.records.quarantine.names():
        return
    try:
        find_newest(catalog)
    except CorruptCheckpoint as error:
        if error.checkpoint == reference:
            raise InvalidConfiguration(
                f"{reference} of job {catalog.job_name!r} is what it would go on from: {error.message}",
                hint="First go back to another one, by launching the job with restore_from, or set fallback_to_older.",
            ) from error
