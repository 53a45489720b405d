"""``dagster-ckpt drill``: a restore drill of a job."""

from __future__ import annotations

import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dagster_ckpt.cli.places import JSON, connection_options, optional_storage_path
from dagster_ckpt.cli.printing import say, say_json
from dagster_ckpt.cli.running import import_path, json_object, pairs
from dagster_ckpt.config import duration_of

__all__ = ["drill"]


@click.command()
@click.argument("target", metavar="MODULE:NAME", callback=import_path)
@optional_storage_path
@click.option(
    "--resources",
    metavar="MODULE:NAME",
    callback=import_path,
    help="The dictionary of resources, or the Definitions, that Dagster gets, as of `run`.",
)
@click.option("--name", help="Of the job, for a function that is no asset. [default: that of the function]")
@click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs,
    help="A setting of Spark, where --resources has no Spark. May be repeated.",
)
@click.option("--master", help="Spark master URL, where --resources has no Spark. [default: local[*]]")
@click.option(
    "--op-config", metavar="JSON", callback=json_object, help="The fields of the function's own dg.Config, as JSON."
)
@click.option("--scratch-directory", help="Where the copy lies. [default: the temporary directory]")
@click.option("--timeout", default="30 min", show_default=True, help="How long the batch may take.")
@JSON
@click.pass_context
def drill(
    context: click.Context,
    target: str,
    path: str | None,
    resources: str | None,
    name: str | None,
    conf: dict[str, str],
    master: str | None,
    op_config: dict[str, Any],
    scratch_directory: str | None,
    timeout: str,
    as_json: bool,
) -> None:
    """Restore the newest checkpoint of a job aside, and compute one batch of its query, whose rows go nowhere.

    MODULE:NAME is the asset or the function, as of `run`. The job may be running, and nothing of it is touched. Told
    are the seconds to the first committed batch and the age of the checkpoint. Exits with 1 if the drill fails.
    """
    from dagster_ckpt.cli.driver_process import Order  # noqa: PLC0415 - not for --help

    if resources is not None and context.get_parameter_source("path") is ParameterSource.ENVIRONMENT:
        path = None
    elif resources is None and path is None:
        raise click.UsageError("Give --path (or DAGSTER_CKPT_PATH), or --resources with the storage.")
    storage = path and {"checkpoint_path": path, "storage_options": connection_options(path)}
    spark = {key: value for key, value in (("master", master), ("conf", conf)) if value}
    arguments = {"storage": storage, "spark": spark or None, "name": name, "op_config": op_config}
    longest = duration_of("--timeout", timeout, "30 min")
    sys.path.insert(0, str(Path.cwd()))  # as `run` does
    drive = Order(target, arguments, resources).drive(uuid.uuid4().hex, ())
    done = drive.drill(scratch_directory=scratch_directory, timeout=longest)
    if as_json:
        say_json({**asdict(done), "recovery_seconds": done.recovery_seconds})
        return
    say(f"{done.job} can be restored from {done.checkpoint}: batch {done.batch} was computed, it read {done.read}.")
    say(
        f"Recovery time {done.recovery_seconds:.1f} s: Spark {done.spark_seconds:.1f}, restore "
        f"{done.restore_seconds:.1f}, query {done.build_seconds:.1f}, first batch {done.batch_seconds:.1f}."
    )
    say(f"Recovery point: {done.age_seconds:.0f} s old, {done.batches_behind} batches to run again.")
