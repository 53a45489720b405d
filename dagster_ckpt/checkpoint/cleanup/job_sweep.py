"""Sweeps a job that is over, at a user's request: deletes what the sweep of a start does not cover.

A start sweeps only the lineage that it continues. This sweep covers abandoned lineages, and jobs that are not started
again.

Nothing is swept while a run is alive, because only the run's own process knows which files a checkpoint attempt in
progress refers to. A job is over when the recorded end of its last epoch asks for no restart, and no run beats any
more. A sweep claims no epoch, because then the job would look as if it had died. The sweep is safe against a start all
the same:

1. The complete checkpoints are recorded first, once and for all. What past epochs publish later is void.
2. Then the manifests are read, and then the last epoch is checked. If it is still the last, no start had begun when the
   manifests were read. A start refers only to files of complete checkpoints and to its own files. So a file that no
   manifest refers to can never be referred to again, however long the deletion takes.
3. Checkpoints that are to be deleted are recorded in the deletion log first, as everywhere: a start that begins now
   sees the deletion, and finishes it before it chooses.

The next sweep finishes an interrupted sweep; the next start finishes it for its own lineage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, shared_in_use
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_giving_up, finish_recorded_deletions
from dagster_ckpt.checkpoint.cleanup.job_over import last_epoch, records_of, remove_records
from dagster_ckpt.checkpoint.cleanup.live_locations import live_orphans, remove_live_directories
from dagster_ckpt.checkpoint.cleanup.orphans import Condemned, Orphan, condemned, orphans_of
from dagster_ckpt.checkpoint.control import Settled
from dagster_ckpt.checkpoint.format import checkpoint_directory, checkpoint_id, shared_directory
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import format_size
from dagster_ckpt.errors import Fenced, JobAlreadyRunning
from dagster_ckpt.shown_text import counted
from dagster_ckpt.stored_json import Json

__all__ = ["Swept", "sweep_job"]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted, or would delete.

    Attributes:
        job_name: the job.
        orphans: the files.
        notes: what stays, and why.
    """

    job_name: str
    orphans: tuple[Orphan, ...]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(orphan.size for orphan in self.orphans)

    def lines(self, *, dry_run: bool) -> list[str]:
        """The result for people: every file of a dry run, the notes, and the totals."""
        files = [str(orphan) for orphan in self.orphans] if dry_run else []
        what = "would be deleted" if dry_run else "deleted"
        return [
            *files,
            *self.notes,
            f"{self.job_name}: {counted(len(self.orphans), 'file')}, {format_size(self.size)} {what}.",
        ]

    def to_json(self, *, dry_run: bool) -> dict[str, Json]:
        """The result for programs."""
        return {
            "job": self.job_name,
            "dry_run": dry_run,
            "files": [{"path": item.path, "bytes": item.size, "reason": item.reason} for item in self.orphans],
            "count": len(self.orphans),
            "bytes": self.size,
            "notes": list(self.notes),
        }


