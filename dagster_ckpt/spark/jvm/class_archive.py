"""The class archive of Spark's driver: a JVM that maps it need not read, check and link thousands of classes again.

It is what HotSpot calls a dynamic archive (class data sharing): one for each Java, Spark and class path, made once, by
a process of its own beside a running job. A JVM ignores an archive of another Java or class path, crashes on an archive
that is cut off, and uses an archive with changed bytes. So an archive is used only if its checksum shows that it is
whole, and if nobody else can have written it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.errors import SparkNotStarted
from dagster_ckpt.filesystem import make_working_directory
from dagster_ckpt.spark.jvm.launching import (
    EXTRA_CLASS_PATH,
    OPTIONS_VARIABLE,
    USERS_OPTIONS,
    launched_with,
    spark_home,
)

__all__ = [
    "CACHE_VARIABLE",
    "ClassArchive",
    "archive_for",
    "java_and_spark",
    "make_class_archive",
    "run_small_query",
    "with_archive",
]

_log = logging.getLogger(__name__)

#: The environment variable with the directory of archives; empty for none.
CACHE_VARIABLE = "DAGSTER_CKPT_CACHE"
#: A user who sets one of these decides about class data sharing.
_DECIDED = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "AutoCreateSharedArchive")
#: Parts of the class path besides the jars of Spark.
_PATH_VARIABLES = ("SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
#: Seconds until an archive that could not be made is tried again.
_NOT_AGAIN = 86_400.0
#: Seconds after which an unused archive is deleted.
_UNUSED = 30 * 86_400.0
#: The input of the small query.
_ROWS = '{"id":1,"ts":"2024-01-01T00:00:00Z"}\n{"id":2,"ts":"2024-01-01T00:10:00Z"}\n'
_CHUNK = 4 * 1024 * 1024
#: A number for what the maker of an archive runs: an archive that knows less is made anew.
_TRAINING = 2
#: Archives that are kept: each image or environment that is built has one of its own.
_KEPT = 3
#: Seconds that a start waits for the directory of archives, which may lie on a hanging network.
_PATIENCE = 5.0
#: The one attempt of this process to make an archive.
_attempts: list[threading.Thread] = []
#: The last look at the directory of archives.
_looks: list[threading.Thread] = []
_once = threading.Lock()


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive that is there, or can be made.

    Attributes:
        path: of the archive; ``{path}.json`` has its size and checksum.
    """

    path: Path

    @property
    def facts(self) -> Path:
        """The file that tells what the whole archive is."""
        return self.path.with_suffix(".json")

    @property
    def failed(self) -> Path:
        """What the last attempt to make the archive said, if it failed."""
        return self.path.with_suffix(".failed")

    @property
    def options(self) -> str:
        """The options of a JVM that uses the archive."""
        return f'"-XX:SharedArchiveFile={self.path}"'

    @property
    def making(self) -> Path:
        """The directory of an attempt to make the archive."""
        return self.path.with_suffix(".making")

    def seal(self) -> None:
        """Record what the whole archive is; only then is it used. Delete what nobody needs of the other archives."""
        made = self.facts.with_suffix(".tmp")
        made.write_text(json.dumps(_facts(self.path)), encoding="utf-8")
        made.chmod(0o600)
        made.replace(self.facts)
        others = sorted((_age(path), path) for path in self.path.parent.glob("*.jsa") if path != self.path)
        for number, (age, path) in enumerate(others, start=1):
            if number >= _KEPT or age > _UNUSED:
                ClassArchive(path).delete()
        for left in self.path.parent.glob("*.making"):
            if left != self.making and _age(left) > _NOT_AGAIN:  # who made it was killed
                shutil.rmtree(left, ignore_errors=True)

    def delete(self) -> None:
        """Delete the archive, so that it can be made again. A JVM that has it open keeps its classes."""
        for path in (self.facts, self.path, self.failed, self.path.with_suffix(".log")):
            with contextlib.suppress(OSError):
                path.unlink()

    def is_whole(self) -> bool:
        """Whether the archive is there as it was made, and only this user can have written it."""
        try:
            if not all(map(_is_private, (self.path.parent, self.path, self.facts))):
                return False
            whole = bool(json.loads(self.facts.read_text(encoding="utf-8")) == _facts(self.path))
        except (OSError, ValueError):
            return False
        if not whole:
            _log.warning("The class archive %s is damaged. It is not used, and made anew.", self.path)
            self.facts.unlink(missing_ok=True)
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def may_be_made(self) -> bool:
        """Whether there is none, and no attempt to make it has failed lately."""
        with contextlib.suppress(OSError):
            return time.time() - self.failed.stat().st_mtime > _NOT_AGAIN
        return not (self.facts.exists() and self.path.exists())


