"""The streaming job: each order once, from files of JSON in ``landed`` to files of Parquet in ``orders``."""

from __future__ import annotations

import os
from typing import Any

from dagster import AssetExecutionContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dagster_ckpt as ckpt

DATA = os.environ["ORDERS_DATA"]

resources: dict[str, Any] = {
    "checkpoint_storage": ckpt.FileSystemCheckpointStorage(
        checkpoint_path=f"{DATA}/checkpoints", savepoint_path=f"{DATA}/savepoints", working_directory=f"{DATA}/live"
    ),
    "spark": ckpt.SparkSessionResource(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"}),
}


@ckpt.checkpointed_streaming_asset(config=ckpt.CheckpointConfig(interval="5 s", num_retained=20))
def orders(context: AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Each order once, however often its file was landed."""
    landed = spark.readStream.schema("id LONG, shop STRING, cents LONG").option("maxFilesPerTrigger", 1)
    once = landed.json(f"{DATA}/landed").dropDuplicates(["id"])
    return once.writeStream.format("parquet").option("path", f"{DATA}/orders")