def sweep_job(
    catalog: CheckpointCatalog,
    clock: Clock,
    *,
    dry_run: bool = False,
    quarantined: bool = False,
    older_than: timedelta | None = None,
    wait: Callable[[float], object] = time.sleep,
    report: Callable[[Orphan], None] = lambda _: None,
) -> Swept:
    """Delete the stored files of a job that is over and that no start can use.

    Args:
        catalog: of the job.
        clock: wall and monotonic time.
        dry_run: delete nothing, only return what would be deleted.
        quarantined: delete checkpoints in quarantine too.
        older_than: count a run that died without an end as over when its last sign of life is older than this.
        wait: sleeps for so many seconds, while the heartbeat of another host is watched.
        report: called with each file once it is deleted.

    Raises:
        JobAlreadyRunning: a run of the job is alive, or was started meanwhile.
        InvalidConfiguration: the last run has no recorded end, so the job is not over.
        CorruptCheckpoint: a record in ``control/`` cannot be read.
        StorageError: the storage failed; sweep again.
    """
    epoch = last_epoch(catalog, clock, older_than, wait, dry_run=dry_run)
    to_go = condemned(catalog, epoch, quarantined=quarantined)
    planned, notes = _plan(catalog, epoch, to_go)
    if dry_run:
        records, said = records_of(catalog, clock, epoch, planned, older_than)
        return Swept(catalog.job_name, (*planned, *records), (*notes, *said))
    deleted: list[Orphan] = []

    def tell(orphans: Iterable[Orphan]) -> None:
        for orphan in orphans:
            deleted.append(orphan)
            report(orphan)

    try:
        _settle(catalog, epoch)
        _delete_condemned(catalog, epoch, to_go)
        left, notes = _plan(catalog, epoch, ())
        catalog.records.epochs.check(epoch)
        paths = {orphan.path for orphan in left}
        tell(orphan for orphan in planned if orphan.path not in paths and not _is_there(catalog, orphan))
        for orphan in left:
            catalog.filesystem.remove(orphan.path)
            tell([orphan])
        remove_live_directories(catalog, epoch)
        _remove_directories(catalog)
        records, said = records_of(catalog, clock, epoch, (), older_than)
        catalog.records.epochs.check(epoch)
        remove_records(catalog, records, lambda orphan: tell([orphan]))
    except Fenced as error:
        raise JobAlreadyRunning(
            f"Job {catalog.job_name!r} was started while it was swept; {len(deleted)} files were deleted before. "
            f"{error.message}",
            hint="Nothing that the new run can need was deleted, and the new run sweeps its own lineage. Sweep again "
            "when the job is over.",
        ) from error
    return Swept(catalog.job_name, tuple(deleted), (*notes, *said))


def _plan(catalog: CheckpointCatalog, epoch: int, to_go: Sequence[Condemned]) -> tuple[list[Orphan], list[str]]:
    gone: dict[str, dict[int, str]] = {}
    for item in to_go:
        gone.setdefault(item.job_id, {}).setdefault(item.number, item.reason)
    orphans: list[Orphan] = []
    notes: list[str] = []
    for job_id in sorted(catalog.job_ids()):
        found, said = orphans_of(catalog, job_id, epoch, gone.get(job_id, {}))
        orphans += found
        notes += said
    orphans += live_orphans(catalog, epoch)
    quarantined = {
        name for name in catalog.records.quarantine.names() if name not in {item.reference for item in to_go}
    }
    if quarantined:
        notes.append(f"In quarantine, and kept unless you ask for its deletion: {', '.join(sorted(quarantined))}.")
    return orphans, notes


def _settle(catalog: CheckpointCatalog, epoch: int) -> None:
    """Record which checkpoints are complete: until the next start of the job, no other checkpoint counts."""
    complete = {job_id: catalog.completed_ids(job_id) for job_id in catalog.job_ids()}
    if complete:
        catalog.records.epochs.record_settled(epoch, Settled(complete))


def _delete_condemned(catalog: CheckpointCatalog, epoch: int, to_go: Sequence[Condemned]) -> None:
    """Delete the checkpoints that are to be deleted; their remaining shared files are orphans."""

    def in_use(job_id: str) -> frozenset[str] | None:
        names = shared_in_use(catalog, job_id)
        catalog.records.epochs.check(epoch)  # no start had begun when the manifests were read
        return names

    finish_recorded_deletions(catalog, epoch + 1, in_use)
    finish_giving_up(catalog, epoch, in_use)
    log = catalog.records.deletions
    for item in to_go:
        if not item.recorded and log.delete(epoch, item.job_id, [item.number], (), item.reason, frozenset):
            catalog.records.quarantine.lift(item.reference)


def _is_there(catalog: CheckpointCatalog, orphan: Orphan) -> bool:
    directory, _, name = orphan.path.rpartition("/")
    return any(entry.name == name for entry in catalog.filesystem.list(directory))


def _remove_directories(catalog: CheckpointCatalog) -> None:
    """Remove empty directories of checkpoints, of shared files and of lineages."""
    storage = catalog.filesystem
    for job_id in catalog.job_ids():
        for entry in storage.list(f"{catalog.job_name}/{job_id}"):
            if entry.is_directory and (number := checkpoint_id(entry.name)) is not None:
                storage.remove_directory(checkpoint_directory(catalog.job_name, job_id, number))
        storage.remove_directory(shared_directory(catalog.job_name, job_id))
        storage.remove_directory(f"{catalog.job_name}/{job_id}")
