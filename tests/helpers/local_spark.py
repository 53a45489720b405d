"""One local Spark, small and quiet, and what makes every JVM of the tests start soon.

``python -m tests.helpers.local_spark`` compiles ``LocalFiles.java`` and makes a class archive in ``build/``, for every
later test with this Spark: a JVM that begins from the archive has its first batch in half of the time.
"""

from __future__ import annotations

import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_LOCAL_FILES = Path(__file__).with_name("spark") / "LocalFiles.java"
#: The compiled file. Another source has another name, because an archive is for the class path that it was made with.
_JAR = _ARCHIVES / f"spark-{version('pyspark')}-{zlib.crc32(_LOCAL_FILES.read_bytes()):08x}.jar"
_LOCAL_FILES_OPTIONS = (
    "-Dspark.hadoop.fs.file.impl=tests.helpers.spark.LocalFiles "
    "-Dspark.hadoop.fs.AbstractFileSystem.file.impl=tests.helpers.spark.LocalFiles$Context"
)


#: Delta in Maven's repository, by the release of Spark that it is for. There is none for newer releases yet.
_DELTA = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}


def delta_conf() -> Mapping[str, str]:
    """What a session needs to write Delta tables; empty where no Delta is for this Spark."""
    from pyspark import __version__ as release  # noqa: PLC0415

    package = _DELTA.get(release.rpartition(".")[0])
    if package is None:
        return {}
    return {
        "spark.jars.packages": package,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default Delta reads a table's log in fifty tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


#: Iceberg in Maven's repository, by the release of Spark that it is for. There is none for newer releases yet.
_ICEBERG = {
    "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
#: For a catalog that several processes share.
_SQLITE = "org.xerial:sqlite-jdbc:3.54.1.0"


def iceberg_conf() -> Mapping[str, str]:
    """What a session needs to write Iceberg tables; empty where no Iceberg is for this Spark."""
    from pyspark import __version__ as release  # noqa: PLC0415

    package = _ICEBERG.get(release.rpartition(".")[0])
    return {} if package is None else {"spark.jars.packages": f"{package},{_SQLITE}"}


def _conf(packages: str) -> Mapping[str, str]:
    conf = {**delta_conf(), **iceberg_conf()}
    every = [each for each in (conf.get("spark.jars.packages"), packages) if each]
    return {**conf, "spark.jars.packages": ",".join(every)} if every else conf


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
    if _JAR.exists():
        options.append(_LOCAL_FILES_OPTIONS)
        os.environ.setdefault("SPARK_DIST_CLASSPATH", str(_JAR))
    if _ARCHIVE_OPTIONS.exists():
        options.append(_ARCHIVE_OPTIONS.read_text(encoding="utf-8"))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(options))
    # A class archive would be made in the background of any test, and its JVM be one that the test does not know.
    os.environ.setdefault("DAGSTER_CKPT_CACHE", "")


def small_spark(home: Path, cores: int, packages: str = "") -> SparkSession:
    """A local session with two shuffle partitions, UTC and no web UI, which keeps its files below ``home``.

    The maintenance of state stores runs every 100 ms, because that interval is fixed for the life of the
    JVM by the first stateful query.

    Args:
        home: a directory for its files.
        cores: how many threads it has.
        packages: more of Maven's packages, as Spark names them.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests without Spark do not pay for the import

    from tests.servers.ivy import alone  # noqa: PLC0415

    set_up_jvms()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = _conf(packages)
    builder = (
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
        .config(map={**conf})
    )
    # The JVM fetches the packages before it answers.
    with alone() if "spark.jars.packages" in conf else nullcontext():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _compile_local_files() -> None:
    """Compile the file by the compiler that Spark has for its own code: a Java that only runs programs has none."""
    from pyspark import java_gateway  # noqa: PLC0415 - as above

    launch: Callable[[], Any] = java_gateway.launch_gateway
    gateway = launch()
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_LOCAL_FILES.read_text(encoding="utf-8"))
        classes = compiler.getBytecodes()
        made = _JAR.with_suffix(".tmp")
        with zipfile.ZipFile(made, "w") as jar:
            for name in sorted(classes.keySet()):
                jar.writestr(name.replace(".", "/") + ".class", classes[name])
        os.utime(made, (0, 0))  # a class archive is for jars of this size and time
        made.replace(_JAR)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()


def _make_class_archive() -> None:
    from dagster_ckpt.spark.query.class_archive import archive_for, make_class_archive  # noqa: PLC0415 - as above

    os.environ.update(DAGSTER_CKPT_CACHE=str(_ARCHIVES), SPARK_SUBMIT_OPTS=JVM_OPTIONS, SPARK_DIST_CLASSPATH=str(_JAR))
    make_class_archive({}, wait=True)
    archive = archive_for({})
    assert archive is not None
    _ARCHIVE_OPTIONS.write_text(archive.options, encoding="utf-8")


if __name__ == "__main__":
    _ARCHIVES.mkdir(parents=True, exist_ok=True)
    if not _JAR.exists():
        _compile_local_files()
    _make_class_archive()
