"""``dagster-ckpt restore``: has Dagster take a job back."""

from __future__ import annotations

import json
import shlex
import sys
import time
from datetime import timedelta
from typing import Any

import click

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.cli.places import COUNT, DURATION, JSON, START_SOURCES, optional_storage_path, storage_at
from dagster_ckpt.cli.printing import say, say_json, warn
from dagster_ckpt.cli.rollback.webserver import RunState, Webserver
from dagster_ckpt.cli.spark_files import exit_status, stored_verdict
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import LATEST, NONE, NOW, RestoreRequest
from dagster_ckpt.errors import CheckpointError, JobAlreadyRunning
from dagster_ckpt.orchestration import JOB_TAG, RESTORE_TAG, ROLLBACK_TAG, VERDICT_TAG, rollback_job
from dagster_ckpt.spark import Finding, Preflight, Verdict

__all__ = ["restore"]

#: Seconds between two looks at the run.
_LOOK = 1.0


@click.command()
@click.argument("job")
@click.argument("to")
@optional_storage_path
@click.option(
    "--dagster-url",
    envvar="DAGSTER_CKPT_DAGSTER_URL",
    show_envvar=True,
    help="The webserver of Dagster that runs the job, such as http://localhost:3000.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would be launched, and preflight's verdict; needs --path.")
@click.option("--check-only", is_flag=True, help="Have Dagster check it, with the job's own settings; change nothing.")
@click.option("--allow-loss", is_flag=True, help="Go back even if rows would be lost or doubled.")
@click.option("--state-partitions", type=COUNT, help="The number of partitions of the state in the restored copy.")
@START_SOURCES
@click.option("--code-version", help="The version of the code that the job runs from there on.")
@click.option(
    "--timeout", type=DURATION, default="15 min", show_default=True, help="How long to wait for the rollback to end."
)
@JSON
def restore(
    job: str,
    to: str,
    path: str | None,
    dagster_url: str | None,
    dry_run: bool,
    check_only: bool,
    allow_loss: bool,
    state_partitions: int | None,
    start_sources: dict[str, Any] | None,
    code_version: str | None,
    timeout: timedelta,
    as_json: bool,
) -> None:
    """Take JOB, which Dagster runs, back TO chk-N, savepoint:NAME, the path of one, 'latest' or 'none' (nothing).

    With TO 'now', JOB is stopped with a savepoint and goes on from there, with another --code-version for example.

    The run of <job>_rollback is launched, as by the links in Dagster: it checks first, terminates the job's run, and
    has one launched that goes back. This command waits for its end.

    Exits with 0 for a job that has gone back; 3 if the run has refused because rows would be lost or doubled, and 4 if
    because going back is impossible, with the job as it was; 1 for any other failure, and the error says how the job is
    now. With --dry-run and --check-only, 0 is RESTORABLE, 3 WITH_LOSS, 4 NOT_RESTORABLE.
    """
    patience = timeout.total_seconds()
    config: dict[str, Any] = {"to": to, "check_only": check_only, "allow_loss": allow_loss}
    if state_partitions is not None:
        config["state_partitions"] = state_partitions
    if start_sources is not None:
        config["start_sources"] = start_sources
    if code_version is not None:
        config["code_version"] = code_version
    if dry_run:
        if path is None:
            raise click.UsageError("--dry-run needs --path (or DAGSTER_CKPT_PATH): it reads the checkpoint.")
        _dry_run(job, to, path, config, dagster_url, as_json=as_json)
    if dagster_url is None:
        raise click.UsageError("Give --dagster-url (or DAGSTER_CKPT_DAGSTER_URL).")
    server = Webserver(dagster_url)
    run_id = server.launch(server.find(rollback_job(job)), config, RESTORE_TAG)
    page = f"{server.url}/runs/{run_id}"
    warn(f"Run {run_id} of {rollback_job(job)} is launched: {page}")
    run = _watch(server, run_id, patience)
    told = run.tags.get(VERDICT_TAG)
    if as_json:
        say_json({"job": job, "to": to, "run": run_id, "status": run.status, "verdict": told})
    else:
        say(f"{run.status}{f', {told}' if told else ''}")
    if run.status == "SUCCESS":
        sys.exit(exit_status(Verdict(told or Verdict.NOT_RESTORABLE)) if check_only else 0)
    # With the verdict the run tells that it accepts the verdict. What fails from then on has another reason.
    accepts = ROLLBACK_TAG in run.tags
    refused = not accepts and told in {Verdict.NOT_RESTORABLE, *(() if allow_loss else (Verdict.WITH_LOSS,))}
    if refused and told is not None and run.status == "FAILURE":
        sys.exit(exit_status(Verdict(told)))
    again = ["dagster-ckpt", "restore", job, to]
    again += ["--check-only"] if check_only else []
    again += ["--allow-loss"] if allow_loss else []
    again += [] if state_partitions is None else ["--state-partitions", str(state_partitions)]
    again += [] if code_version is None else ["--code-version", code_version]
    again += [] if start_sources is None else ["--start-sources", json.dumps(start_sources)]
    again += ["--dagster-url", server.url]
    raise CheckpointError(
        f"Run {run_id} of {rollback_job(job)} is {run.status}. "
        f"{_state_now(server, job) if accepts else f'Nothing is changed: job {job!r} is as it was.'}",
        hint=f"See {page} for the reason, and then `{shlex.join(again)}`.",
    )


