"""The commands that read Spark's own files: what is in a batch, and whether a checkpoint can be restored."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.cli.batch_report import report_batch
from dagster_ckpt.cli.places import JSON, PATH, find_checkpoint, storage_at
from dagster_ckpt.cli.printing import say, say_json
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark import Finding, Preflight, check_stored

__all__ = ["batch", "preflight"]


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@PATH
@JSON
def preflight(job: str, checkpoint: str, path: str, as_json: bool) -> None:
    """Tell whether CHECKPOINT of JOB can be restored, as far as that is known without its query. Changes nothing.

    Checked are its files, its logs, the input that would be read again, the sink, Spark's version, and who else runs.
    Exits with 0 for RESTORABLE, 1 for WITH_LOSS, 2 for NOT_RESTORABLE.
    """
    catalog = CheckpointCatalog(storage_at(path), job)
    try:
        found = check_stored(
            catalog, find_checkpoint(catalog, checkpoint), asked=checkpoint, clock=SystemClock(), wait=time.sleep
        )
    except CheckpointError as error:
        found = Preflight(checkpoint, (Finding.of_error("checkpoint", error),))
    if as_json:
        say_json(found.to_json())
    else:
        for line in found.lines():
            say(line)
    sys.exit(found.verdict.severity)


@click.command()
@click.argument("job")
@click.argument("batch", type=int, required=False)
@PATH
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