def archive_for(conf: Mapping[str, str]) -> ClassArchive | None:
    """The archive for the JVM of a session's conf; ``None`` where there can be none, or where the user decides.

    Raises:
        StorageUnusable: the directory of archives is not this user's own.
        OSError: Java, Spark or the directory of archives cannot be read.
    """
    directory = _directory()
    decided = any(word in conf.get(key, "") for key in USERS_OPTIONS for word in _DECIDED)
    decided = decided or any(word in os.environ.get(OPTIONS_VARIABLE, "") for word in _DECIDED)
    if directory is None or decided or os.name != "posix":
        return None
    if (found := java_and_spark(conf)) is None:
        return None
    directory /= "class_archives"
    make_working_directory(directory, directory.parent)
    name = hashlib.sha256(json.dumps([*found, _TRAINING]).encode()).hexdigest()[:32]
    return ClassArchive(directory / f"{name}.jsa")


def java_and_spark(conf: Mapping[str, str]) -> list[object] | None:
    """What tells one Java, Spark and class path from another; ``None`` if there is no Java or no Spark.

    Raises:
        OSError: Java or Spark cannot be read.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    spark = spark_home()
    if java is None or spark is None:
        return None
    binary = Path(java).resolve()
    jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (spark / "jars").iterdir())
    others = [conf.get(EXTRA_CLASS_PATH), *map(os.environ.get, _PATH_VARIABLES)]
    return [str(binary), binary.stat().st_size, binary.stat().st_mtime_ns, str(spark), jars, others]


@contextmanager
def with_archive(conf: Mapping[str, str], *, wanted: bool) -> Iterator[None]:
    """Let a JVM that is started in this context use the archive, if there is one and its directory answers in time.

    No error leaves this function.
    """
    options = None
    if wanted:
        try:
            options = _options_in_time(conf)
        except Exception as error:  # an archive saves time, and is needed by nobody
            _log.warning("Spark starts without a class archive: %s", error)
    if options is None:
        yield
        return
    with launched_with(options):
        yield


def _options_in_time(conf: Mapping[str, str]) -> str | None:
    """The options of a JVM that uses the archive; ``None`` for no archive.

    Raises:
        TimeoutError: the directory of archives does not answer.
        Exception: as by :func:`archive_for`; or there can be no more threads.
    """
    found: Future[str | None] = Future()

    def look() -> None:
        try:
            archive = archive_for(conf)
            found.set_result(archive.options if archive is not None and archive.is_whole() else None)
        except Exception as error:
            found.set_exception(error)

    if not any(thread.is_alive() for thread in _looks):  # a look that still hangs is the last one
        _looks[:] = [threading.Thread(target=look, name="dagster-ckpt-archive-look", daemon=True)]
        _looks[0].start()
        _looks[0].join(_PATIENCE)
    if not found.done():
        raise TimeoutError(f"its directory has not answered for {_PATIENCE:.0f} s")
    return found.result()


def make_class_archive(conf: Mapping[str, str], *, wait: bool = False) -> None:
    """Make the archive for the JVM of a session's conf in a process of its own.

    The process has the lowest priority, is the first to go when memory runs out, and ends with this process. Each
    process tries once; an attempt that fails or is broken off is not repeated for a day.

    Args:
        conf: of the session.
        wait: try in any case, and return when the archive is made; else at once, and no error leaves this function.

    Raises:
        SparkNotStarted: with ``wait``, the archive could not be made.
    """
    if wait:
        _make_now(conf)
        return
    with _once:
        if _attempts:
            return
        # The directory of archives may hang, and this is the thread on which a job is driven.
        _attempts.append(threading.Thread(target=_make, args=(conf,), name="dagster-ckpt-archive", daemon=True))
        try:
            _attempts[0].start()
        except RuntimeError as error:
            _log.warning("No class archive is made: %s", error)


def _make_now(conf: Mapping[str, str]) -> None:
    archive = archive_for(conf)
    if archive is None or archive.is_whole():
        return
    archive.failed.unlink(missing_ok=True)
    if not _make(conf):
        raise SparkNotStarted(
            "No class archive was made.", hint=f"What its Spark has said is in {archive.path.with_suffix('.log')}."
        )


def _make(conf: Mapping[str, str]) -> bool:
    """Make the archive in a process, and wait for the process; whether it has ended well."""
    if (process := _begin(conf)) is None:
        return False
    returned = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return returned == 0


def _begin(conf: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    try:
        archive = archive_for(conf)
        if archive is None or not archive.may_be_made():
            return None
        program = [sys.executable, "-m", "dagster_ckpt.spark.jvm.train_class_archive", str(archive.path)]
        program.append(conf.get(EXTRA_CLASS_PATH, ""))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_GATEWAY")}
        with archive.path.with_suffix(".log").open("wb") as log:
            # The pipe that nobody writes to tells the process that this process is gone.
            process = subprocess.Popen(  # noqa: S603 - this Python, with a path of this module
                program,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
    except Exception as error:
        _log.warning("No class archive is made: %s", error)
        return None
    _log.info("A class archive is made beside the job, so that later starts are faster: %s", archive.path)
    return process


def _directory() -> Path | None:
    """The directory of archives, ``None`` for none."""
    named = os.environ.get(CACHE_VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(cache) / "dagster_ckpt" if Path(cache).is_absolute() else None


def _facts(path: Path) -> dict[str, int]:
    checksum = size = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            checksum, size = zlib.crc32(data, checksum), size + len(data)
    return {"size": size, "crc32": checksum}


def _age(path: Path) -> float:
    """Seconds since a file or directory was changed, or an archive was used; 0 for what is gone."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _is_private(path: Path) -> bool:
    """Whether a file or directory is this user's, no link, and nobody else can write to it."""
    found = path.lstat()
    is_link, others = stat.S_ISLNK(found.st_mode), stat.S_IWGRP | stat.S_IWOTH
    return not is_link and found.st_uid == os.geteuid() and not found.st_mode & others


