"""A driver of a small stream: ``python -m tests.zombies.driver SINK ROOT [end]``.

With ``end`` it ends with the data. Every batch takes a while, so that it can be stopped in the middle.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.session import start_session
from dagster_ckpt.spark.supervisor import die_with_parent
from tests.matrix.streams import SCHEMA, Target
from tests.telling import drive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "zombie"
_CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
}


def main(sink: str, root: Path, *, to_the_end: bool) -> None:
    """Drive the job."""
    die_with_parent()

    def query(session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as f  # noqa: PLC0415

        read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))
        slow = "CAST(reflect('java.lang.Thread', 'sleep', 40L) AS string)"  # for each row, before it is written
        unique = read.dropDuplicates(["id"]).selectExpr("id", "v", "cast(ts as long) AS at", f"{slow} AS slept")
        writer = Target(sink, root / "out").writer(unique.where(f.col("slept").isNotNull()).drop("slept"))
        return writer.trigger(availableNow=True) if to_the_end else writer

    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: start_session(JOB, "local[1]", _CONF),
        config=CheckpointConfig(interval="300 ms", num_retained=50),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=PosixFileSystem(root / "storage"),
        working_directory=root / "live" / ("end" if to_the_end else "first"),
        deployment="zombies",
        inline_threshold=20 * 1024,
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), to_the_end=sys.argv[3:] == ["end"])
