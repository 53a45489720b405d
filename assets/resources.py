"""The storage and the Spark of the example's code locations."""

from __future__ import annotations

import os
from collections.abc import Mapping

from assets.settings import DataPaths, storage_options
from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource

__all__ = ["resources"]


def resources(conf: Mapping[str, str] | None = None) -> dict[str, object]:
    """Resources by name.

    Args:
        conf: more settings of Spark.
    """
    paths = DataPaths.from_environment()
    return {
        "checkpoint_storage": FileSystemCheckpointStorage(
            checkpoint_path=paths.checkpoints,
            storage_options=storage_options(),
            savepoint_path=os.fspath(paths.savepoints),
        ),
        "spark": SparkSessionResource(
            master="local[2]",
            conf={
                "spark.driver.memory": "1g",
                "spark.sql.session.timeZone": "UTC",
                # The example's state is small: two partitions for two cores.
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                **(conf or {}),
            },
        ),
    }
