"""``dagster-ckpt drill``: a restore drill of a job."""

from __future__ import annotations

import sys
import uuid
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from dagster_ckpt.cli.places import DURATION, JSON, job_arguments, job_options
from dagster_ckpt.cli.printing import progress, say, say_json
from dagster_ckpt.errors import CheckpointError

__all__ = ["drill"]


@click.command()
@job_options
@click.option("--scratch-directory", help="Where the copy lies. [default: the temporary directory]")
@click.option("--timeout", type=DURATION, default="30 min", show_default=True, help="How long the batch may take.")
@JSON
@click.pass_context
def drill(
    context: click.Context,
    /,
    target: str,
    resources: str | None,
    scratch_directory: str | None,
    timeout: timedelta,
    as_json: bool,
    **given: Any,
) -> None:
    """Restore the newest checkpoint of a job aside, and compute one batch of its query, whose rows go nowhere.

    MODULE:NAME is the asset or the function, as of `run`. The job may be running, and nothing of it is touched. Told
    are the seconds to the first committed batch and the age of the checkpoint. Exits with 1 if the drill fails.
    """
    from dagster_ckpt.cli.driver_process import Order, raised_by_users_code  # noqa: PLC0415 - not for --help

    arguments = job_arguments(context, resources=resources, **given)
    sys.path.insert(0, str(Path.cwd()))  # as `run` does
    try:
        drive = Order(target, arguments, resources).drive(uuid.uuid4().hex, ())
        done = drive.drill(scratch_directory=scratch_directory, timeout=timeout, bar=progress)
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:  # of the user's code, whose sys.exit() is no success of the drill
        raise raised_by_users_code(target, error) from error
    if as_json:
        say_json({**asdict(done), "recovery_seconds": done.recovery_seconds})
        return
    say(f"{done.job} can be restored from {done.checkpoint}: batch {done.batch} was computed ({done.read}).")
    say(
        f"Recovery time {done.recovery_seconds:.1f} s: Spark {done.spark_seconds:.1f}, restore "
        f"{done.restore_seconds:.1f}, query {done.build_seconds:.1f}, first batch {done.batch_seconds:.1f}."
    )
    say(f"Recovery point: {done.age_seconds:.0f} s old, {done.batches_behind} batches to run again.")
