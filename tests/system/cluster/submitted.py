"""The definitions that a driver on the cluster loads: the example's stream below the directory in the environment."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from assets.delays import delays_query
from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSubmitResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from tests.system.cluster.layout import FILES_PER_TRIGGER, Shared

ROOT = "DAGSTER_CKPT_TEST_ROOT"
_shared = Shared(Path(os.environ[ROOT]))


@checkpointed_streaming_asset(
    config=CheckpointConfig(interval="1 s", num_retained=4),
    restart=RestartStrategies.fixed_delay_restart(3, "1 ms"),
)
def delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """The example's stream, to the end of what has landed."""
    del context
    query = delays_query(spark, _shared.landed, _shared.output, max_files_per_trigger=FILES_PER_TRIGGER)
    return query.trigger(availableNow=True)


defs = build_checkpoint_definitions(
    [delays],
    resources={
        "checkpoint_storage": FileSystemCheckpointStorage(
            checkpoint_path=str(_shared.storage), working_directory=str(_shared.live)
        ),
        "spark": SparkSubmitResource(
            definitions="tests.system.cluster.submitted:defs",
            master=(_shared.root / "master").read_text(encoding="utf-8"),
            deploy_mode="cluster",
            conf={
                "spark.cores.max": "1",
                "spark.driver.memory": "512m",
                "spark.executor.memory": "480m",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "2",
            },
        ),
    },
)
