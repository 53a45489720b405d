"""Whether a job is over, and whether its records can be deleted because nothing else of it is left.

Epochs and heartbeat tell which run runs a job. Two decisions need a clock: to end a job whose run died without an end,
and to delete the records that fence processes which may still be alive. So both are made only after an age that the
user gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch
from dagster_ckpt.checkpoint.cleanup.orphans import Orphan
from dagster_ckpt.checkpoint.cleanup.start_sweep import left_in
from dagster_ckpt.checkpoint.format import (
    CHECKPOINT_TASK_OWNED_STATE_DIR,
    CONTROL_DIR,
    checkpoint_directory,
    foreign,
    is_record,
    is_records_directory,
    left_alone,
    shared_directory,
    written_by,
)
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.config import CheckpointConfig, JobStatus, format_duration
from dagster_ckpt.errors import Fenced, InvalidConfiguration, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem

__all__ = ["last_epoch", "records_of", "remove_records"]


def last_epoch(
    catalog: CheckpointCatalog,
    clock: Clock,
    older_than: timedelta | None,
    wait: Callable[[float], object],
    *,
    dry_run: bool = False,
) -> int:
    """The last epoch of a job that is over.

    Args:
        catalog: of the job.
        clock: wall time.
        older_than: end a job whose run died without an end when its last sign of life is older than this.
        wait: sleeps for so many seconds.
        dry_run: record no end.

    Raises:
        JobAlreadyRunning: a run of the job is alive.
        InvalidConfiguration: the job is not over.
    """
    name, epochs = catalog.job_name, catalog.records.epochs
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    if heartbeat is not None and dead is None:
        raise JobAlreadyRunning(
            f"Job {name!r} is being run by run {heartbeat.run_id} (epoch {heartbeat.epoch}).",
            hint="The start of this run has swept its lineage. To sweep the rest, terminate the run, and sweep when "
            f"the job is over; a dead run counts as alive for {heartbeat.lease.timeout:.0f} s at most.",
        )
    epoch = epochs.highest()
    end = epochs.read_end(epoch)
    if epoch == 0 or (end is not None and end.is_final):
        return epoch
    claim = epochs.read_claim(epoch)
    if claim is not None and older_than is not None:
        last = max(seconds_of(claim.claimed_at), 0.0 if heartbeat is None else heartbeat.beat_at)
        if clock.time() - last > older_than.total_seconds():
            if dry_run:
                return epoch
            reason = f"run {claim.run_id} died, and for more than {format_duration(older_than)} nobody went on with it"
            with contextlib.suppress(Fenced):  # the job was launched meanwhile, as the next look shows
                end_dead_epoch(catalog, claim, CheckpointConfig(), JobStatus.SUSPENDED, reason, clock)
            return last_epoch(catalog, clock, None, wait)
    raise InvalidConfiguration(
        f"Job {name!r} is not over: run {claim.run_id if claim else '?'} (epoch {epoch}) "
        f"{'failed and is to be restarted' if end else 'died without an end'}.",
        hint="If the job is to go on, launch it, or leave that to the sensor: its start sweeps its lineage. If not, "
        f"terminate it in Dagster; or `dagster-ckpt sweep {name} --older-than '7 d' {catalog.filesystem.path_option}` "
        "ends the job once its last sign of life is that old. A later launch still continues from its checkpoints.",
    )


def records_of(
    catalog: CheckpointCatalog, clock: Clock, epoch: int, orphans: Sequence[Orphan], older_than: timedelta | None
) -> tuple[list[Orphan], list[str]]:
    """The records of a job without checkpoints, in the order of their deletion, and notes on what stays and why.

    The epochs fence processes of the job that may still be alive, so the epochs are deleted last, the newest epoch at
    the very end; and no record is deleted before the job has been over for ``older_than``. Foreign files stay.

    Args:
        catalog: of the job, which is over.
        clock: wall time.
        epoch: the last epoch of the job.
        orphans: files that are deleted before the records.
        older_than: how long the job must have been over; ``None`` to keep the records.
    """
    storage, name, control = catalog.filesystem, catalog.job_name, catalog.records
    end = control.epochs.read_end(epoch)
    if older_than is None or end is None or not end.is_final:
        return [], []
    gone = {orphan.path for orphan in orphans}
    stored = [path for job_id in catalog.job_ids() for path in _stored(catalog, job_id)]
    heartbeat = control.heartbeat.read()
    last = max(seconds_of(end.ended_at), 0.0 if heartbeat is None else heartbeat.beat_at)
    stays = None
    if any(path not in gone for path in stored):
        return [], []
    if catalog.choice() is not None and catalog.given_up() is None:
        stays = "the job did not discard its checkpoints, so a launch goes on from where it began"
    elif control.pins.pinned() or control.quarantine.names() or control.deletions.pending():
        stays = "the job has pins, checkpoints in quarantine or unfinished deletions"
    elif next(_files(storage, f"{name}/{CHECKPOINT_TASK_OWNED_STATE_DIR}"), None) is not None:
        stays = f"{name}/{CHECKPOINT_TASK_OWNED_STATE_DIR} has live locations"
    elif clock.time() - last <= older_than.total_seconds():
        stays = f"the job has been over for less than {format_duration(older_than)}"
    if stays is not None:
        return [], [f"No checkpoint of {name} is left. Its records in {name}/{CONTROL_DIR} stay: {stays}."]
    epochs = f"{name}/{CONTROL_DIR}/epochs/"
    last_of_all = f"{epochs}e-{epoch:010}.end"
    # A run that begins now uses none of these names, except for the heartbeat, which it writes again.
    records, notes = _records(storage, f"{name}/{CONTROL_DIR}")
    paths = sorted(
        records,
        key=lambda path: (path.startswith(epochs), path == last_of_all, path),
    )
    reason = f"nothing of the job is left, and it has been over for more than {format_duration(older_than)}"
    sizes = storage.size_many(paths)
    return [Orphan(path, size, reason) for path, size in zip(paths, sizes, strict=True) if size is not None], notes


def remove_records(catalog: CheckpointCatalog, records: Sequence[Orphan], report: Callable[[Orphan], None]) -> None:
    """Delete the records of a job, and its directories that are empty then."""
    storage = catalog.filesystem
    for record in records:
        storage.remove(record.path)
        report(record)
    if records:
        for directory in [*_directories(storage, f"{catalog.job_name}/{CONTROL_DIR}"), catalog.job_name]:
            storage.remove_directory(directory)


def _files(storage: FileSystem, directory: str) -> Iterator[str]:
    for entry in storage.list(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from _files(storage, path)
        else:
            yield path


def _stored(catalog: CheckpointCatalog, job_id: str) -> Iterator[str]:
    """The files of a lineage that a run of the job wrote."""
    storage, shared = catalog.filesystem, shared_directory(catalog.job_name, job_id)
    for number in catalog.numbers(job_id):
        yield from left_in(catalog, checkpoint_directory(catalog.job_name, job_id, number))[0]
    for entry in storage.list(shared):
        if not foreign([entry], written_by):
            yield f"{shared}/{entry.name}"


def _records(storage: FileSystem, control: str, below: str = "") -> tuple[list[str], list[str]]:
    """The records of a job, and a warning for each directory with files that are not records."""
    directory = f"{control}/{below}".rstrip("/")
    records, others, notes = [], [], []
    for entry in storage.list(directory):
        path = f"{below}/{entry.name}".lstrip("/")
        if entry.is_directory and is_records_directory(path):
            found, said = _records(storage, control, path)
            records += found
            notes += said
        elif entry.is_directory or not is_record(path):
            others += foreign([entry], lambda _: False)
        else:
            records.append(f"{control}/{path}")
    if others:
        notes.append(left_alone(storage, directory, sorted(others)))
    return records, notes


def _directories(storage: FileSystem, control: str, below: str = "") -> Iterator[str]:
    """The directories of records, the deepest first."""
    directory = f"{control}/{below}".rstrip("/")
    for entry in storage.list(directory):
        path = f"{below}/{entry.name}".lstrip("/")
        if entry.is_directory and is_records_directory(path):
            yield from _directories(storage, control, path)
    yield directory
