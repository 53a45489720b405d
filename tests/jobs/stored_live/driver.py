"""A driver of a small stream whose checkpoints are in a bucket.

``python -m tests.jobs.stored_live.driver KIND URL CLASSPATH ROOT MACHINE PLACE [FROM [FORK]]``: which store it is
and where, the class path of the connector, the directory of input and output, the directory in it that stands for the
disk of a machine, and where the live location is to lie. With what is to be restored, ``latest`` or another, it ends
with the data; with a name as the last argument, it is a job of that name, with an output of that name, and a fork of
that checkpoint. Every batch takes a while, so that it can be killed in the middle.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.recovery import LATEST, RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import drive
from tests.jobs.matrix.streams import FILE, SCHEMA, Target
from tests.jobs.stored_live.kinds import KINDS, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "stored"
_CONF = {
    **SMALL_DRIVER,
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
}


def main(
    kind: Kind,
    url: str,
    classpath: str,
    root: Path,
    machine: str,
    place: LiveLocationPlace,
    restore_from: str | None,
    fork: str | None,
) -> None:
    """Drive the job."""
    die_with_parent()

    def query(session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as f  # noqa: PLC0415

        read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))
        slow = "CAST(reflect('java.lang.Thread', 'sleep', 20L) AS string)"  # for each row, before it is written
        unique = read.dropDuplicates(["id"]).selectExpr("id", "v", "cast(ts as long) AS at", f"{slow} AS slept")
        writer = Target(FILE, root / (fork or "out")).writer(unique.where(f.col("slept").isNotNull()).drop("slept"))
        return writer.trigger(availableNow=True) if restore_from else writer

    job = StreamingJob(
        name=fork or JOB,
        query=query,
        session=lambda: start_session(JOB, "local[2]", {**_CONF, **kind.conf(url, classpath)}),
        config=CheckpointConfig(interval="300 ms", num_retained=50),
        restart=FixedDelayRestart(0, timedelta(seconds=1)),
        filesystem=kind.storage(url),
        working_directory=root / machine / "live",
        deployment="tests",
        inline_threshold=20 * 1024,
        live_location=place,
    )
    asked = RestoreRequest(restore_from=restore_from or LATEST)
    drive(job, asked if fork is None else RestoreRequest(fork_from=restore_from))


if __name__ == "__main__":
    which, server, connector, home, disk, where, *more = sys.argv[1:]
    begin, name, *_ = [*more, None, None]
    main(KINDS[which], server, connector, Path(home), disk, LiveLocationPlace(where), begin, name)
