"""The commands that keep checkpoints, delete what nobody needs, and end a job."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict
from datetime import timedelta

import click

from dagster_ckpt.checkpoint import (
    CancelRequest,
    CheckpointCatalog,
    End,
    JobRecords,
    Orphan,
    Swept,
    layout,
    pin_checkpoint,
    sweep_job,
    unpin_checkpoint,
)
from dagster_ckpt.cli.places import DURATION, JSON, asked_jobs, find_checkpoint, of_each, storage_at, storage_path
from dagster_ckpt.cli.printing import say, say_json, warn
from dagster_ckpt.clock import Clock, SystemClock
from dagster_ckpt.config import LATEST, format_duration
from dagster_ckpt.errors import (
    CorruptCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
    StorageError,
)

__all__ = ["cancel", "pin", "sweep", "unpin"]


#: Seconds between two looks at a job that is to end.
_LOOK = 0.5
#: The exit status of `cancel` when no run of the job is alive: who starts the job next may be told to end instead.
_NOBODY = 9


@click.command()
@click.argument("job")
@click.argument("checkpoint")
@storage_path
@click.option("--reason", default="", help="Why, for whoever looks at it later.")
@JSON
def pin(job: str, checkpoint: str, path: str, reason: str, as_json: bool) -> None:
    """Keep CHECKPOINT of JOB until it is unpinned: neither retention nor the cleanup at the job's end deletes it.

    CHECKPOINT is 'latest', chk-N, a job id with /chk-N, or a path. To move a checkpoint elsewhere, take a savepoint.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    pinned = pin_checkpoint(catalog, find_checkpoint(catalog, checkpoint), reason, SystemClock())
    if as_json:
        say_json(asdict(pinned))
        return
    say(f"{pinned.checkpoint} is pinned{f': {pinned.reason}' if pinned.reason else ''}.")


