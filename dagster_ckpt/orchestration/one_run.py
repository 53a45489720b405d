"""One run of a job at a time: a second one gives way, and a run of several streams says what may wait."""

from __future__ import annotations

import logging
import time

import dagster as dg

from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.events import say
from dagster_ckpt.orchestration.run_settings import asked_once

__all__ = ["give_way", "tell_of_others"]

#: Seconds within which Dagster should interrupt this process.
_PATIENCE = 60.0


def give_way(
    context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset, error: JobAlreadyRunning, clock: Clock
) -> None:
    """Have Dagster terminate this run, as *Terminate* does, if another run of this Dagster drives the job.

    *Materialize* on an asset's page waits for no limit. A run that has failed would alert people, though nothing is
    wrong. Returns if the stream's step is to fail: the run was asked to begin with something or has other assets, or
    this Dagster does not know the other run or does not terminate this one.

    Args:
        context: of this run.
        asset: the stream.
        error: tells which run is alive.
        clock: monotonic time.
    """
    instance, mine = context.instance, context.run.run_id
    other = None if error.by is None or error.by == mine else instance.get_run_by_id(error.by)
    if other is None or other.is_finished or asked_once(context.op_execution_context.op_config):
        return
    if context.job_def.asset_layer.selected_asset_keys != {asset.key}:
        text = "This step fails, and the assets of this run that do not depend on it are materialized. To materialize "
        say(context.log, logging.WARNING, f"{text}all others, launch them without {asset.key.to_user_string()}.")
        return
    text = f"{error.message} This run is not needed, ends as CANCELED, and has changed nothing. To restart the job, "
    say(context.log, logging.WARNING, f"{text}terminate run {other.run_id} first.")
    try:
        instance.run_coordinator.cancel_run(mine)
    except Exception as refusal:  # of any launcher
        say(context.log, logging.INFO, f"Dagster does not terminate this run: {refusal}")
        return
    began = clock.monotonic()
    while clock.monotonic() - began < _PATIENCE:
        time.sleep(0.1)  # the interrupt is raised here


def tell_of_others(context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset) -> None:
    """Warn if the run has other streams, as *Materialize all* makes one.

    A stream has no end, and what the executor cannot start beside it waits for ever.
    """
    layer = context.job_def.asset_layer
    streams = [one for one in layer.asset_graph.assets_defs if isinstance(one, CheckpointedStreamingAsset)]
    others = sorted(one.name for one in streams if one.key in layer.selected_asset_keys and one.key != asset.key)
    if others:
        jobs = ", ".join(f"{name}_job" for name in sorted([*others, asset.name]))
        say(
            context.log,
            logging.WARNING,
            f"This run also has the streams {', '.join(others)}. A stream has no end, so what the run's executor "
            "cannot start beside it waits for ever: the multiprocess executor starts as many steps as the machine has "
            f"processors, and the in-process executor one. To be sure, terminate this run, and launch {jobs}.",
        )
