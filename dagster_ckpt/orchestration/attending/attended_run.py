"""A run of a job whose driver is a process of its own: submitted by this run, or by the run that this run follows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending.attendant import Attendant
from dagster_ckpt.orchestration.attending.driver_report import Told
from dagster_ckpt.orchestration.attending.submit_resource import SparkSubmitResource
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.spark import RunResult

__all__ = ["attended"]


def attended(
    context: dg.AssetExecutionContext,
    asset: CheckpointedStreamingAsset,
    spark: SparkSubmitResource | SparkSessionResource,
    catalog: CheckpointCatalog,
    reporter: CheckpointReporter,
    told: Told,
    given: Mapping[str, Any],
    series: int | None,
) -> RunResult:
    """Have a driver of its own run the query, or attend the driver of an earlier run; see :class:`Attendant`.

    Args:
        context: of the run.
        asset: of the job.
        spark: how the driver is submitted; to attend the driver of an earlier run, any will do.
        catalog: the job's checkpoints.
        reporter: of the checkpoints.
        told: who is told and asked.
        given: the run configuration of the query.
        series: the series that the run continues, ``None`` for a run of a user or a schedule.

    Raises:
        InvalidConfiguration: the run configuration has what no driver gets.
        CheckpointError: see :meth:`Attendant.submit` and :meth:`Attendant.attend`.
    """
    own, driver = context.run.run_id, names.attends(context.run.tags)
    attendant = Attendant(catalog, own, driver or own, reporter, told, SystemClock(), time.sleep)
    if driver is None and isinstance(spark, SparkSubmitResource):
        try:
            if "resources" in context.run.run_config:
                raise InvalidConfiguration(
                    "The run configuration has resources, which the driver of SparkSubmitResource does not get: it "
                    f"loads {spark.definitions}.",
                    hint="Leave them out of the run configuration, and change the definitions, or use dg.EnvVar in "
                    "them.",
                )
            attendant.submit(spark, asset.launch_conf, series, given)
        except CheckpointError as error:
            catalog.records.failures.record_failed_start(series, own, error, SystemClock().time())
            raise
    return attendant.attend()
