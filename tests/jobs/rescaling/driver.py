"""A driver of a stateful query: ``python -m tests.jobs.rescaling.driver QUERY SINK ROOT [name=value ...]``.

It reads a file a batch to the end of the data. The words ``state_partitions`` and ``restore_from`` are of its run;
``interval`` is that of its checkpoints. While the file ``hold`` is in ROOT, it waits before its choice is on record,
and leaves the file ``held``.
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
from dagster_ckpt.spark.run.supervisor import die_with_parent
from tests.helpers.local_spark import small_spark
from tests.helpers.telling import drive
from tests.jobs.matrix.streams import NO_DATA, QUERIES, SCHEMA, Target
from tests.jobs.tables.holding import waiting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = "rescaled"
_CONF = {"spark.sql.shuffle.partitions": "4", NO_DATA[0]: NO_DATA[1]}


class _HeldChoice(PosixFileSystem):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._wait = waiting(root.parent)

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(".choice"):
            self._wait(None)
        super().create(path, data)


def main(name: str, sink: str, root: Path, words: Mapping[str, str]) -> None:
    """Drive the job."""
    die_with_parent()

    def query(session: SparkSession) -> DataStreamWriter:
        def read() -> DataFrame:
            return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))

        return Target(sink, root / "out").writer(QUERIES[name](read)).trigger(availableNow=True)

    interval = words.get("interval", "1 h")
    job = StreamingJob(
        name=JOB,
        query=query,
        session=lambda: small_spark(root / "spark", cores=2, conf=_CONF),
        config=CheckpointConfig(interval=interval, min_pause="0 s", num_retained=50),
        restart=NoRestart(),
        filesystem=_HeldChoice(root / "storage"),
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
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), dict(word.split("=", 1) for word in sys.argv[4:]))
