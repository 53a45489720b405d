"""One local Spark, small and quiet, and what makes every JVM of the tests start soon.

``python -m tests.helpers.local_spark`` makes a class archive and the classes of ``LocalFiles.java`` in ``build/``, for
every later test with this Spark: a JVM that begins from the archive has its first batch in half of the time.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.jvm.local_files import SOURCE, compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: JVMs that live for seconds or minutes do the same with a quarter less of the processor under the simplest compiler
#: and collector. Where Hadoop's own local file system is used, it starts hundreds of processes a second, and by default
#: Java starts a helper that starts each.
#: What this compiler makes needs more of a stack; Spark runs regular expressions over whole plans, which recurse.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m -Djdk.lang.Process.launchMechanism=VFORK"
#: The directory of class archives, and the file with the options of a JVM that uses the one for this Spark.
_ARCHIVES = Path(__file__).resolve().parents[2] / "build" / "tests"
_ARCHIVE_OPTIONS = _ARCHIVES / f"spark-{version('pyspark')}.options"
#: The classes that each Spark of a user compiles for itself, once for all tests.
_LOCAL_FILES = _ARCHIVES / f"spark-{version('pyspark')}-{zlib.crc32(SOURCE.read_bytes()):08x}"


_PACKAGES = "spark.jars.packages"
#: The releases of Spark whose tests write Iceberg tables only, for the time that it takes, unless this variable is set.
_WITHOUT_DELTA, EVERY_FORMAT = ("4.1",), "TEST_EVERY_TABLE_FORMAT"


def delta_conf() -> Mapping[str, str]:
    """What a session needs to write Delta tables; empty where no Delta is for this Spark."""
    from pyspark import __version__ as version  # noqa: PLC0415

    from dagster_ckpt.testing.maven import DELTA  # noqa: PLC0415

    release = version.rpartition(".")[0]
    artifact = DELTA.get(release)
    if artifact is None or (release in _WITHOUT_DELTA and not os.environ.get(EVERY_FORMAT)):
        return {}
    return {
        _PACKAGES: ":".join(artifact),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default Delta reads a table's log in fifty tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


#: Iceberg in Maven's repository, by the release of Spark that it is for. There is none for newer releases yet.
ICEBERG = {
    "4.0": ("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.11.0"),
    "4.1": ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
}
#: For a catalog that several processes share.
SQLITE = ("org.xerial", "sqlite-jdbc", "3.54.1.0")


def iceberg_conf() -> Mapping[str, str]:
    """What a session needs to write Iceberg tables; empty where no Iceberg is for this Spark."""
    from pyspark import __version__ as release  # noqa: PLC0415

    artifact = ICEBERG.get(release.rpartition(".")[0])
    return {} if artifact is None else {_PACKAGES: ",".join(map(":".join, (artifact, SQLITE)))}


def _conf(packages: str) -> Mapping[str, str]:
    formats = (delta_conf(), iceberg_conf())
    every = [each for each in (*(conf.get(_PACKAGES) for conf in formats), packages) if each]
    return {**formats[0], **formats[1], _PACKAGES: ",".join(every)} if every else {}


#: The conf of a driver that is a process of its own.
SMALL_DRIVER: Mapping[str, str] = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


def set_up_jvms() -> None:
    """Have every Spark that this process or one of its children starts run in such a JVM."""
    options = [JVM_OPTIONS]
    if _LOCAL_FILES.exists():
        os.environ.setdefault("SPARK_DIST_CLASSPATH", str(_LOCAL_FILES))
    if _ARCHIVE_OPTIONS.exists():
        options.append(_ARCHIVE_OPTIONS.read_text(encoding="utf-8"))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(options))
    # A class archive would be made in the background of any test, and its JVM be one that the test does not know.
    os.environ.setdefault("DAGSTER_CKPT_CACHE", "")


def small_spark(
    home: Path, cores: int, packages: str = "", conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A local session with two shuffle partitions, UTC and no web UI, which keeps its files below ``home``.

    The maintenance of state stores runs every 100 ms, because that interval is fixed for the life of the
    JVM by the first stateful query.

    Args:
        home: a directory for its files.
        cores: how many threads it has.
        packages: more of Maven's packages, as Spark names them.
        conf: more settings.
    """
    from dagster_ckpt.spark import start_session  # noqa: PLC0415 - tests without Spark do not pay for the import
    from dagster_ckpt.testing.maven import alone  # noqa: PLC0415

    set_up_jvms()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    whole = {
        **SMALL_DRIVER,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
        **_conf(packages),
        **conf,
    }
    # The JVM fetches the packages before it answers.
    with alone() if _PACKAGES in whole else nullcontext():
        session = start_session("dagster-ckpt tests", f"local[{cores}]", whole)
    session.sparkContext.setLogLevel("OFF")
    return session


def _compile_local_files() -> None:
    from pyspark import java_gateway  # noqa: PLC0415 - as above

    launch: Callable[[], Any] = java_gateway.launch_gateway
    gateway = launch()
    made = _LOCAL_FILES.with_suffix(".tmp")
    try:
        for name, classfile in compiled(gateway.jvm).items():
            path = made / f"{name.replace('.', '/')}.class"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(classfile)
        made.replace(_LOCAL_FILES)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()


def _make_class_archive() -> None:
    from dagster_ckpt.spark.jvm.class_archive import archive_for, make_class_archive  # noqa: PLC0415 - as above
    from dagster_ckpt.spark.jvm.launching import compiler_option  # noqa: PLC0415

    os.environ.update(DAGSTER_CKPT_CACHE=str(_ARCHIVES), SPARK_SUBMIT_OPTS=JVM_OPTIONS)
    make_class_archive({}, wait=True)
    archive = archive_for({})
    assert archive is not None
    _ARCHIVE_OPTIONS.write_text(f"{archive.options} {compiler_option({})}", encoding="utf-8")


if __name__ == "__main__":
    _ARCHIVES.mkdir(parents=True, exist_ok=True)
    if not _LOCAL_FILES.exists():
        _compile_local_files()
    _make_class_archive()
