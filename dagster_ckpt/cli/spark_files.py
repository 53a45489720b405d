"""The commands that read Spark's own files: what is in a batch, and whether a checkpoint can be restored."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

import click

from dagster_ckpt.checkpoint import CheckpointCatalog, is_job
from dagster_ckpt.cli.batch_report import report_batch
from dagster_ckpt.cli.places import COUNT, JSON, START_SOURCES, find_checkpoint, storage_at, storage_path
from dagster_ckpt.cli.printing import progress, say, say_json, warn
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, RestoreRequest, format_size
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, StorageError
from dagster_ckpt.shown_text import counted
from dagster_ckpt.spark import Finding, Preflight, Verdict, check_stored, export_checkpoint

__all__ = ["batch", "exit_status", "export", "preflight", "stored_verdict"]

#: The exit statuses 1 and 2 say that a command failed, and that it was called wrongly.
_OTHER_STATUSES = 2


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@click.option("--state-partitions", type=COUNT, help="Check a restore with this number of state partitions.")
@START_SOURCES
@storage_path
@JSON
def preflight(
    job: str,
    checkpoint: str,
    state_partitions: int | None,
    start_sources: dict[str, Any] | None,
    path: str,
    as_json: bool,
) -> None:
    """Tell whether CHECKPOINT of JOB can be restored, as far as that is known without its query. Changes nothing.

    Checked are its files, its logs, the input that would be read again, the sink, Spark's version, and who else runs.
    Exits with 0 for RESTORABLE, 3 for WITH_LOSS, 4 for NOT_RESTORABLE.
    """
    request = RestoreRequest(checkpoint, state_partitions=state_partitions, start_sources=start_sources)
    found = stored_verdict(CheckpointCatalog(storage_at(path), job), request)
    if as_json:
        say_json(found.to_json())
    else:
        for line in found.lines():
            say(line)
    sys.exit(exit_status(found.verdict))


def stored_verdict(catalog: CheckpointCatalog, request: RestoreRequest, *, terminates: bool = False) -> Preflight:
    """The verdict on a restore of a stored checkpoint.

    Args:
        catalog: the job's checkpoints.
        request: names the checkpoint as the user does; one that does not exist, or is broken, is a verdict, too.
        terminates: whether the run that drives the job would be terminated before the restore.

    Raises:
        StorageError: the storage failed, which says nothing of the checkpoint.
    """
    try:
        heartbeat = catalog.records.heartbeat.read() if terminates else None
        found = check_stored(
            catalog,
            find_checkpoint(catalog, request.restore_from),
            request,
            clock=SystemClock(),
            wait=time.sleep,
            terminates=() if heartbeat is None else (heartbeat.run_id,),
        )
    except StorageError:
        raise
    except CheckpointError as error:
        if isinstance(error, CheckpointNotFound) and not is_job(catalog.filesystem, catalog.job_name):
            raise  # a job that is not there has no verdict
        return Preflight(request.restore_from, (Finding.of_error("checkpoint", error),))
    for item in found.findings:
        if isinstance(item.error, StorageError):
            raise item.error
    return found


def exit_status(verdict: Verdict) -> int:
    """The exit status of a command that tells a verdict."""
    return verdict.severity and verdict.severity + _OTHER_STATUSES


@click.command()
@click.argument("job")
@click.argument("batch", type=click.IntRange(0), required=False)
@storage_path
@JSON
def batch(job: str, batch: int | None, path: str, as_json: bool) -> None:
    """Tell what is in BATCH of JOB, by default in the newest that was planned.

    That is: the offsets and the files it reads, whether it is done and which checkpoint covers it, and its failures.
    """
    report = report_batch(CheckpointCatalog(storage_at(path), job), batch)
    if as_json:
        say_json(asdict(report))
        return
    for line in report.lines():
        say(line)


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@storage_path
@click.option("--to", required=True, help="The directory, which must not be there yet, or be empty.")
@click.option("--allow-loss", is_flag=True, help="Export even if rows would be lost or doubled.")
@JSON
def export(job: str, checkpoint: str, path: str, to: str, allow_loss: bool, as_json: bool) -> None:
    """Write CHECKPOINT of JOB as a plain checkpointLocation, with which Spark goes on without this library.

    The job must be over, and its sink must stand where the checkpoint does. Job and sink stay as they are.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    metadata = find_checkpoint(catalog, checkpoint)
    with progress(f"Exporting {metadata.name}", metadata.size) as told:
        done = export_checkpoint(
            catalog, metadata, to, clock=SystemClock(), wait=time.sleep, allow_loss=allow_loss, told=told
        )
    if as_json:
        say_json({**asdict(done), "code": list(done.code)})
        return
    for reason in done.accepted_loss:
        warn(f"Accepted: {reason}", color="yellow")
    warn(f"{done.checkpoint}: batch {done.batch}, {counted(done.files, 'file')}, {format_size(done.size)}.")
    warn(f"Do not launch the job {job} again. Let Spark {done.spark_version or ''} or later go on from there with")
    for line in done.code:
        warn(f"    {line}")
    say(done.location)