@click.command()
@click.argument("job")
@click.argument("checkpoint")
@storage_path
@JSON
def unpin(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Take the pins off CHECKPOINT of JOB: 'latest', chk-N, a job id with /chk-N, or a path.

    The checkpoint goes when the retention says so.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    unpinned = unpin_checkpoint(catalog, _reference(catalog, checkpoint))
    if as_json:
        say_json({"checkpoint": unpinned})
        return
    say(f"{unpinned} is not pinned any more.")


def _reference(catalog: CheckpointCatalog, checkpoint: str) -> str:
    """How pins name the checkpoint, which may have been deleted by hand."""
    inside = f"{catalog.filesystem.url}/{catalog.job_name}/"
    short = checkpoint.removeprefix(inside).removesuffix(layout.METADATA_FILE_NAME).rstrip("/")
    is_short = checkpoint != LATEST and short.count("/") <= 1 and not short.startswith("/")
    return short if is_short else find_checkpoint(catalog, checkpoint).reference


@click.command()
@click.argument("job")
@storage_path
@click.option("--timeout", type=DURATION, default="2 min", show_default=True, help="How long to wait for the end.")
@JSON
def cancel(job: str, path: str, timeout: timedelta, as_json: bool) -> None:
    """End JOB as CANCELED, where it runs without Dagster or in a driver of its own.

    That is a job of `dagster-ckpt run` or `dagster_ckpt.run`, or one with a SparkSubmitResource. Its `cleanup` says if
    its checkpoints stay. Any other run under Dagster is canceled there, by Terminate. A run that takes the job over
    while this command waits is asked, too. To keep the job's place in a savepoint, use `stop`.
    """
    catalog, clock = CheckpointCatalog(storage_at(path), job), SystemClock()
    records, until = catalog.records, clock.monotonic() + timeout.total_seconds()
    heartbeat, dead = records.heartbeat.watched(clock, time.sleep)
    way_on = f"See `dagster-ckpt status {job} {catalog.filesystem.path_option}`."
    while heartbeat is None and dead is None and (epoch := records.epochs.highest()):
        # Claimed, and not one beat since: the run has just begun, or it died at once.
        claim = records.epochs.read_claim(epoch)
        if claim is not None:
            dead, _ = records.heartbeat.judged(claim, records.epochs.read_end(epoch), clock)
        if dead is None:
            if clock.monotonic() >= until:
                raise JobAlreadyRunning(
                    f"Job {job!r} cannot be asked: its run has claimed the job and shows no sign of life yet.",
                    hint=f"Ask again with a longer --timeout. {way_on}",
                )
            time.sleep(_LOOK)
            heartbeat, dead = records.heartbeat.watched(clock, time.sleep)
    if dead is not None or heartbeat is None:
        warn(f"Job {job!r} cannot be canceled: no run of it is alive.", color="red")
        warn(way_on)
        sys.exit(_NOBODY)
    asked = _Canceled(records, heartbeat.epoch, heartbeat.run_id, clock)
    try:
        asked.ask()
        while (end := asked.look()) is None:
            if clock.monotonic() >= until:
                raise JobAlreadyRunning(
                    f"Job {job!r} has not ended within {format_duration(timeout)}, and is not asked any more.",
                    hint=f"If run {asked.run_id} is a run of Dagster without a SparkSubmitResource, terminate it in "
                    "Dagster. Else ask again with a longer --timeout.",
                )
            time.sleep(_LOOK)
    except BaseException:
        with contextlib.suppress(StorageError):  # the request may stand; the first error is what people are told
            records.savepoint_requests.forget_cancel()
        raise
    records.savepoint_requests.forget_cancel()
    if as_json:
        say_json({"job": job, "run": asked.run_id, "status": end.status, "reason": end.reason})
        return
    say(f"{job}: {end.status}, {end.reason}")


class _Canceled:
    """A job that is to end: its run is asked, and each run that takes the job over before the end.

    Each epoch is looked at in turn, so that what somebody starts after the end is not asked.

    Args:
        records: of the job.
        epoch: the one that the run holds.
        run_id: of the run.
        clock: wall time.
    """

    def __init__(self, records: JobRecords, epoch: int, run_id: str, clock: Clock) -> None:
        self.run_id = run_id
        self._records = records
        self._epoch = epoch
        self._clock = clock

    def look(self) -> End | None:
        """How the job has ended, ``None`` while the job goes on."""
        epochs = self._records.epochs
        while (end := epochs.read_end(self._epoch)) is None or not end.is_final:
            if self._epoch >= epochs.highest():
                return None
            self._epoch += 1
            claim = epochs.read_claim(self._epoch)
            if claim is not None and claim.run_id != self.run_id:
                warn(f"Run {claim.run_id} has taken the job over from run {self.run_id}, and is asked, too.")
                self.run_id = claim.run_id
                self.ask()
        return end

    def ask(self) -> None:
        """Ask the run that holds the job."""
        self._records.savepoint_requests.ask_to_cancel(CancelRequest(self.run_id, self._clock.time()))


@click.command()
@click.argument("job", required=False)
@storage_path
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted, and delete nothing.")
@click.option(
    "--older-than",
    type=DURATION,
    help="Also what only age can tell: end a job whose run died without an end so long ago, such as '7 d', and remove "
    "the records of one that has been over for so long and of which nothing is left.",
)
@click.option("--quarantined", is_flag=True, help="Delete checkpoints in quarantine, too; none that is pinned.")
@JSON
def sweep(
    job: str | None, path: str, dry_run: bool, older_than: timedelta | None, quarantined: bool, as_json: bool
) -> None:
    """Delete files that no checkpoint needs of JOB, or of every job that is over.

    That is what starts that died have left in lineages that nobody goes on with, unfinished deletions, and forks that
    never began. Checkpoints, savepoints and what is pinned stay. A job that runs, or is to be restarted, is refused.
    """
    filesystem = storage_at(path)
    refused: list[dict[str, str]] = []
    partly: list[Swept] = []

    def swept_of(name: str) -> Swept | None:
        deleted: list[Orphan] = []

        def tell(orphan: Orphan) -> None:
            deleted.append(orphan)
            if not as_json:
                say(orphan)

        try:
            return sweep_job(
                CheckpointCatalog(filesystem, name),
                SystemClock(),
                dry_run=dry_run,
                quarantined=quarantined,
                older_than=older_than,
                report=tell,
            )
        except StorageError as error:
            if deleted:
                partly.append(Swept(name, tuple(deleted), (error.message,)))
            raise
        except (JobAlreadyRunning, InvalidConfiguration, CorruptCheckpoint) as error:
            if job:
                raise
            refused.append({"job": name, "refused": f"{error.message} {error.hint}"})
            warn(f"{error.message} {error.hint}", color="yellow")
            return None

    jobs = asked_jobs(job, filesystem)
    try:
        told, were_all = of_each(jobs, swept_of, "could not be swept whole")
    except StorageError:
        if as_json:  # what is deleted is told; for people it has been
            say_json([item.to_json(dry_run=dry_run) for item in partly])
        raise
    swept = [*(item for item in told if item is not None), *partly]
    if as_json:
        say_json([*(item.to_json(dry_run=dry_run) for item in swept), *refused])
    elif not jobs:
        say(f"There is no job in {filesystem.url}. Is --path the checkpoint path?")
    else:
        for item in swept:
            for line in item.lines(dry_run=dry_run):
                say(line)
    sys.exit(0 if were_all else 1)
