"""``dagster-ckpt``: checkpoints and savepoints from the command line. Needs the storage only, no Spark or Dagster."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dagster_ckpt.checkpoint.ancestry import for_retention
from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.clock import SystemClock
from dagster_ckpt.checkpoint.disposing import dispose_broken, is_broken
from dagster_ckpt.checkpoint.job_sweep import sweep_job
from dagster_ckpt.checkpoint.layout import CONTROL_DIR, METADATA_FILE_NAME, checkpoint_id, is_job_id, is_job_name
from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.checkpoint.pinning import pin_checkpoint, unpin_checkpoint
from dagster_ckpt.checkpoint.pins import Pins
from dagster_ckpt.checkpoint.preflight import Finding, Preflight
from dagster_ckpt.checkpoint.reclaiming import reclaimable_bytes
from dagster_ckpt.checkpoint.recorded_savepoints import RecordedSavepoints
from dagster_ckpt.checkpoint.savepoint_asking import take_savepoint
from dagster_ckpt.checkpoint.savepoints import dispose_savepoint
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.durations import parse_duration
from dagster_ckpt.config.recovery import LATEST
from dagster_ckpt.config.retention import AnyOf, KeepPinned, decide
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
)
from dagster_ckpt.filesystem import Entry, FileSystem, open_filesystem
from dagster_ckpt.spark.batch_report import report_batch
from dagster_ckpt.spark.preflight import check_stored

__all__ = ["main"]

#: How to connect to a bucket, as JSON: what ``storage_options`` is on the storage resource.
_OPTIONS_VARIABLE = "DAGSTER_CKPT_STORAGE_OPTIONS"
_PATH = click.option(
    "--path",
    envvar="DAGSTER_CKPT_PATH",
    required=True,
    help="The checkpoint path, as on the storage resource. [env: DAGSTER_CKPT_PATH]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document.")


class _Group(click.Group):
    """Prints this package's errors as a message and a hint, without a traceback, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CheckpointError as error:
            click.secho(error.message, fg="red", err=True)
            if error.hint:
                click.echo(error.hint, err=True)
            sys.exit(1)


@click.group(cls=_Group)
@click.version_option(package_name="dagster-ckpt")
def main() -> None:
    """Checkpoints and savepoints of Spark jobs that Dagster runs."""


@main.command("list")
@click.argument("job", required=False)
@_PATH
@_JSON
def list_checkpoints(job: str | None, path: str, as_json: bool) -> None:
    """List the completed checkpoints of JOB, or of every job, the newest last."""
    filesystem = _storage(path)
    jobs = [job] if job else _jobs(filesystem)
    if not jobs:
        raise CheckpointNotFound(f"There is no job in {filesystem.url}.", hint="Is --path the checkpoint path?")
    rows = []
    for name in jobs:
        catalog = CheckpointCatalog(filesystem, name)
        newest = _quietly(lambda catalog=catalog: catalog.newest().metadata)  # type: ignore[misc]
        pinned = Pins(filesystem, name).reasons()
        quarantined = {reference: record.reason for reference, record in catalog.quarantine.records().items()}
        for job_id in sorted(catalog.job_ids()):
            completed, broken = catalog.completed(job_id)
            found = [(item.reference, _row(item, catalog)) for item in completed]
            found += [(error.checkpoint, _unreadable_row(name, error)) for error in broken if error.checkpoint]
            rows += [
                {
                    **row,
                    "newest": newest is not None and reference == newest.reference,
                    "pinned": reference in pinned,
                    "pin_reason": pinned.get(reference, ""),
                    "quarantined": reference in quarantined,
                    "quarantine_reason": quarantined.get(reference, ""),
                }
                for reference, row in found
            ]
            for error in broken:
                click.secho(error.message, fg="red", err=True)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("job", "checkpoint", "batch", "epoch", "kind", "files", "bytes", "new bytes", "written", "")
    for row in rows:
        numbers = ["?" if row[name] is None else f"{row[name]:,}" for name in ("files", "bytes", "new_bytes")]
        table.add_row(
            row["job"],
            row["checkpoint"],
            "?" if row["batch"] is None else str(row["batch"]),
            "?" if row["epoch"] is None else str(row["epoch"]),
            row["kind"],
            *numbers,
            (row["written_at"] or "?")[:19],
            ", ".join(mark for mark in ("newest", "pinned", "quarantined") if row[mark]),
        )
    _print(table)
    for row in rows:
        if row["quarantined"]:
            click.echo(f"{row['checkpoint']} is in quarantine: {row['quarantine_reason']}")


