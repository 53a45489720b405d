"""Finds the orphans of a job that is over: stored files that no complete checkpoint needs. Deletes nothing.

The orphans of a lineage are files of unfinished checkpoints, files in ``shared/`` that no checkpoint refers to,
checkpoints that were discarded or whose deletion was begun, and forks that their job never began with. An unreadable
checkpoint may need any shared file of its lineage, so no shared file is an orphan then. Foreign files are not orphans.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, references, unreadable_id
from dagster_ckpt.checkpoint.cleanup.dead_runs import given_up_numbers
from dagster_ckpt.checkpoint.cleanup.start_sweep import is_manifest, left_in, written_before
from dagster_ckpt.checkpoint.format import (
    CHANGED,
    FORK,
    checkpoint_directory,
    checkpoint_id,
    foreign,
    left_alone,
    shared_directory,
    written_by,
)
from dagster_ckpt.config import format_size

__all__ = ["Condemned", "Orphan", "condemned", "orphans_of"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that nobody can need: its path, its bytes, and why it may be deleted."""

    path: str
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{format_size(self.size):>12}  {self.path}  ({self.reason})"


@dataclass(frozen=True, slots=True)
class Condemned:
    """A checkpoint that is to be deleted although its manifest is there.

    Attributes:
        job_id: the lineage.
        number: the checkpoint's id.
        reason: why.
        recorded: whether the deletion is recorded, so that the next start would finish it.
    """

    job_id: str
    number: int
    reason: str
    recorded: bool

    @property
    def reference(self) -> str:
        """``{job id}/chk-N``."""
        return f"{self.job_id}/chk-{self.number}"


def condemned(catalog: CheckpointCatalog, epoch: int, *, quarantined: bool) -> list[Condemned]:
    """The checkpoints of a job that are to be deleted; a pinned checkpoint is never among them.

    Args:
        catalog: of the job, which is over.
        epoch: the last epoch of the job.
        quarantined: whether quarantined checkpoints are to be deleted.
    """
    pins = catalog.records.pins.pinned()
    found = [item for item in _recorded(catalog, epoch) if item.reference not in pins]
    chosen, end = catalog.choice(), catalog.given_up()
    if chosen is not None and end is not None:
        job_id = chosen[1].job_id
        reason = f"it was discarded when the job ended: {end.reason}"
        found += [Condemned(job_id, number, reason, True) for number in given_up_numbers(catalog, job_id)]
    more = list(_never_begun(catalog))
    if quarantined:
        for reference, record in catalog.records.quarantine.records().items():
            job_id, _, name = reference.partition("/")
            reason = f"it is in quarantine: {record.reason}"
            more.append(Condemned(job_id, checkpoint_id(name) or 0, reason, False))
    return found + [item for item in more if item.reference not in pins]


def _recorded(catalog: CheckpointCatalog, epoch: int) -> Iterator[Condemned]:
    chosen = catalog.choice()
    for deletion in catalog.records.deletions.pending():
        # A deletion recorded before the last choice is void: that start had finished all valid deletions.
        if (chosen[0] if chosen else 0) <= deletion.epoch <= epoch:
            reason = f"its deletion was begun: {deletion.reason}"
            yield from (Condemned(deletion.job_id, number, reason, True) for number in deletion.checkpoints)


def _never_begun(catalog: CheckpointCatalog) -> Iterator[Condemned]:
    """Lineages whose start died before it recorded its choice. Each has only a copy of another lineage's checkpoint."""
    names = catalog.records.epochs.names()
    begun = {choice.job_id for choice in catalog.choices().values()}
    for job_id in catalog.job_ids():
        if job_id not in begun:
            for metadata in catalog.completed(job_id)[0]:
                # Without the claim's record, the record of a choice may have been deleted too.
                if metadata.kind in {FORK, *CHANGED} and "claim" in names.get(metadata.epoch, ()):
                    reason = "the start that copied it died before it went on from it"
                    yield Condemned(job_id, metadata.checkpoint_id, reason, False)


def orphans_of(
    catalog: CheckpointCatalog, job_id: str, epoch: int, gone: Mapping[int, str]
) -> tuple[list[Orphan], list[str]]:
    """The orphans of one lineage, manifests first, and notes on what stays.

    Args:
        catalog: of the job, which is over.
        job_id: the lineage.
        epoch: the last epoch of the job.
        gone: the ids of checkpoints that are to be deleted, with the reason.
    """
    storage = catalog.filesystem
    completed, broken = catalog.completed(job_id)
    kept = [metadata for metadata in completed if metadata.checkpoint_id not in gone]
    unreadable = {unreadable_id(error): error for error in broken}
    unreadable = {number: error for number, error in unreadable.items() if number not in gone}
    stay = {metadata.checkpoint_id for metadata in kept} | set(unreadable)
    found: list[tuple[str, str]] = []
    notes: list[str] = []
    for number in catalog.numbers(job_id):
        if number not in stay:
            directory = checkpoint_directory(catalog.job_name, job_id, number)
            entries, others = left_in(catalog, directory)
            if others:
                notes.append(left_alone(storage, directory, others))
            late = any(is_manifest(path) for path in entries)
            reason = "it was published too late, and is void" if late else "its checkpoint was never completed"
            found += [(path, gone.get(number, reason)) for path in entries]
    shared = shared_directory(catalog.job_name, job_id)
    if others := foreign(storage.list(shared), written_by):
        notes.append(left_alone(storage, shared, others))
    if not unreadable:
        needed = {name.rpartition("/")[2] for name in references(kept)}
        names = [name for name in written_before(catalog, job_id, epoch + 1) if name not in needed]
        found += [(f"{shared}/{name}", "no checkpoint needs it") for name in names]
    notes += [
        f"{error.message} It may need any shared file of {job_id}: none of them is deleted. {_way_on(catalog, error)}"
        for error in unreadable.values()
    ]
    found.sort(key=lambda item: (not is_manifest(item[0]), item[0]))
    sizes = storage.size_many([path for path, _ in found])
    return [
        Orphan(path, size, reason) for (path, reason), size in zip(found, sizes, strict=True) if size is not None
    ], notes


def _way_on(catalog: CheckpointCatalog, error: Exception) -> str:
    where = f"{catalog.filesystem.url}/{catalog.job_name}/{getattr(error, 'checkpoint', None)}"
    return f"Put its _metadata back from a backup, or `dagster-ckpt dispose {shlex.quote(where)}`; then sweep again."
