"""``dagster-ckpt run``: a job without Dagster's instance."""

from __future__ import annotations

import sys
from typing import Any

import click

from dagster_ckpt.cli.places import COUNT, JSON, START_SOURCES, job_arguments, job_options, not_empty, repeated
from dagster_ckpt.config import LATEST, RecoveryClaimMode

__all__ = ["run"]


@click.command()
@job_options
@click.option(
    "--savepoint-path",
    envvar="DAGSTER_CKPT_SAVEPOINT_PATH",
    show_envvar=True,
    callback=not_empty,
    help="With --path: directory for savepoints that are asked for without one.",
)
@repeated("--set", "A setting of this run by Flink's key, such as 'execution.checkpointing.interval=10 s'.")
@click.option(
    "--restore-from",
    default=LATEST,
    show_default=True,
    help="'latest'; 'none'; chk-N, a job id with /chk-N, savepoint:NAME, or the path of a checkpoint or savepoint.",
)
@click.option(
    "--claim-mode",
    type=click.Choice([mode.value for mode in RecoveryClaimMode], case_sensitive=False),
    help="Whose the restored checkpoint becomes: the job's, or nobody's.",
)
@click.option("--replay-to", help="Up to which batch those after the checkpoint run again as they were.")
@click.option("--allow-loss", is_flag=True, help="Restore although rows would be lost or doubled.")
@click.option("--fork-from", help="A checkpoint or savepoint of any job, to begin with a copy of it.")
@click.option("--state-partitions", type=COUNT, help="The number of partitions of the state in the restored copy.")
@START_SOURCES
@click.option("--code-version", help="The version of the code that runs from now on, of those that the asset has.")
@JSON
@click.pass_context
def run(
    context: click.Context,
    /,
    target: str,
    resources: str | None,
    savepoint_path: str | None,
    set: dict[str, str],  # noqa: A002 - the name of the option
    restore_from: str,
    claim_mode: str | None,
    replay_to: str | None,
    allow_loss: bool,
    fork_from: str | None,
    state_partitions: int | None,
    start_sources: dict[str, Any] | None,
    code_version: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run the job of an asset or of a function, and resume it until it ends: without Dagster's instance.

    MODULE:NAME is what `@checkpointed_streaming_asset` has made, or such a function undecorated, imported from the
    working directory or from what is installed. The files are those of a run under Dagster, and while one run of the
    job is alive, another is refused. The job runs in a child process: if that is lost, the next one resumes the job as
    its restart strategy says.

    Ctrl-C, SIGTERM and SIGHUP interrupt the job: its next run goes on, and no restart is used up. `dagster-ckpt stop`
    ends it with a savepoint, and `dagster-ckpt cancel` without.

    With --json, how the job stands at the end is one document: its status, its name, its newest checkpoint, the reason
    and the next step if anything went wrong, and the exit status. The log goes to stderr.

    Exits with 0 for FINISHED, 5 for FAILED, 6 for CANCELED, 7 for one that another run or another deployment has, 1 for
    a job that was not begun, and 128 and the number of the signal (130 for Ctrl-C, 143 for SIGTERM) for one that was
    interrupted.
    """
    from dagster_ckpt.cli.driver_process import Order, keep_running  # noqa: PLC0415 - not for --help

    arguments = {
        **job_arguments(context, resources=resources, savepoint_path=savepoint_path, **given),
        "configuration": set,
        "restore_from": restore_from,
        "claim_mode": claim_mode and RecoveryClaimMode(claim_mode),
        "replay_to": replay_to,
        "allow_loss": allow_loss,
        "fork_from": fork_from,
        "state_partitions": state_partitions,
        "start_sources": start_sources,
        "code_version": code_version,
    }
    sys.exit(keep_running(Order(target, arguments, resources), as_json=as_json))
