"""A driver of a job that reads Kafka: ``python -m tests.jobs.kafka.driver ADDRESS TOPIC SINK ROOT [WORD ...]``.

The sink is ``parquet``, ``delta`` or ``iceberg``. With ``end`` it ends with the records that are there; with ``all`` it
writes a record as often as it reads it. ``start_sources=JSON`` is of its run, and ``dies=NAME`` has it die before it
creates the first file whose path ends so. With ``bucket=URL`` and ``connector=JAR`` its storage is a bucket of
Google's, with its live location.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.run.supervisor import die_with_parent
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.testing.kafka import CONNECTOR
from tests.helpers.local_spark import small_spark
from tests.helpers.telling import drive
from tests.jobs.kafka.topics import topic_of
from tests.jobs.stored_live.kinds import KINDS
from tests.jobs.tables.iceberg import lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class _Dies(PosixFileSystem):
    """Kills its process before it creates the file whose path ends so."""

    def __init__(self, root: Path, ends: str | None) -> None:
        super().__init__(root)
        self._ends = ends

    def create(self, path: str, data: bytes) -> None:
        if self._ends is not None and path.endswith(self._ends):
            os.kill(os.getpid(), signal.SIGKILL)
        super().create(path, data)


def main(address: str, topic: str, sink: str, root: Path, words: Collection[str]) -> None:
    """Drive the job."""
    die_with_parent()
    out = root / "out"

    def query(session: SparkSession) -> DataStreamWriter:
        read = topic_of(session, address, subscribe=topic)
        unique = (read if "all" in words else read.dropDuplicates(["id"])).select("id", "v")
        if sink == "delta":
            writer = sink_to(unique, DeltaSink(out))
        elif sink == "iceberg":
            writer = sink_to(unique, IcebergSink(f"{lake(session, out)}.db.out"))
        else:
            writer = unique.writeStream.format("parquet").option("path", str(out))
        return writer.trigger(availableNow=True) if "end" in words else writer

    given = dict(word.split("=", 1) for word in words if "=" in word)
    bucket, jar = given.get("bucket"), given.get("connector", "")
    job = StreamingJob(
        name="driven",
        query=query,
        session=lambda: small_spark(
            root / "spark", cores=1, packages=CONNECTOR, conf=KINDS["gs"].conf(bucket, jar) if bucket else {}
        ),
        config=CheckpointConfig(interval="300 ms", min_pause="0 s", num_retained=50),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=KINDS["gs"].storage(bucket) if bucket else _Dies(root / "storage", given.get("dies")),
        live_location=LiveLocationPlace.STORAGE if bucket else LiveLocationPlace.LOCAL,
        working_directory=root / "live",
        deployment="drivers",
        inline_threshold=20 * 1024,
    )
    sources = given.get("start_sources")
    drive(job, None if sources is None else RestoreRequest(start_sources=json.loads(sources), allow_loss=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