@main.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@_PATH
@_JSON
def describe(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Tell what CHECKPOINT of JOB holds: 'latest', chk-N, a job id with /chk-N, or a path."""
    catalog = CheckpointCatalog(_storage(path), job)
    metadata = _find(catalog, checkpoint)
    document = {
        **_row(metadata, catalog),
        "mode": metadata.mode,
        "restored_from": metadata.restored_from,
        "accepted_loss": metadata.facts.get("accepted_loss", []),
        "timings_ms": dict(metadata.timings_ms),
        "writer": dict(metadata.writer),
        "spark": dict(metadata.facts),
        "sink": None if metadata.sink is None else dict(metadata.sink),
        "stored": [
            {"path": file.path, "bytes": file.size, "in": file.reference or "_metadata"} for file in metadata.files
        ],
    }
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    for key, value in document.items():
        if key != "stored":
            click.echo(f"{key:<14} {json.dumps(value) if isinstance(value, dict | list) else value}")
    for file in metadata.files:
        click.echo(f"  {file.size:>12,}  {file.path}  ({file.reference or 'in _metadata'})")


@main.command()
@click.argument("job")
@click.argument("checkpoint", required=False)
@_PATH
def verify(job: str, checkpoint: str | None, path: str) -> None:
    """Read every byte of CHECKPOINT of JOB, or of all its checkpoints, and compare sizes and checksums.

    Exits with 1 if anything is missing or changed.
    """
    catalog = CheckpointCatalog(_storage(path), job)
    found: list[CheckpointMetadata] = []
    errors: list[CorruptCheckpoint] = []
    if checkpoint is not None:
        found.append(_find(catalog, checkpoint))
    else:
        for job_id in sorted(catalog.job_ids()):
            completed, broken = catalog.completed(job_id)
            found += completed
            errors += broken
    if not found and not errors:
        raise CheckpointNotFound(f"Job {job!r} has no completed checkpoint in {catalog.filesystem.url}.")
    bad = len(errors)
    for error in errors:
        click.secho(error.message, fg="red")
    for metadata in found:
        try:
            catalog.verify(metadata)
        except CheckpointError as error:
            bad += 1
            click.secho(error.message, fg="red")
            click.echo(error.hint)
        else:
            click.echo(f"{metadata.reference}  {len(metadata.files)} files, {metadata.size:,} bytes  verified")
    if bad:
        sys.exit(1)


@main.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@_PATH
@_JSON
def preflight(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Tell whether CHECKPOINT of JOB can be restored, as far as that is known without its query. Changes nothing.

    Checked are its files, its logs, the input that would be read again, the sink, Spark's version, and who else runs.
    Exits with 0 for RESTORABLE, 1 for WITH_LOSS, 2 for NOT_RESTORABLE.
    """
    catalog = CheckpointCatalog(_storage(path), job)
    try:
        found = check_stored(
            catalog, _find(catalog, checkpoint), asked=checkpoint, clock=SystemClock(), wait=time.sleep
        )
    except CheckpointError as error:
        found = Preflight(checkpoint, (Finding.of_error("checkpoint", error),))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else "\n".join(found.lines()))
    sys.exit(found.verdict.severity)