def run_small_query(spark: Any, scratch: Path) -> None:
    """Two streaming queries with state and a file sink; the second reads what the first, in two runs, has written.

    The second run of the first query loads the state of the first run.

    Args:
        spark: the session.
        scratch: an empty directory.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    source, first = scratch / "in", scratch / "out"
    source.mkdir()

    def run(rows: Any, name: str) -> None:
        counts = rows.groupBy(F.window("ts", "1 minute"), "id").agg(
            F.count("*").alias("count"), F.sum("id").alias("sum"), F.count_if(F.col("id").isNull()).alias("nulls")
        )
        writer = counts.writeStream.format("parquet").option("path", str(scratch / name))
        query = writer.option("checkpointLocation", str(scratch / f"live-{name}")).trigger(availableNow=True).start()
        query.awaitTermination()

    for number in range(2):
        (source / f"{number}.json").write_text(_ROWS, encoding="ascii")
        run(spark.readStream.schema("id int, ts timestamp").json(str(source)).withWatermark("ts", "1 minute"), "out")
    written = spark.read.parquet(str(first)).schema
    windows = spark.readStream.schema(written).option("maxFilesPerTrigger", 1).parquet(str(first))
    run(windows.select("id", F.col("window.start").alias("ts")).withWatermark("ts", "1 minute"), "second")
