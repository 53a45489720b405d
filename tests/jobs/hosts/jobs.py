"""A job for ``dagster-ckpt run`` on a host that shares no disk with another: S3, PostgreSQL, and a source in Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    PostgresSink,
    RestartStrategies,
    SparkSessionResource,
    checkpointed_streaming_asset,
    sink_to,
)
from tests.helpers.local_spark import SMALL_DRIVER
from tests.servers.s3 import BUCKET, connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    import dagster as dg
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Where the bucket is, how the database is reached, and the working directory, which is on the host's own disk.
BUCKET_URL, DATABASE, WORK = "HOSTS_BUCKET", "HOSTS_DATABASE", "HOSTS_WORK"
LEASE_SECONDS = "HOSTS_LEASE"
#: Seconds without a heartbeat after which another host goes on: 10, unless the environment says more.
LEASE = int(os.environ.get(LEASE_SECONDS, "10"))
#: Rows of a batch. Every second batch repeats the keys of the batch before it, and the state lets none of them through.
ROWS = 10
#: Seconds for which PostgreSQL waits for a session in the middle of a transaction.
PATIENCE = 5.0


@checkpointed_streaming_asset(
    config=CheckpointConfig(
        interval="300 ms", heartbeat_interval=f"{LEASE / 6} s", heartbeat_timeout=f"{LEASE} s", num_retained=3
    ),
    restart=RestartStrategies.fixed_delay_restart(1000, "1 s"),  # each loss counts
)
def counted(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """Each key once."""
    del context
    PostgresSink.patience = PATIENCE
    sink = PostgresSink(os.environ[DATABASE], "keys")
    return sink_to(keys(spark), sink).trigger(processingTime="200 milliseconds")


def keys(spark: SparkSession) -> DataFrame:
    """The query of the job."""
    read = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 1).load()
    key = f"value div {2 * ROWS} * {ROWS} + value % {ROWS}"
    return read.selectExpr(f"{key} AS key").dropDuplicates(["key"])


def keys_by_plain_spark(spark: SparkSession, count: int, checkpoint_location: str) -> list[int]:
    """The first ``count`` keys that the query lets through without this library, in their order."""
    found: list[int] = []
    query = keys(spark).writeStream.option("checkpointLocation", checkpoint_location)
    running = query.foreachBatch(lambda batch, _: found.extend(row.key for row in batch.toLocalIterator())).start()
    while len(found) < count and running.isActive:
        running.awaitTermination(1)
    running.stop()
    return sorted(found)[:count]


def resources() -> Mapping[str, Any]:
    return {
        "checkpoint_storage": FileSystemCheckpointStorage(
            checkpoint_path=f"s3://{BUCKET}/of-all",
            storage_options=connection(os.environ[BUCKET_URL]),
            working_directory=os.environ[WORK],
        ),
        "spark": SparkSessionResource(master="local[1]", conf={**SMALL_DRIVER, "spark.sql.shuffle.partitions": "1"}),
    }


RESOURCES = resources() if WORK in os.environ else {}
