"""A driver of a job that writes to a table: ``python -m tests.jobs.tables.driver FORMAT ROOT [word ...]``.

The words:

* ``end``: it ends with the data.
* ``hold=STEP``: while the file ``hold`` is in ROOT, batches wait at a step, and leave the file ``held``. The steps:
  ``rows``, in the middle of the write; ``before`` or ``after`` the step that decides the commit.
* ``lease=S``: of its heartbeat, in seconds.
* ``unwatched``: nobody pauses or ends its JVM when the lease is over.
* ``live=NAME``: of its working directory.
* ``state_partitions=N``: the number of partitions that its state gets.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.run.supervisor import die_with_parent
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.iceberg.table import IcebergTable
from dagster_ckpt.spark.sinks.sink import BatchSink, sink_to
from tests.helpers.local_spark import small_spark
from tests.helpers.telling import drive
from tests.helpers.unwatched import unwatched
from tests.jobs.harness import SCHEMA
from tests.jobs.tables.holding import waiting
from tests.jobs.tables.iceberg import lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "driven"


def main(kind: str, root: Path, words: Collection[str]) -> None:
    """Drive the job."""
    die_with_parent()
    told = dict(word.split("=") for word in words if "=" in word)
    lease = timedelta(seconds=float(told.get("lease", 30)))
    if "unwatched" in words:
        unwatched()

    if told.get("hold") in {"before", "after"}:
        _hold_commits(kind, root, told["hold"])

    def query(session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as f  # noqa: PLC0415

        read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))
        unique = read.dropDuplicates(["id"]).select("id", "v")
        if told.get("hold") == "rows":
            unique = unique.withColumn("v", f.udf(waiting(root), "int")("v"))
        writer = sink_to(unique, _sink(kind, session, root / "out"))
        return writer.trigger(availableNow=True) if "end" in words else writer

    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: small_spark(root / "spark" / told.get("live", "here"), cores=1),
        config=CheckpointConfig(
            interval="300 ms", min_pause="0 s", num_retained=50, heartbeat_interval=lease / 5, heartbeat_timeout=lease
        ),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=PosixFileSystem(root / "storage"),
        working_directory=root / "live" / told.get("live", "here"),
        deployment="drivers",
        inline_threshold=20 * 1024,
    )
    partitions = told.get("state_partitions")
    drive(job, RestoreRequest(state_partitions=None if partitions is None else int(partitions)))


def _sink(kind: str, session: SparkSession, out: Path) -> BatchSink:
    return DeltaSink(out) if kind == "delta" else IcebergSink(f"{lake(session, out)}.db.out")


def _hold_commits(kind: str, root: Path, step: str) -> None:
    """Have each commit to a table wait before or after the step that decides it."""
    table, name = (DeltaTable, "_committed") if kind == "delta" else (IcebergTable, "_replaced")
    decided, wait = getattr(table, name), waiting(root)

    def held(*given: Any) -> Any:
        if step == "before":
            wait(None)
        done = decided(*given)
        if step == "after":
            wait(None)
        return done

    setattr(table, name, held)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
