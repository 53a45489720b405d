"""A job for ``dagster-ckpt run``, in the directory that ``STANDALONE_JOB`` names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    checkpointed_streaming_asset,
)
from tests.helpers.local_spark import SMALL_DRIVER
from tests.jobs.harness import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import dagster as dg
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(os.environ.get("STANDALONE_JOB", "."))


@checkpointed_streaming_asset(
    name="tiny",
    config=CheckpointConfig(interval="200 ms"),
    restart=RestartStrategies.fixed_delay_restart(1, "1 ms"),
)
def tiny(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Each id once."""
    context.log.info("The query is built.")
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(ROOT / "in"))
    ids = read.dropDuplicates(["id"]).select("id", "v")
    return ids.writeStream.format("parquet").option("path", str(ROOT / "out"))


RESOURCES: Mapping[str, Any] = {
    "checkpoint_storage": FileSystemCheckpointStorage(
        checkpoint_path=str(ROOT / "storage"),
        savepoint_path=str(ROOT / "savepoints"),
        working_directory=str(ROOT / "live"),
    ),
    "spark": SparkSessionResource(master="local[1]", conf={**SMALL_DRIVER, "spark.sql.shuffle.partitions": "1"}),
}
