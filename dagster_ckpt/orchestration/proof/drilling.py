"""Runs the restore drill of an asset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.attending import own_spark
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.rollback import last_config
from dagster_ckpt.orchestration.streaming_run import streaming_job
from dagster_ckpt.spark import Bar, Drilled, drill_restore, no_bar

__all__ = ["run_drill"]


def run_drill(
    asset: CheckpointedStreamingAsset,
    context: dg.AssetExecutionContext,
    given: Mapping[str, Any],
    *,
    spark: SparkSessionResource | None = None,
    scratch_directory: str | Path | None,
    timeout: timedelta,
    bar: Bar = no_bar,
) -> Drilled:
    """Restore the newest checkpoint of an asset's job aside, and compute one batch, as a run that goes on with the job.

    Args:
        asset: the asset.
        context: has the resources, and goes to the asset's function.
        given: the run configuration, for the function's own part of it.
        spark: starts Spark; ``None`` for the asset's own resource.
        scratch_directory: as of :func:`~dagster_ckpt.read_state`.
        timeout: how long the batch may take.
        bar: shows how far the copy is.

    Raises:
        CheckpointError: as of :func:`~dagster_ckpt.spark.proof.drill.drill_restore`.
    """
    catalog = getattr(context.resources, asset.storage_key).catalog(asset.name)
    settings = asset.settings.of_run(last_config(context.instance, catalog, asset.op_name))
    starts = spark or own_spark(getattr(context.resources, asset.spark_key))
    job = replace(
        streaming_job(asset, settings, context, given, catalog.filesystem),
        session=partial(starts.session, f"{asset.name}_drill", asset.launch_conf),
    )
    return drill_restore(job, catalog, SystemClock(), scratch_directory=scratch_directory, timeout=timeout, bar=bar)
