"""A second run of a job ends as canceled, and changes nothing: *Materialize* on an asset's page waits for no limit."""

from __future__ import annotations

import time

import dagster as dg

from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.orchestration.run_settings import asked_once

__all__ = ["give_way"]

#: Seconds within which Dagster should interrupt this process.
_PATIENCE = 60.0


def give_way(context: dg.AssetExecutionContext, error: JobAlreadyRunning, clock: Clock) -> None:
    """Have Dagster terminate this run, as *Terminate* does, if another run of this Dagster drives the job.

    A run that has failed would alert people, though nothing is wrong. Returns if the run is to fail: it was asked to
    begin with something, or this Dagster does not know the other run or does not terminate this one.

    Args:
        context: of this run.
        error: tells which run is alive.
        clock: monotonic time.
    """
    instance, mine = context.instance, context.run.run_id
    other = None if error.by is None or error.by == mine else instance.get_run_by_id(error.by)
    if other is None or other.is_finished or asked_once(context.op_execution_context.op_config):
        return
    context.log.warning(
        f"{error.message} This run is not needed, ends as CANCELED, and has changed nothing. To restart the job, "
        f"terminate run {other.run_id} first."
    )
    try:
        instance.run_coordinator.cancel_run(mine)
    except Exception as refusal:  # of any launcher
        context.log.info(f"Dagster does not terminate this run: {refusal}")
        return
    began = clock.monotonic()
    while clock.monotonic() - began < _PATIENCE:
        time.sleep(0.1)  # the interrupt is raised here