def _state_now(server: Webserver, job: str) -> str:
    """How a job is that a rollback had begun to take back."""
    try:
        active = server.active(JOB_TAG, job)
    except CheckpointError as error:
        return f"Job {job!r} may have been stopped, and whether it runs now cannot be told: {error.message}"
    if active is None:
        return f"Job {job!r} may have been stopped: no run of it is active now."
    run_id, status = active
    return f"Run {run_id} of job {job!r} is {status} now."


def _watch(server: Webserver, run_id: str, patience: float) -> RunState:
    """How the run ended.

    Raises:
        CheckpointError: the run has not ended in time, or the webserver has gone away for good.
    """
    clock = SystemClock()
    began, told = clock.monotonic(), ""
    while True:
        is_late = clock.monotonic() - began > patience
        try:
            run = server.run(run_id)
        except CheckpointError as error:
            if is_late:
                raise
            status = error.message  # the run goes on, and the webserver may come back
        else:
            if run.is_over:
                return run
            status = run.status
            if is_late:
                raise CheckpointError(
                    f"Run {run_id} has not ended within {patience:.0f} s; its status is {status}.",
                    hint=f"The run goes on. See {server.url}/runs/{run_id}.",
                )
        if status != told:
            told = status
            warn(f"{told} ...")
        time.sleep(_LOOK)


def _dry_run(job: str, to: str, path: str, config: dict[str, Any], url: str | None, *, as_json: bool) -> None:
    catalog = CheckpointCatalog(storage_at(path), job)
    request = RestoreRequest(
        LATEST if to == NOW else to,
        state_partitions=config.get("state_partitions"),
        start_sources=config.get("start_sources"),
    )
    verdict = _nothing(catalog) if to == NONE else stored_verdict(catalog, request, terminates=True)
    if as_json:
        launch = {"job": rollback_job(job), "run_config": config, "url": url}
        say_json({"launch": launch, "preflight": verdict.to_json()})
    else:
        say(f"Would launch {rollback_job(job)}{f' at {url}' if url else ''} with:")
        for key, value in config.items():
            say(f"  {key}: {value if isinstance(value, str) else str(value).lower()}")
        for line in verdict.lines():
            say(line)
    sys.exit(exit_status(verdict.verdict))


def _nothing(catalog: CheckpointCatalog) -> Preflight:
    """The verdict on a start from nothing."""
    check = "sink position"
    heartbeat, dead = catalog.records.heartbeat.watched(SystemClock(), time.sleep)
    if heartbeat is None or dead is not None:
        finding = Finding.fine(check, "not checked: the sink must be empty.")
    else:
        error = JobAlreadyRunning(
            f"Run {heartbeat.run_id} drives job {catalog.job_name!r}, and a start from nothing needs an empty sink: "
            "the rollback would be refused, and the run would go on.",
            hint=f"Terminate run {heartbeat.run_id}, empty the sink, and roll back again.",
        )
        finding = Finding.of_error(check, error)
    return Preflight("nothing", (finding,))
