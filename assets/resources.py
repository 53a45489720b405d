"""The storage and the Spark of the example's code locations."""

from __future__ import annotations

import os
from collections.abc import Mapping

from assets.settings import CLUSTER_VARIABLE, DataPaths, storage_options
from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource, SparkSubmitResource

__all__ = ["resources"]


def resources(conf: Mapping[str, str] | None = None) -> dict[str, object]:
    """Resources by name.

    Args:
        conf: more settings of Spark.
    """
    paths = DataPaths.from_environment()
    settings = {
        "spark.sql.session.timeZone": "UTC",
        # The example's state is small: two partitions for two cores.
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **(conf or {}),
    }
    return {
        "checkpoint_storage": FileSystemCheckpointStorage(
            checkpoint_path=paths.checkpoints,
            storage_options=storage_options(),
            savepoint_path=os.fspath(paths.savepoints),
        ),
        "spark": _spark(settings),
    }


def _spark(settings: Mapping[str, str]) -> SparkSessionResource | SparkSubmitResource:
    """The driver is the run's process; with a cluster in the environment, one of the Workers starts the driver."""
    if master := os.environ.get(CLUSTER_VARIABLE):
        small = {"spark.cores.max": "1", "spark.driver.memory": "512m", "spark.executor.memory": "480m"}
        return SparkSubmitResource(
            definitions="definitions:defs", master=master, deploy_mode="cluster", conf={**small, **settings}
        )
    return SparkSessionResource(master="local[2]", conf={"spark.driver.memory": "1g", **settings})