@main.command()
@click.argument("job")
@_PATH
@click.option("--num-retained", type=int, default=10, show_default=True, help="Keep so many of the newest.")
@click.option("--retain-for", metavar="DURATION", help="Keep those younger than this as well, such as '7 d'.")
@click.option("--retain-every", type=int, help="Keep those whose id is a multiple of this as well.")
@_JSON
def retention(
    job: str, path: str, num_retained: int, retain_for: str | None, retain_every: int | None, as_json: bool
) -> None:
    """Tell what a retention would keep and delete of JOB, why, and how many bytes that would free.

    A dry run: nothing is deleted. The options are those of CheckpointConfig. What is pinned stays in any case.
    """
    config = CheckpointConfig(num_retained=num_retained, retain_for=retain_for, retain_every=retain_every)
    catalog = CheckpointCatalog(_storage(path), job)
    newest = catalog.newest()
    if newest.job_id is None:
        raise CheckpointNotFound(f"Job {job!r} has no checkpoint in {catalog.filesystem.url}: {newest.reason}.")
    everything, broken = catalog.completed(newest.job_id)
    for error in broken:
        click.secho(f"{error.message} While it is there, no shared file is deleted.", fg="red", err=True)
    quarantined = catalog.quarantine.names()
    completed = [item for item in everything if item.reference not in quarantined]
    if quarantined:
        click.echo(f"In quarantine, neither counted nor deleted: {', '.join(sorted(quarantined))}", err=True)
    pinned = KeepPinned(Pins(catalog.filesystem, job).reasons())
    policy = AnyOf((pinned, config.retention)) if pinned.names else config.retention
    savepoints = RecordedSavepoints(catalog.filesystem, job).known()
    decisions = decide(policy, for_retention(completed, savepoints), SystemClock().time())
    freed = reclaimable_bytes(catalog, everything, {decision.name for decision in decisions if not decision.keep})
    rows = [
        {
            **_row(metadata, catalog),
            "keep": decision.keep,
            "reason": decision.reason,
            "freed_bytes": freed.get(metadata.reference, 0),
        }
        for metadata, decision in zip(completed, decisions, strict=True)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("checkpoint", "written", "bytes", "", "frees", "reason")
    for row in rows:
        table.add_row(
            row["checkpoint"],
            row["written_at"][:19],
            f"{row['bytes']:,}",
            "keep" if row["keep"] else "delete",
            "" if row["keep"] else f"{row['freed_bytes']:,}",
            row["reason"],
        )
    _print(table)
    click.echo(f"{len(freed)} of {len(rows)} would be deleted, which frees {sum(freed.values()):,} bytes.")


@main.command()
@click.argument("job")
@click.argument("checkpoint")
@_PATH
@click.option("--reason", default="", help="Why, for whoever looks at it later.")
def pin(job: str, checkpoint: str, path: str, reason: str) -> None:
    """Keep CHECKPOINT of JOB until it is unpinned: neither retention nor the cleanup at the job's end deletes it.

    CHECKPOINT is 'latest', chk-N, a job id with /chk-N, or a path. To move a checkpoint elsewhere, take a savepoint.
    """
    catalog = CheckpointCatalog(_storage(path), job)
    pinned = pin_checkpoint(catalog, _find(catalog, checkpoint), reason, SystemClock())
    click.echo(f"{pinned.checkpoint} is pinned{f': {pinned.reason}' if pinned.reason else ''}.")


@main.command()
@click.argument("job")
@click.argument("checkpoint")
@_PATH
def unpin(job: str, checkpoint: str, path: str) -> None:
    """Take the pins off CHECKPOINT of JOB: chk-N, or a job id with /chk-N. It goes when the retention says so."""
    catalog = CheckpointCatalog(_storage(path), job)
    click.echo(f"{unpin_checkpoint(catalog, checkpoint)} is not pinned any more.")


@main.command()
@click.argument("job")
@_PATH
@click.option(
    "--to",
    envvar="DAGSTER_CKPT_SAVEPOINT_PATH",
    help="Directory for savepoints; a running job knows its savepoint_path. [env: DAGSTER_CKPT_SAVEPOINT_PATH]",
)
@click.option("--stop", is_flag=True, help="Stop the running job with it; it ends successfully.")
@click.option("--drain", is_flag=True, help="Not possible with Spark; refused.")
@click.option("--timeout", default="10 min", show_default=True, help="How long to wait for a running job.")
@_JSON
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
        CheckpointCatalog(_storage(path), job),
        to,
        default=None,
        stop=stop,
        timeout=timeout,
        clock=clock,
        wait=time.sleep,
        report=lambda text: click.echo(text, err=True),
    )
    if as_json:
        click.echo(json.dumps(asdict(taken), indent=2))
        return
    click.echo(
        f"Batch {taken.batch}, {taken.files} files, {taken.size:,} bytes, in {taken.seconds:.1f} s:",
        err=True,
    )
    click.echo(taken.pointer)


@main.command()
@click.argument("job")
@click.argument("batch", type=int, required=False)
@_PATH
@_JSON
def batch(job: str, batch: int | None, path: str, as_json: bool) -> None:
    """Tell what is in BATCH of JOB, by default in the newest that was planned.

    That is: the offsets and the files it reads, whether it is done and which checkpoint covers it, and its failures.
    """
    report = report_batch(CheckpointCatalog(_storage(path), job), batch)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
        return
    for line in report.lines():
        click.echo(line)


@main.command()
@click.argument("savepoint")
def dispose(savepoint: str) -> None:
    """Delete the savepoint in the directory SAVEPOINT. Broken off, it is finished by the same command.

    Also the directory of a checkpoint that is in quarantine, or whose _metadata cannot be read.
    """
    directory = _storage(savepoint.rstrip("/").removesuffix(f"/{METADATA_FILE_NAME}")).url
    parent, _, name = directory.rpartition("/")
    above, _, lineage = parent.rpartition("/")
    if is_job_id(lineage) and (number := checkpoint_id(name)) is not None:
        root, _, job = above.rpartition("/")
        catalog = CheckpointCatalog(_storage(root), job)
        if is_broken(catalog, lineage, number):
            done = dispose_broken(catalog, lineage, number)
            later = f"Job {job} is not over: its next checkpoint, or its next start, deletes {directory}."
            click.echo(f"{directory} is deleted." if done else later)
            return
    unknown = dispose_savepoint(_storage(parent or "/"), name)
    click.echo(f"{directory} is no savepoint any more.")
    if unknown:
        click.echo(f"Its directory stays, for what is not of the savepoint: {', '.join(unknown)}", err=True)


