"""A driver of a stateful query: ``python -m tests.jobs.rescaling.driver QUERY ROOT [name=value ...]``.

It reads a file a batch to the end of the data, into a transactional sink. The words ``state_partitions`` and
``restore_from`` are of its run; ``interval`` is that of its checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import NoRestart
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query.session import start_session
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import SMALL_DRIVER
from tests.helpers.telling import drive
from tests.jobs.matrix.streams import NO_DATA, QUERIES, SCHEMA, TRANSACTIONAL, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "rescaled"
_CONF = {
    **SMALL_DRIVER,
    "spark.sql.shuffle.partitions": "4",
    NO_DATA[0]: NO_DATA[1],
}


def main(name: str, root: Path, words: Mapping[str, str]) -> None:
    """Drive the job."""
    die_with_parent()

    def query(session: SparkSession) -> DataStreamWriter:
        def read() -> DataFrame:
            return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))

        return Target(TRANSACTIONAL, root / "out").writer(QUERIES[name](read)).trigger(availableNow=True)

    interval = words.get("interval", "1 h")
    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: start_session(JOB, "local[2]", _CONF),
        config=CheckpointConfig(interval=interval, min_pause="0 s", num_retained=50),
        restart=NoRestart(),
        filesystem=PosixFileSystem(root / "storage"),
        working_directory=root / "live",
        deployment="rescaling",
        inline_threshold=20 * 1024,
    )
    partitions = words.get("state_partitions")
    drive(
        job,
        RestoreRequest(
            words.get("restore_from", "latest"), state_partitions=None if partitions is None else int(partitions)
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), dict(word.split("=", 1) for word in sys.argv[3:]))
