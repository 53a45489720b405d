"""The definitions of a driver that is submitted: rows are copied below the directory in the environment."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    SparkSubmitResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.filesystem import FileSystem
from tests.helpers.local_spark import SMALL_DRIVER
from tests.jobs.matrix.streams import FILE, SCHEMA, Target
from tests.jobs.zombies.driver import Refusing, lose_context

ROOT = "DAGSTER_CKPT_TEST_ROOT"
SECRET = ("spark.hadoop.fs.shop.secret.key", "hush-hush")
_root = Path(os.environ[ROOT])


class RefusingStorage(FileSystemCheckpointStorage):
    """Takes no heartbeats while there is a file ``refuse`` beside it."""

    def filesystem(self) -> FileSystem:
        return Refusing(Path(self.checkpoint_path))


@checkpointed_streaming_asset(
    config=CheckpointConfig(interval="300 ms", heartbeat_interval="1 s", heartbeat_timeout="5 s")
)
def copied(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Row by row; Spark loses its context when there is a file ``lose``."""
    del context
    assert spark.conf.get(SECRET[0]) == SECRET[1]
    threading.Thread(target=lose_context, args=(_root / "lose",), daemon=True).start()
    return Target(FILE, _root / "out").writer(spark.readStream.schema(SCHEMA).json(str(_root / "in")))


defs = build_checkpoint_definitions(
    [copied],
    resources={
        "checkpoint_storage": RefusingStorage(
            checkpoint_path=str(_root / "storage"), working_directory=str(_root / "live")
        ),
        "spark": SparkSubmitResource(
            definitions="tests.jobs.zombies.submitted:defs",
            master="local[1]",
            conf={**SMALL_DRIVER, SECRET[0]: SECRET[1], "spark.sql.shuffle.partitions": "1"},
        ),
    },
)
