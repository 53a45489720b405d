"""A job that keeps a standby; ``STANDBY_JOB`` in the environment names its directory.

It ends with its input if the file ``last`` is there when its query is built.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    SparkSessionResource,
    checkpointed_streaming_asset,
)
from tests.helpers.local_spark import SMALL_DRIVER
from tests.jobs.harness import Bench, deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VARIABLE = "STANDBY_JOB"
ROOT = Path(os.environ.get(VARIABLE, "."))
LAST = "last"

spark = SparkSessionResource(master="local[2]", conf={**SMALL_DRIVER, "spark.sql.shuffle.partitions": "2"}, standby=1)
_bench = Bench(None, ROOT, query=deduplicated)  # type: ignore[arg-type]
resources: dict[str, Any] = {
    "checkpoint_storage": FileSystemCheckpointStorage(
        checkpoint_path=str(_bench.storage), working_directory=str(_bench.working)
    ),
    "spark": spark,
}


@checkpointed_streaming_asset(config=CheckpointConfig(interval="1 s"))
def tiny(context: object, session: SparkSession) -> DataStreamWriter:
    """Each id once."""
    del context
    _bench.until_done = (ROOT / LAST).exists()
    return _bench.query(_bench, session)
