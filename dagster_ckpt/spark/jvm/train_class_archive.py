"""The program that makes a class archive: Spark runs what a job runs, and its JVM archives the classes at its exit.

    python -m dagster_ckpt.spark.jvm.train_class_archive ARCHIVE EXTRA_CLASS_PATH

It ends when its standard input does: with the process that started it. Its JVM ends likewise.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from dagster_ckpt.config import PROVIDER_CONF, ROCKSDB_PROVIDER
from dagster_ckpt.spark.jvm.class_archive import EXTRA_CLASS_PATH, ClassArchive, run_small_query
from dagster_ckpt.spark.jvm.launching import OPTIONS_VARIABLE

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
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train(made: Path, class_path: str) -> None:
    given = os.environ.get(OPTIONS_VARIABLE, "")
    os.environ[OPTIONS_VARIABLE] = f'"-XX:ArchiveClassesAtExit={made}" -Xlog:cds=error {given}'.strip()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the options of its JVM

    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        PROVIDER_CONF: ROCKSDB_PROVIDER,
        **({EXTRA_CLASS_PATH: class_path} if class_path else {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("dagster-ckpt class archive")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark names it nowhere else
    process = gateway.proc
    run_small_query(spark, made.parent)
    spark.stop()
    process.stdin.close()
    if process.wait(_WRITING) or not made.exists():
        raise RuntimeError("The JVM has not written the archive; its output above tells why.")


if __name__ == "__main__":
    sys.exit(main())