@main.command()
@click.argument("job", required=False)
@_PATH
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted, and delete nothing.")
@click.option(
    "--older-than",
    metavar="DURATION",
    help="Also what only age can tell: end a job whose run died without an end so long ago, such as '7 d', and remove "
    "the records of one that has been over for so long and of which nothing is left.",
)
@click.option("--quarantined", is_flag=True, help="Delete checkpoints in quarantine, too; none that is pinned.")
@_JSON
def sweep(job: str | None, path: str, dry_run: bool, older_than: str | None, quarantined: bool, as_json: bool) -> None:
    """Delete files that no checkpoint needs of JOB, or of every job that is over.

    That is what attempts that died have left in lineages that nobody goes on with, unfinished deletions, and forks that
    never began. Checkpoints, savepoints and what is pinned stay. A job that runs, or is to be restarted, is refused.
    """
    filesystem = _storage(path)
    try:
        age = None if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise InvalidConfiguration(f"--older-than: {error}.", hint="Write it as '7 d', for example.") from None
    swept, refused = [], []
    for name in [job] if job else _jobs(filesystem):
        try:
            swept.append(
                sweep_job(
                    CheckpointCatalog(filesystem, name),
                    SystemClock(),
                    dry_run=dry_run,
                    quarantined=quarantined,
                    older_than=age,
                    report=lambda orphan: None if as_json else click.echo(str(orphan)),
                )
            )
        except (JobAlreadyRunning, InvalidConfiguration) as error:
            if job:
                raise
            refused.append({"job": name, "refused": f"{error.message} {error.hint}"})
            click.secho(f"{error.message} {error.hint}", fg="yellow", err=True)
    if as_json:
        click.echo(json.dumps([*(item.to_json(dry_run=dry_run) for item in swept), *refused], indent=2))
        return
    for item in swept:
        for line in item.lines(dry_run=dry_run):
            click.echo(line)


def _storage(path: str) -> FileSystem:
    try:
        options = dict(json.loads(os.environ.get(_OPTIONS_VARIABLE) or "{}"))
    except ValueError as error:
        raise InvalidConfiguration(
            f"{_OPTIONS_VARIABLE} is no JSON object: {error}",
            hint='Write it as {"token": "/path/of/a/key/file"}, or leave it out.',
        ) from None
    return open_filesystem(path, storage_options=options if "://" in path and not path.startswith("file:") else None)


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _jobs(filesystem: FileSystem) -> list[str]:
    """The directories that are those of jobs; others may have directories of theirs beside them."""
    return sorted(
        entry.name
        for entry in filesystem.list("")
        if entry.is_directory
        and is_job_name(entry.name)
        and Entry(CONTROL_DIR, is_directory=True) in filesystem.list(entry.name)
    )


def _find(catalog: CheckpointCatalog, checkpoint: str) -> CheckpointMetadata:
    if checkpoint != LATEST:
        return catalog.resolve(checkpoint)
    newest = catalog.newest()
    if newest.metadata is None:
        raise CheckpointNotFound(f"Job {catalog.job_name!r} has nothing to go on from: {newest.reason}.")
    return newest.metadata


def _unreadable_row(job: str, error: CorruptCheckpoint) -> dict[str, Any]:
    unknown = dict.fromkeys(("pointer", "batch", "epoch", "files", "bytes", "new_bytes", "written_at"))
    return {"job": job, "checkpoint": error.checkpoint, **unknown, "kind": "unreadable"}


def _quietly(ask: Callable[[], CheckpointMetadata | None]) -> CheckpointMetadata | None:
    """A job whose newest checkpoint is broken is still listed; `verify` says what is wrong."""
    try:
        return ask()
    except CheckpointError as error:
        click.secho(error.message, fg="red", err=True)
        return None


def _row(metadata: CheckpointMetadata, catalog: CheckpointCatalog) -> dict[str, Any]:
    files: Sequence[object] = metadata.files
    return {
        "job": metadata.job_name,
        "checkpoint": metadata.reference,
        "pointer": catalog.pointer(metadata),
        "batch": metadata.batch,
        "epoch": metadata.epoch,
        "kind": metadata.kind,
        "files": len(files),
        "bytes": metadata.size,
        "new_bytes": metadata.new_bytes,
        "written_at": metadata.written_at,
    }


if __name__ == "__main__":
    main()
