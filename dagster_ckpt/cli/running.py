"""``dagster-ckpt run``: a job without Dagster's instance."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from dagster_ckpt.cli.places import connection_options, optional_storage_path
from dagster_ckpt.config import LATEST, RecoveryClaimMode

__all__ = ["import_path", "json_object", "pairs", "run"]


def pairs(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The values of a repeated option KEY=VALUE, by key."""
    split = [item.partition("=") for item in given]
    for key, separator, text in split:
        if not separator or not key:
            raise click.BadParameter(f"{key + separator + text!r} is not KEY=VALUE.", context, option)
    return {key: text for key, _, text in split}


def json_object(context: click.Context, option: click.Parameter, given: str | None) -> dict[str, Any]:
    """The value of an option that is a JSON object."""
    try:
        found = json.loads(given or "{}")
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is not JSON: {error}.", context, option) from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{given!r} is no JSON object.", context, option)
    return found


def import_path(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """The value of an argument MODULE:NAME."""
    if given is not None and not all(given.partition(":")):
        raise click.BadParameter(f"{given!r} is not MODULE:NAME.", context, option)
    return given


_Command = Callable[..., None]


def _repeated(name: str, help_: str) -> Callable[[_Command], _Command]:
    return click.option(name, metavar="KEY=VALUE", multiple=True, callback=pairs, help=f"{help_} May be repeated.")


@click.command()
@click.argument("target", metavar="MODULE:NAME", callback=import_path)
@optional_storage_path
@click.option(
    "--savepoint-path",
    envvar="DAGSTER_CKPT_SAVEPOINT_PATH",
    show_envvar=True,
    help="With --path: directory for savepoints that are asked for without one.",
)
@click.option(
    "--resources",
    metavar="MODULE:NAME",
    callback=import_path,
    help="The dictionary of resources, or the Definitions, that Dagster gets: the storage, Spark, and those that the "
    "function takes.",
)
@click.option("--name", help="Of the job, for a function that is no asset. [default: that of the function]")
@_repeated("--set", "A setting of this run by Flink's key, such as 'execution.checkpointing.interval=10 s'.")
@_repeated("--conf", "A setting of Spark, where --resources has no Spark.")
@click.option("--master", help="Spark master URL, where --resources has no Spark. [default: local[*]]")
@click.option(
    "--op-config", metavar="JSON", callback=json_object, help="The fields of the function's own dg.Config, as JSON."
)
@click.option(
    "--restore-from",
    default=LATEST,
    show_default=True,
    help="'latest'; 'none'; chk-N, a job id with /chk-N, or the path of a checkpoint or savepoint.",
)
@click.option(
    "--claim-mode",
    type=click.Choice([mode.value for mode in RecoveryClaimMode], case_sensitive=False),
    help="Whose the restored checkpoint becomes: the job's, or nobody's.",
)
@click.option("--replay-to", help="Up to which batch those after the checkpoint run again as they were.")
@click.option("--allow-loss", is_flag=True, help="Restore although rows would be lost or doubled.")
@click.option("--fork-from", help="A checkpoint or savepoint of any job, to begin with a copy of it.")
@click.pass_context
def run(
    context: click.Context,
    target: str,
    path: str | None,
    savepoint_path: str | None,
    resources: str | None,
    name: str | None,
    set: dict[str, str],  # noqa: A002 - the name of the option
    conf: dict[str, str],
    master: str | None,
    op_config: dict[str, Any],
    restore_from: str,
    claim_mode: str | None,
    replay_to: str | None,
    allow_loss: bool,
    fork_from: str | None,
) -> None:
    """Run the job of an asset or of a function, and resume it until it ends: without Dagster's instance.

    MODULE:NAME is what `@checkpointed_streaming_asset` has made, or such a function undecorated, imported from the
    working directory or from what is installed. The files are those of a run under Dagster, and while one run of the
    job is alive, another is refused. The job runs in a child process: if that is lost, the next one resumes the job as
    its restart strategy says.

    Ctrl-C, SIGTERM and SIGHUP interrupt the job: its next run goes on, and no restart is used up. `dagster-ckpt stop`
    ends it with a savepoint, and `dagster-ckpt cancel` without.

    Exits with 0 for FINISHED, 5 for FAILED, 6 for CANCELED, 7 for one that another run or another deployment has, 1 for
    a job that was not begun, and 128 and the number of the signal (130 for Ctrl-C, 143 for SIGTERM) for one that was
    interrupted.
    """
    from dagster_ckpt.cli.driver_process import Order, keep_running  # noqa: PLC0415 - not for --help

    if resources is not None and context.get_parameter_source("path") is ParameterSource.ENVIRONMENT:
        path = None
    elif resources is None and path is None:
        raise click.UsageError("Give --path (or DAGSTER_CKPT_PATH), or --resources with the storage.")
    storage = path and {
        "checkpoint_path": path,
        "savepoint_path": savepoint_path,
        "storage_options": connection_options(path),
    }
    spark = {key: value for key, value in (("master", master), ("conf", conf)) if value}
    arguments = {
        "storage": storage,
        "spark": spark or None,
        "name": name,
        "configuration": set,
        "restore_from": restore_from,
        "claim_mode": claim_mode and RecoveryClaimMode(claim_mode),
        "replay_to": replay_to,
        "allow_loss": allow_loss,
        "fork_from": fork_from,
        "op_config": op_config,
    }
    sys.exit(keep_running(Order(target, arguments, resources)))
