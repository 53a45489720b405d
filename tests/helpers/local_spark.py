"""One local Spark, small and quiet, and what makes every JVM of the tests start soon."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: JVMs that live for seconds or minutes do the same with a quarter less of the processor under the simplest compiler
#: and collector. For each file it writes, Hadoop's local file system starts ``chmod`` and ``readlink``, hundreds a
#: second here, and by default Java starts a helper that starts the command.
#: What this compiler makes needs more of a stack; Spark runs regular expressions over whole plans, which recurse.
_SUBMIT_OPTS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m -Djdk.lang.Process.launchMechanism=VFORK"


def set_up_jvms() -> None:
    """Have every Spark that this process or one of its children starts run in such a JVM."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _SUBMIT_OPTS)


def small_spark(home: Path, cores: int) -> SparkSession:
    """A local session with two shuffle partitions, UTC and no web UI, which keeps its files below ``home``.

    The maintenance of state stores runs every 100 ms, because that interval is fixed for the life of the
    JVM by the first stateful query.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests without Spark do not pay for the import

    set_up_jvms()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("dagster-ckpt tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
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
