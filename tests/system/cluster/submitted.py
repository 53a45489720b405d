"""The definitions that a driver on the cluster loads: the example's stream below the directory in the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dagster as dg
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from assets.delays import delays_query
from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    LiveLocationPlace,
    RestartStrategies,
    SparkSubmitResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from tests.system.cluster.layout import Shared

ROOT = "DAGSTER_CKPT_TEST_ROOT"
#: Has how many files a batch reads.
FILE = "files_per_trigger"
_shared = Shared(Path(os.environ[ROOT]))
_spark = json.loads((_shared.root / "spark.json").read_text(encoding="utf-8"))


def _brought() -> Path:
    """Where Spark has brought the file to, in the driver."""
    if _spark["master"] != "yarn":
        return Path(SparkFiles.get(FILE))
    return Path(FILE) if _spark["deploy_mode"] == "cluster" else _shared.root / FILE


@checkpointed_streaming_asset(
    config=CheckpointConfig(interval="1 s", num_retained=4),
    restart=RestartStrategies.fixed_delay_restart(3, "1 ms"),
)
def delays(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """The example's stream, to the end of what has landed."""
    del context
    files = int(_brought().read_text())
    query = delays_query(spark, _shared.landed, _shared.output, max_files_per_trigger=files)
    return query.trigger(availableNow=True)


defs = build_checkpoint_definitions(
    [delays],
    resources={
        "checkpoint_storage": FileSystemCheckpointStorage(
            checkpoint_path=_spark["storage"] or str(_shared.storage),
            working_directory=str(_shared.live),
            live_location=LiveLocationPlace.STORAGE if _spark["storage"] else LiveLocationPlace.AUTO,
        ),
        "spark": SparkSubmitResource(
            definitions="tests.system.cluster.submitted:defs",
            deploy_mode=_spark["deploy_mode"],
            files=[str(_shared.root / FILE)],
            master=_spark["master"],
            conf={
                **_spark["conf"],
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "2",
            },
        ),
    },
)
