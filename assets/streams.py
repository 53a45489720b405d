"""The two checkpointed pipelines: the same query as a continuous stream and on a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.landing import landed_flights
from assets.settings import DataPaths, ends_when_caught_up, has_standby, max_files_per_trigger
from dagster_ckpt import CheckpointConfig, checkpointed_streaming_asset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["daily_schedule", "flight_delays", "flight_delays_daily"]

_DAYS_PER_TICK = 7


@checkpointed_streaming_asset(
    deps=[landed_flights],
    config=CheckpointConfig(interval="5 s"),
    standby=has_standby(),
    group_name="flights",
    kinds={"pyspark", "parquet"},
    description="Flights and delays per 6-hour window, carrier and origin, counted continuously.",
)
def flight_delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Counts as files land, until it is terminated."""
    del context
    query = _query(spark, DataPaths.from_environment().delays)
    return query.trigger(availableNow=True) if ends_when_caught_up() else query


@checkpointed_streaming_asset(
    deps=[landed_flights],
    config=CheckpointConfig(interval="5 s"),
    group_name="flights",
    kinds={"pyspark", "parquet"},
    description="The same counts by a scheduled run, which goes on where the run before it stopped.",
)
def flight_delays_daily(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Reads what has landed since the last run and ends."""
    del context
    return _query(spark, DataPaths.from_environment().delays_daily).trigger(availableNow=True)


daily_schedule = dg.ScheduleDefinition(
    name="flight_delays_daily_schedule",
    description=f"Lands the next {_DAYS_PER_TICK} days and counts them.",
    cron_schedule="0 6 * * *",
    execution_timezone="UTC",
    job=dg.define_asset_job(
        "flight_delays_daily_tick",
        selection=dg.AssetSelection.assets(landed_flights, flight_delays_daily.key),
        description="Land the next days, then count them.",
        # The resume sensor and the limit of one run at a time go by the first tag; Dagster's
        # own retries, which know no restart strategy, are off.
        tags={"dagster_ckpt/job": flight_delays_daily.name, "dagster/max_retries": "0"},
        executor_def=dg.in_process_executor,
    ),
    run_config={"ops": {"landed_flights": {"config": {"days": _DAYS_PER_TICK}}}},
)


def _query(spark: SparkSession, output: Path) -> DataStreamWriter:
    from assets.delays import delays_query  # noqa: PLC0415 - PySpark, which only a run needs

    landed = DataPaths.from_environment().landed
    return delays_query(spark, landed, output, max_files_per_trigger=max_files_per_trigger())
