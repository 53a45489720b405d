"""The code location whose run ``recovery.py`` kills: the stream of :mod:`benchmarks.failures.stream` as an asset."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from benchmarks.failures.stream import CONF, LEASE_VARIABLE, PARALLELISM, ROOT_VARIABLE, STANDBY_VARIABLE, query
from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROOT = Path(os.environ[ROOT_VARIABLE])
_LEASE = timedelta(seconds=float(os.environ[LEASE_VARIABLE]))


@checkpointed_streaming_asset(
    config=CheckpointConfig(interval="1 s", heartbeat_interval=_LEASE / 5, heartbeat_timeout=_LEASE),
    # One job is killed again and again, and each restart waits as long as the first restart of a job.
    restart=RestartStrategies.fixed_delay_restart(1000, "1 s"),
    standby=os.environ[STANDBY_VARIABLE] == "1",
    rehearsal=True,
)
def distinct_ids(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Each id once."""
    del context
    return query(spark, _ROOT)


defs = build_checkpoint_definitions(
    [distinct_ids],
    resources={
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=str(_ROOT / "checkpoints")),
        "spark": SparkSessionResource(master=f"local[{PARALLELISM}]", conf={"spark.driver.memory": "1g", **CONF}),
    },
)
