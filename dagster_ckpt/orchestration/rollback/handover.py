"""From a run of ``<job>_rollback``, which has stopped the job, to the run of the job that goes back.

A run cannot launch another job's run; the resume sensor can. So the rollback tags itself, the sensor launches the run
for each such tag, and the tag of the launched run names the rollback. Each step can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.run_settings import going_on, op_config, with_resources_of
from dagster_ckpt.shown_text import redacted

__all__ = [
    "ACCEPTED",
    "ask",
    "check_wanted",
    "goes_back",
    "has_chosen",
    "last_config",
    "pending",
    "requested",
    "settle",
    "why_over",
]

_ASKED, _SETTLED = "asked", "settled"
#: The tags of a rollback that accepts its own verdict, and goes on to stop the job.
ACCEPTED = {names.ROLLBACK_TAG: "accepted"}


def ask(instance: dg.DagsterInstance, rollback: str, to: str) -> None:
    """Ask the sensor for the run that goes back.

    Args:
        instance: the Dagster instance.
        rollback: the id of the asking run.
        to: the ``restore_from`` of the run to be launched.
    """
    tags = {names.ROLLBACK_TO_TAG: to, names.ASKING_TAG: rollback, names.ROLLBACK_TAG: _ASKED}
    instance.add_run_tags(rollback, tags)


def settle(instance: dg.DagsterInstance, rollback: str) -> None:
    """Ask no longer: the run was launched, or nobody waits for it."""
    instance.add_run_tags(rollback, {names.ROLLBACK_TAG: _SETTLED})


def goes_back(instance: dg.DagsterInstance, rollback: str) -> dg.DagsterRun | None:
    """The run that was launched for a rollback, ``None`` while there is none."""
    return next(iter(instance.get_runs(dg.RunsFilter(tags={names.ASKED_BY_TAG: rollback}), limit=1)), None)


def has_chosen(catalog: CheckpointCatalog, run: dg.DagsterRun) -> bool:
    """Whether a run has made the newest choice of the job: from then on the job goes on from what the run restores."""
    chosen = catalog.choice()
    claim = None if chosen is None else catalog.records.epochs.read_claim(chosen[0])
    return claim is not None and claim.run_id == run.run_id


def why_over(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Why a run is over, in one line: the error of its first failed step, else what Dagster was told."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED}
    for entry in instance.all_logs(run.run_id, of_type=kinds):
        event = entry.get_dagster_event()
        error = event.step_failure_data.error if event.is_step_failure else None
        cause = None if error is None else error.cause or error
        return " ".join(redacted((event.message if cause is None else cause.message) or "").split())
    return "it says nothing of the reason."


def pending(instance: dg.DagsterInstance) -> Mapping[str, dg.DagsterRun]:
    """By job, the rollback that waits for its run. A rollback that is over waits no longer, however it ended."""
    asked = instance.get_runs(dg.RunsFilter(tags={names.ROLLBACK_TAG: _ASKED}, statuses=[dg.DagsterRunStatus.STARTED]))
    return {
        run.tags.get(names.ROLLBACK_OF_TAG, ""): run
        for run in asked
        if _asks(run) and goes_back(instance, run.run_id) is None
    }


def _asks(rollback: dg.DagsterRun) -> bool:
    """Whether a rollback waits for its run; a re-execution has the tags of the run before it, and has not asked."""
    tags, is_alive = rollback.tags, rollback.status is dg.DagsterRunStatus.STARTED
    return is_alive and tags.get(names.ROLLBACK_TAG) == _ASKED and tags.get(names.ASKING_TAG) == rollback.run_id


def check_wanted(instance: dg.DagsterInstance, catalog: CheckpointCatalog, run: dg.DagsterRun) -> None:
    """Make sure that the rollback for which a run was launched, if any, waits for that run.

    Dagster launches what a tick has requested also hours later, when the code server was away, and a queue may be long.
    A person who re-executes the run wants it; and once the run has chosen, the rollback may be over.

    Raises:
        RestoreRefused: the rollback is over.
    """
    rollback = run.tags.get(names.ASKED_BY_TAG)
    if rollback is None or names.PARENT_RUN_TAG in run.tags or run.run_id in catalog.records.epochs.runs_with_choice():
        return
    asking = instance.get_run_by_id(rollback)
    if asking is None or not _asks(asking):
        raise RestoreRefused(
            f"Run {rollback}, which has asked for this run to take job {catalog.job_name!r} back, is over.",
            hint="This run changed nothing. To go back, roll back again.",
        )


def requested(
    instance: dg.DagsterInstance, catalog: CheckpointCatalog, rollback: dg.DagsterRun, job_name: str, op_name: str
) -> dg.RunRequest:
    """The run that a pending rollback waits for: configured as the job's last run, but for what it begins with.

    Args:
        instance: the Dagster instance.
        catalog: the job's checkpoints.
        rollback: the pending run.
        job_name: the Dagster job of the checkpointed job.
        op_name: of the query.
    """
    last, asked = _last_run(instance, catalog), dict(rollback.run_config)
    given = {
        **_continued(last, op_name),
        "restore_from": rollback.tags[names.ROLLBACK_TO_TAG],
        "allow_loss": bool(asked.get("allow_loss", False)),
        **{key: asked[key] for key in ("state_partitions", "start_sources", "code_version") if asked.get(key)},
    }
    config = with_resources_of(last, op_name, given)
    tags = {
        **({} if last is None else names.of_user(last.tags)),
        names.JOB_TAG: rollback.tags[names.ROLLBACK_OF_TAG],
        names.MAX_RETRIES_TAG: "0",
        names.ASKED_BY_TAG: rollback.run_id,
    }
    return dg.RunRequest(run_key=f"rollback:{rollback.run_id}", job_name=job_name, run_config=config, tags=tags)


def last_config(instance: dg.DagsterInstance, catalog: CheckpointCatalog, op_name: str) -> Mapping[str, Any]:
    """What a run that continues the job's last run is configured with."""
    return _continued(_last_run(instance, catalog), op_name)


def _continued(last: dg.DagsterRun | None, op_name: str) -> Mapping[str, Any]:
    return {} if last is None else going_on(op_config(last, op_name))


def _last_run(instance: dg.DagsterInstance, catalog: CheckpointCatalog) -> dg.DagsterRun | None:
    epochs = catalog.records.epochs
    claim = epochs.read_claim(epochs.highest())
    return None if claim is None else instance.get_run_by_id(claim.run_id)
