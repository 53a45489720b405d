"""Terminates the runs of a job, as *Terminate* in the Dagster UI does, and waits until no process drives the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.orchestration import names

__all__ = ["active_runs", "terminate", "terminate_all"]

_ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
#: Seconds that the runs may take to stop; a query has a minute, and Dagster may first have to notice that one died.
_PATIENCE = 300.0
_LOOK = 1.0


def active_runs(instance: dg.DagsterInstance, job: str, *, tag: str = names.JOB_TAG) -> Sequence[dg.DagsterRun]:
    """The runs that are not over and have the name of a checkpointed job in a tag: by default, the runs of that job."""
    return instance.get_runs(dg.RunsFilter(tags={tag: job}, statuses=_ACTIVE))


def terminate(instance: dg.DagsterInstance, run: dg.DagsterRun, report: Callable[[str], object]) -> None:
    """Ask a run to stop; :func:`active_runs` no longer has a run that has stopped."""
    try:
        if run.status is not dg.DagsterRunStatus.CANCELING and instance.run_coordinator.cancel_run(run.run_id):
            report(f"Run {run.run_id} is being terminated.")
    except Exception as error:  # the run has just ended, or its host does not answer: the next look tells
        report(f"Run {run.run_id} could not be asked to stop: {error}")


def terminate_all(
    instance: dg.DagsterInstance,
    catalog: CheckpointCatalog,
    clock: Clock,
    wait: Callable[[float], object],
    report: Callable[[str], object],
) -> None:
    """Terminate all runs of a job, and wait for their end.

    Raises:
        JobAlreadyRunning: a run has not stopped in time, or a process drives the job that is of no run of this Dagster.
    """
    began = clock.monotonic()
    while runs := active_runs(instance, catalog.job_name):
        for run in runs:
            terminate(instance, run, report)
        if clock.monotonic() - began > _PATIENCE:
            raise JobAlreadyRunning(
                f"Run {runs[0].run_id} of job {catalog.job_name!r} has not stopped within {_PATIENCE:.0f} s.",
                hint=f"See what run {runs[0].run_id} waits for, terminate it by force if its process is gone, and roll "
                "back again.",
            )
        wait(_LOOK)
    heartbeat, dead = catalog.records.heartbeat.watched(clock, wait)
    if heartbeat is not None and dead is None:
        raise JobAlreadyRunning(
            f"Run {heartbeat.run_id} drives job {catalog.job_name!r}, and is no active run of this Dagster.",
            hint="Stop its process, and roll back again.",
        )
