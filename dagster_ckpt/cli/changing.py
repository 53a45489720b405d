"""The commands that keep, make and delete checkpoints and savepoints."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    dispose_broken,
    dispose_savepoint,
    is_broken,
    job_names,
    layout,
    pin_checkpoint,
    sweep_job,
    take_savepoint,
    unpin_checkpoint,
)
from dagster_ckpt.cli.places import JSON, PATH, find_checkpoint, storage_at
from dagster_ckpt.cli.printing import say, say_json, warn
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import parse_duration
from dagster_ckpt.errors import (
    CorruptCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
)

__all__ = ["dispose", "pin", "savepoint", "sweep", "unpin"]


@click.command()
@click.argument("job")
@click.argument("checkpoint")
@PATH
@click.option("--reason", default="", help="Why, for whoever looks at it later.")
def pin(job: str, checkpoint: str, path: str, reason: str) -> None:
    """Keep CHECKPOINT of JOB until it is unpinned: neither retention nor the cleanup at the job's end deletes it.

    CHECKPOINT is 'latest', chk-N, a job id with /chk-N, or a path. To move a checkpoint elsewhere, take a savepoint.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    pinned = pin_checkpoint(catalog, find_checkpoint(catalog, checkpoint), reason, SystemClock())
    say(f"{pinned.checkpoint} is pinned{f': {pinned.reason}' if pinned.reason else ''}.")


@click.command()
@click.argument("job")
@click.argument("checkpoint")
@PATH
def unpin(job: str, checkpoint: str, path: str) -> None:
    """Take the pins off CHECKPOINT of JOB: chk-N, or a job id with /chk-N. It goes when the retention says so."""
    catalog = CheckpointCatalog(storage_at(path), job)
    say(f"{unpin_checkpoint(catalog, checkpoint)} is not pinned any more.")


@click.command()
@click.argument("job")
@PATH
@click.option(
    "--to",
    envvar="DAGSTER_CKPT_SAVEPOINT_PATH",
    help="Directory for savepoints; a running job knows its savepoint_path. [env: DAGSTER_CKPT_SAVEPOINT_PATH]",
)
@click.option("--stop", is_flag=True, help="Stop the running job with it; it ends successfully.")
@click.option("--drain", is_flag=True, help="Not possible with Spark; refused.")
@click.option("--timeout", default="10 min", show_default=True, help="How long to wait for a running job.")
@JSON
def savepoint(job: str, path: str, to: str | None, stop: bool, drain: bool, timeout: str, as_json: bool) -> None:
    """Take a savepoint of JOB and print its path, which restore_from takes.

    A running job takes it after the batch in flight; of a job that does not run, the newest completed checkpoint is
    copied. Nothing but `dispose` ever deletes a savepoint.
    """
    if drain:
        raise InvalidConfiguration(
            "--drain is not possible: Spark cannot emit a final watermark, so windows that are open stay open.",
            hint="Use --stop without --drain; the windows are in the savepoint.",
        )
    clock = SystemClock()
    taken = take_savepoint(
        CheckpointCatalog(storage_at(path), job),
        to,
        default=None,
        stop=stop,
        timeout=timeout,
        clock=clock,
        wait=time.sleep,
        report=warn,
    )
    if as_json:
        say_json(asdict(taken))
        return
    warn(f"Batch {taken.batch}, {taken.files} files, {taken.size:,} bytes, in {taken.seconds:.1f} s:")
    say(taken.pointer)


@click.command()
@click.argument("savepoint")
def dispose(savepoint: str) -> None:
    """Delete the savepoint in the directory SAVEPOINT. Broken off, it is finished by the same command.

    Also the directory of a checkpoint that is in quarantine, or whose _metadata cannot be read.
    """
    directory = storage_at(savepoint.rstrip("/").removesuffix(f"/{layout.METADATA_FILE_NAME}")).url
    parent, _, name = directory.rpartition("/")
    above, _, lineage = parent.rpartition("/")
    if layout.is_job_id(lineage) and (number := layout.checkpoint_id(name)) is not None:
        root, _, job = above.rpartition("/")
        catalog = CheckpointCatalog(storage_at(root), job)
        if is_broken(catalog, lineage, number):
            done = dispose_broken(catalog, lineage, number)
            later = f"Job {job} is not over: its next checkpoint, or its next start, deletes {directory}."
            say(f"{directory} is deleted." if done else later)
            return
    unknown = dispose_savepoint(storage_at(parent or "/"), name)
    say(f"{directory} is no savepoint any more.")
    if unknown:
        warn(f"Its directory stays, for what is not of the savepoint: {', '.join(unknown)}")


@click.command()
@click.argument("job", required=False)
@PATH
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted, and delete nothing.")
@click.option(
    "--older-than",
    metavar="DURATION",
    help="Also what only age can tell: end a job whose run died without an end so long ago, such as '7 d', and remove "
    "the records of one that has been over for so long and of which nothing is left.",
)
@click.option("--quarantined", is_flag=True, help="Delete checkpoints in quarantine, too; none that is pinned.")
@JSON
def sweep(job: str | None, path: str, dry_run: bool, older_than: str | None, quarantined: bool, as_json: bool) -> None:
    """Delete files that no checkpoint needs of JOB, or of every job that is over.

    That is what starts that died have left in lineages that nobody goes on with, unfinished deletions, and forks that
    never began. Checkpoints, savepoints and what is pinned stay. A job that runs, or is to be restarted, is refused.
    """
    filesystem = storage_at(path)
    try:
        age = None if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise InvalidConfiguration(f"--older-than: {error}.", hint="Write it as '7 d', for example.") from None
    swept, refused = [], []
    for name in [job] if job else job_names(filesystem):
        try:
            swept.append(
                sweep_job(
                    CheckpointCatalog(filesystem, name),
                    SystemClock(),
                    dry_run=dry_run,
                    quarantined=quarantined,
                    older_than=age,
                    report=lambda orphan: None if as_json else say(orphan),
                )
            )
        except (JobAlreadyRunning, InvalidConfiguration, CorruptCheckpoint) as error:
            if job:
                raise
            refused.append({"job": name, "refused": f"{error.message} {error.hint}"})
            warn(f"{error.message} {error.hint}", color="yellow")
    if as_json:
        say_json([*(item.to_json(dry_run=dry_run) for item in swept), *refused])
        return
    for item in swept:
        for line in item.lines(dry_run=dry_run):
            say(line)
