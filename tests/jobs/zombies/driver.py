"""A driver of a small stream: ``python -m tests.jobs.zombies.driver SINK ROOT [word ...]``.

Every batch takes a while, so that it can be stopped in the middle. The words:

* ``end``: it ends with the data.
* ``rows``: it copies rows and keeps no state; a batch has all files that have landed.
* ``refuse``: its storage refuses heartbeats.
* ``interval=D``: of checkpoints, none before that.
* ``lease=S``: it takes the job over when the heartbeat has been the same for so many seconds.
* ``live=NAME``: of its working directory.
* ``watchdog=S``: its JVM ends so many seconds after its last sign of life.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from datetime import timedelta
from functools import partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.control.heartbeat import LEASE, HeartbeatFile
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run import job_run as streaming_run
from dagster_ckpt.spark.run.supervisor import die_with_parent
from dagster_ckpt.spark.run.watchdog import Watchdog
from tests.helpers.telling import drive
from tests.jobs.matrix.streams import SCHEMA, Target

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


class Refusing(PosixFileSystem):
    """Takes everything but heartbeats."""

    def replace(self, path: str, data: bytes) -> None:
        if path.endswith("/heartbeat"):
            raise StorageError("no heartbeat today")
        super().replace(path, data)


def main(sink: str, root: Path, words: Collection[str]) -> None:
    """Drive the job."""
    die_with_parent()
    to_the_end = "end" in words
    told = dict(word.split("=") for word in words if "=" in word)
    interval = told.get("interval", "300 ms")
    HeartbeatFile.free_job = partialmethod(HeartbeatFile.free_job, lease=float(told.get("lease", LEASE)))  # type: ignore[method-assign,assignment]
    setattr(streaming_run, "Watchdog", partial(Watchdog, lease=float(told.get("watchdog", LEASE))))  # noqa: B010

    def query(session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as f  # noqa: PLC0415

        at_once = 1000 if "rows" in words else 1
        read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).json(str(root / "in"))
        pause = 10 if "rows" in words else 40  # milliseconds for each row, before it is written
        slow = f"CAST(reflect('java.lang.Thread', 'sleep', {pause}L) AS string)"
        unique = (read if "rows" in words else read.dropDuplicates(["id"])).selectExpr(
            "id", "v", "cast(ts as long) AS at", f"{slow} AS slept"
        )
        writer = Target(sink, root / "out").writer(unique.where(f.col("slept").isNotNull()).drop("slept"))
        return writer.trigger(availableNow=True) if to_the_end else writer

    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: start_session(JOB, "local[1]", _CONF),
        config=CheckpointConfig(interval=interval, min_pause=told.get("interval", 0), num_retained=50),
        restart=FixedDelayRestart(3, timedelta(seconds=1)),
        filesystem=(Refusing if "refuse" in words else PosixFileSystem)(root / "storage"),
        working_directory=root / "live" / told.get("live", "end" if to_the_end else "first"),
        deployment="zombies",
        inline_threshold=20 * 1024,
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
