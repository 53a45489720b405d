"""The program that makes a class archive: Spark runs what a job runs, and its JVM archives the classes at its exit.

    python -m dagster_ckpt.spark.jvm.train_class_archive ARCHIVE EXTRA_CLASS_PATH

It has a session of its own. It ends when its standard input does: with the process that started it. Its JVM ends with
it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from dagster_ckpt.config import CHANGELOG_CONF, PROVIDER_CONF, ROCKSDB_PROVIDER, STATE_FORMAT_CONF
from dagster_ckpt.spark.jvm.class_archive import ClassArchive, run_small_query
from dagster_ckpt.spark.jvm.launching import EXTRA_CLASS_PATH, OPTIONS_VARIABLE, compiler_option
from dagster_ckpt.spark.jvm.local_files import load_local_files, local_files_conf
from dagster_ckpt.spark.releases import release_of

#: Seconds that the JVM may take to write the archive.
_WRITING = 600


def main() -> int:
    """Make the archive unless it is there, or another process makes it."""
    archive, class_path = ClassArchive(Path(sys.argv[1])), sys.argv[2]
    _step_back()
    with archive.path.with_suffix(".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        if archive.is_whole():
            return 0
        shutil.rmtree(archive.making, ignore_errors=True)
        archive.failed.write_text("It was broken off.\n", encoding="utf-8")
        made = archive.making / archive.path.name
        try:
            archive.making.mkdir(mode=0o700)
            _train(made, class_path)
            made.chmod(0o600)
            made.replace(archive.path)
            archive.seal()
        except Exception as error:
            archive.failed.write_text(f"{error}\n", encoding="utf-8")
            raise
        finally:
            shutil.rmtree(archive.making, ignore_errors=True)
    archive.failed.unlink(missing_ok=True)
    return 0


def _step_back() -> None:
    """Take the lowest priority, be the first to go when memory runs out, and end with the process that asked."""
    os.nice(19)
    if (score := Path("/proc/self/oom_score_adj")).exists():
        score.write_text("1000", encoding="ascii")

    def watch() -> None:
        os.read(0, 1)  # nobody writes: this is the end of the pipe
        if os.getpgrp() == os.getpid():  # else the group has other processes, too
            os.killpg(os.getpgrp(), signal.SIGKILL)  # with a JVM that writes, which reads its own input no more
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train(made: Path, class_path: str) -> None:
    given = os.environ.get(OPTIONS_VARIABLE, "")
    options = [
        f'"-XX:ArchiveClassesAtExit={made}" -Xlog:cds=error',
        compiler_option({EXTRA_CLASS_PATH: class_path}),
        given,
    ]
    os.environ[OPTIONS_VARIABLE] = " ".join(filter(None, options))
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - after the options of its JVM
    from pyspark.sql import SparkSession  # noqa: PLC0415

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        PROVIDER_CONF: ROCKSDB_PROVIDER,
        CHANGELOG_CONF: "true",
        **({EXTRA_CLASS_PATH: class_path} if class_path else {}),
    }
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(conf.items())))  # noqa: SLF001 - no public way
    jvm = SparkContext._jvm  # noqa: SLF001
    load_local_files(jvm, conf)  # as the JVM of a run does, with what that compiles and extends
    builder = SparkSession.builder.appName("dagster-ckpt class archive")
    for key, value in {**conf, **local_files_conf(jvm, conf)}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark names it nowhere else
    process = gateway.proc
    # A job's state is kept so unless its user decides otherwise.
    spark.conf.set(STATE_FORMAT_CONF, str(max(release_of(spark.version).formats.state)))
    run_small_query(spark, made.parent)
    try:
        _run_other_queries(spark, made.parent / "others")
    except Exception:  # the archive knows less
        traceback.print_exc()
    spark.stop()
    process.stdin.close()
    if process.wait(_WRITING) or not made.exists():
        raise RuntimeError("The JVM has not written the archive; its output above tells why.")


def _run_other_queries(spark: Any, scratch: Path) -> None:
    """Streams of other formats, operators and sinks than those of the small query, each in two runs."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    lines = scratch / "lines"
    lines.mkdir(parents=True)
    names = spark.createDataFrame([("a", 1)], "name STRING, number INT")

    def write_batch(batch: Any, _: int) -> None:
        batch.write.mode("append").json(str(scratch / "json"))

    def run(rows: Any, name: str, write: Any = None) -> None:
        writer = rows.writeStream.option("checkpointLocation", str(scratch / f"live-{name}")).trigger(availableNow=True)
        writer = writer.foreachBatch(write) if write else writer.format("csv").option("path", str(scratch / name))
        writer.start().awaitTermination()

    for number in range(2):
        (lines / f"{number}.csv").write_text(f"{number},a,2024-01-01T00:0{number}:00Z\n", encoding="ascii")
        rows = spark.readStream.schema("id LONG, name STRING, ts TIMESTAMP").csv(str(lines))
        run(rows.dropDuplicates(["id"]), "different")
        run(rows.join(names, "name"), "batches", write_batch)
        late = rows.withWatermark("ts", "1 minute")
        run(late.join(late.select(F.col("id").alias("other"), F.col("ts")), ["ts"]), "joined")
        run(spark.readStream.text(str(lines)), "text")


if __name__ == "__main__":
    sys.exit(main())
