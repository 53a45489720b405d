"""One local Spark, small and quiet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def small_spark(home: Path, cores: int) -> SparkSession:
    """A local session with two shuffle partitions, UTC and no web UI, which keeps its files below ``home``.

    For each file it writes, Hadoop's local file system starts ``chmod`` and ``readlink``, hundreds a second here. By
    default Java starts a helper that starts the command; without it a third of the machine is left for the tests.

    The maintenance of state stores runs every 100 ms, because that interval is fixed for the life of the
    JVM by the first stateful query.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests without Spark do not pay for the import

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("dagster-ckpt tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-Djdk.lang.Process.launchMechanism=VFORK")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
