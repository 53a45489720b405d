"""A driver of a job that reads Kafka: ``python -m tests.jobs.kafka.driver ADDRESS TOPIC SINK ROOT [end]``.

The sink is ``parquet``, ``delta`` or ``iceberg``. With ``end`` it ends with the records that are there.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.run.supervisor import die_with_parent
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.sink import sink_to
from tests.helpers.local_spark import small_spark
from tests.helpers.telling import drive
from tests.jobs.kafka.topics import topic_of
from tests.jobs.tables.iceberg import lake
from tests.servers.kafka import CONNECTOR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def main(address: str, topic: str, sink: str, root: Path, words: Collection[str]) -> None:
    """Drive the job."""
    die_with_parent()
    out = root / "out"

    def query(session: SparkSession) -> DataStreamWriter:
        unique = topic_of(session, address, subscribe=topic).dropDuplicates(["id"]).select("id", "v")
        if sink == "delta":
            writer = sink_to(unique, DeltaSink(out))
        elif sink == "iceberg":
            writer = sink_to(unique, IcebergSink(f"{lake(session, out)}.db.out"))
        else:
            writer = unique.writeStream.format("parquet").option("path", str(out))
        return writer.trigger(availableNow=True) if "end" in words else writer

    job = StreamingJob(
        name="driven",
        query=query,
        session=lambda: small_spark(root / "spark", cores=1, packages=CONNECTOR),
        config=CheckpointConfig(interval="300 ms", min_pause="0 s", num_retained=50),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=PosixFileSystem(root / "storage"),
        working_directory=root / "live",
        deployment="drivers",
        inline_threshold=20 * 1024,
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
