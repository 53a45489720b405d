"""The second path, a code location of its own: the flights as records of Kafka, counted into a Delta table.

It needs Spark 4.2, for which Delta has a release, and the variables that the main job sets.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dagster as dg

from assets.landing import landed_flights
from assets.resources import resources
from assets.settings import JARS_VARIABLE, DataPaths, ends_when_caught_up
from dagster_ckpt import (
    CheckpointConfig,
    DeltaSink,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
    sink_to,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["defs", "flight_delays_table"]


@checkpointed_streaming_asset(
    deps=[landed_flights],
    config=CheckpointConfig(interval="5 s"),
    group_name="flights",
    kinds={"pyspark", "kafka", "deltalake"},
    description="Flights and delays per 6-hour window, carrier and origin, from Kafka into a Delta table.",
)
def flight_delays_table(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Counts as records come, until it is terminated."""
    from assets.delays import delays_from_kafka  # noqa: PLC0415 - PySpark, which only a run needs

    del context
    query = sink_to(delays_from_kafka(spark), DeltaSink(DataPaths.from_environment().delays_table))
    return query.trigger(availableNow=True) if ends_when_caught_up() else query


defs = dg.Definitions.merge(
    build_checkpoint_definitions(
        [flight_delays_table],
        resources=resources(
            {
                "spark.jars": os.environ.get(JARS_VARIABLE, ""),
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                # By default Delta reads a table's log in fifty tasks.
                "spark.databricks.delta.snapshotPartitions": "1",
            }
        ),
    ),
    dg.Definitions(assets=[landed_flights]),
)
