"""``dagster-ckpt restore``: has Dagster take a job back."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.cli.places import JSON, find_checkpoint, optional_storage_path, storage_at
from dagster_ckpt.cli.printing import say, say_json, warn
from dagster_ckpt.cli.rollback.webserver import Webserver
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import NONE, duration_of
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.orchestration import VERDICT_TAG, rollback_job
from dagster_ckpt.spark import Finding, Preflight, Verdict, check_stored

__all__ = ["restore"]

#: Seconds between two looks at the run.
_LOOK = 1.0
#: The exit statuses 1 and 2 say that a command failed, and that it was called wrongly.
_OTHER_STATUSES = 2


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
@click.option("--timeout", default="15 min", show_default=True, help="How long to wait for the rollback to end.")
@JSON
def restore(
    job: str,
    to: str,
    path: str | None,
    dagster_url: str | None,
    dry_run: bool,
    check_only: bool,
    allow_loss: bool,
    timeout: str,
    as_json: bool,
) -> None:
    """Take JOB, which Dagster runs, back TO chk-N, savepoint:NAME, the path of one, 'latest' or 'none' (nothing).

    The run of <job>_rollback is launched, as by the links in Dagster: it checks first, terminates the job's run, and
    has one launched that goes back. This command waits for its end.

    Exits with 0 for a job that has gone back, 3 if rows would be lost or doubled, 4 if going back is impossible, 1 for
    any other failure. With --dry-run and --check-only, 0 is RESTORABLE, 3 WITH_LOSS, 4 NOT_RESTORABLE.
    """
    patience = duration_of("--timeout", timeout, "15 min").total_seconds()
    config = {"to": to, "check_only": check_only, "allow_loss": allow_loss}
    if dry_run:
        if path is None:
            raise click.UsageError("--dry-run needs --path (or DAGSTER_CKPT_PATH): it reads the checkpoint.")
        _dry_run(job, to, path, config, dagster_url, as_json=as_json)
    if dagster_url is None:
        raise click.UsageError("Give --dagster-url (or DAGSTER_CKPT_DAGSTER_URL).")
    server = Webserver(dagster_url)
    run_id = server.launch(server.find(rollback_job(job)), config)
    page = f"{server.url}/runs/{run_id}"
    warn(f"Run {run_id} of {rollback_job(job)} is launched: {page}")
    status, verdict = _watch(server, run_id, patience)
    if as_json:
        say_json({"job": job, "to": to, "run": run_id, "status": status, "verdict": verdict})
    else:
        say(f"{status}{f', {verdict}' if verdict else ''}")
    if status == "SUCCESS" and not check_only:
        sys.exit(0)
    # A verdict that would have allowed the rollback is not why it failed.
    refused = verdict in {Verdict.NOT_RESTORABLE, *(() if allow_loss else (Verdict.WITH_LOSS,))}
    if status == "SUCCESS" or refused:
        sys.exit(_status(Verdict(verdict or Verdict.NOT_RESTORABLE)))
    raise CheckpointError(f"Run {run_id} of {rollback_job(job)} is {status}.", hint=f"See {page}.")


def _watch(server: Webserver, run_id: str, patience: float) -> tuple[str, str | None]:
    """How the run ended, and the verdict that it told.

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
                return run.status, run.tags.get(VERDICT_TAG)
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
    if to == NONE:
        verdict = Preflight("nothing", (Finding.fine("sink position", "not checked: the sink must be empty."),))
    else:
        try:
            target, heartbeat = find_checkpoint(catalog, to), catalog.records.heartbeat.read()
            alive = () if heartbeat is None else (heartbeat.run_id,)  # the rollback would terminate it
            verdict = check_stored(catalog, target, asked=to, clock=SystemClock(), wait=time.sleep, terminates=alive)
        except CheckpointError as error:
            verdict = Preflight(to, (Finding.of_error("checkpoint", error),))
    if as_json:
        launch = {"job": rollback_job(job), "run_config": config, "url": url}
        say_json({"launch": launch, "preflight": verdict.to_json()})
    else:
        say(f"Would launch {rollback_job(job)}{f' at {url}' if url else ''} with:")
        for key, value in config.items():
            say(f"  {key}: {value if isinstance(value, str) else str(value).lower()}")
        for line in verdict.lines():
            say(line)
    sys.exit(_status(verdict.verdict))


def _status(verdict: Verdict) -> int:
    return verdict.severity and verdict.severity + _OTHER_STATUSES
