"""A driver of a small stream: ``python -m tests.jobs.zombies.driver SINK ROOT [word ...]``.

Every batch takes a while, so that it can be stopped in the middle. The words:

* ``end``: it ends with the data.
* ``rows``: it copies rows and keeps no state; a batch has all files that have landed.
* ``refuse``: its storage refuses heartbeats while the file ``refuse`` is in ROOT.
* ``interval=D``: of checkpoints, none before that.
* ``lease=S``: of its heartbeat, in seconds.
* ``unwatched``: nobody pauses or ends its JVM when the lease is over.
* ``live=NAME``: of its working directory.
* ``restarts=N``: how often it restarts.
* ``udf``: it uses a function of Python that it has made once.
* ``keep``: it uses the first session that it is given for ever.
* ``lose``: its Spark context stops when the file ``lose`` appears in ROOT, as when Spark loses its cluster.
* ``patience=S``: PostgreSQL ends its session after so many seconds in the middle of a transaction.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import drive
from tests.helpers.unwatched import unwatched
from tests.jobs.matrix.streams import SCHEMA, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "zombie"
_CONF = {
    **SMALL_DRIVER,
    "spark.sql.shuffle.partitions": "1",
}


class Refusing(PosixFileSystem):
    """Takes no heartbeats while there is a file ``refuse`` beside it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._refuse = root.parent / "refuse"

    def replace(self, path: str, data: bytes) -> None:
        if path.endswith("/heartbeat") and self._refuse.exists():
            raise StorageError("no heartbeat today")
        super().replace(path, data)


def lose_context(when: Path) -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    while True:
        if when.exists():
            when.unlink()
            context: Any = SparkContext._active_spark_context
            context._jsc.sc().stop()
        time.sleep(0.1)


def main(sink: str, root: Path, words: Collection[str]) -> None:
    """Drive the job."""
    die_with_parent()
    to_the_end = "end" in words
    told = dict(word.split("=") for word in words if "=" in word)
    lease = timedelta(seconds=float(told.get("lease", 30)))
    if "unwatched" in words:
        unwatched()
    interval = told.get("interval", "300 ms")

    PostgresSink.patience = float(told.get("patience", PostgresSink.patience))

    if "lose" in words:
        threading.Thread(target=lose_context, args=(root / "lose",), daemon=True).start()
    kept: dict[str, Any] = {}

    def query(given: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as f  # noqa: PLC0415

        session: SparkSession = kept.setdefault("session", given) if "keep" in words else given
        at_once = 1000 if "rows" in words else 1
        read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).json(str(root / "in"))
        pause = 10 if "rows" in words else 40  # milliseconds for each row, before it is written
        slow = f"CAST(reflect('java.lang.Thread', 'sleep', {pause}L) AS string)"
        unique = (read if "rows" in words else read.dropDuplicates(["id"])).selectExpr(
            "id", "v", "cast(ts as long) AS at", f"{slow} AS slept"
        )
        if "udf" in words:
            unique = unique.withColumn("v", kept.setdefault("udf", f.udf(lambda v: v, "int"))("v"))
        writer = Target(sink, root / "out").writer(unique.where(f.col("slept").isNotNull()).drop("slept"))
        return writer.trigger(availableNow=True) if to_the_end else writer

    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: start_session(JOB, "local[1]", _CONF),
        config=CheckpointConfig(
            interval=interval,
            min_pause=told.get("interval", "0 s"),
            num_retained=50,
            heartbeat_interval=lease / 5,
            heartbeat_timeout=lease,
        ),
        restart=FixedDelayRestart(int(told.get("restarts", 3)), timedelta(seconds=1)),
        filesystem=(Refusing if "refuse" in words else PosixFileSystem)(root / "storage"),
        working_directory=root / "live" / told.get("live", "end" if to_the_end else "first"),
        deployment="zombies",
        inline_threshold=20 * 1024,
    )
    drive(job)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
