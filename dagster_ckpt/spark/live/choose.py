"""Choosing whether a start's live location lies on a disk or in the storage of the checkpoints, and finding it later.

The choice follows from two facts, not from a trial: the storage must be able to pin and copy its files, and Spark's
Hadoop must have a class for the storage's URLs. Nothing is written as a test. The class brings its own credentials; if
these are wrong, the query's first error says so.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import Choice
from dagster_ckpt.config import LiveLocationPlace
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import FileSystem, is_own
from dagster_ckpt.hosts import this_host
from dagster_ckpt.spark.events import LiveLocationChosen
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live.live_location import LOCATION, LiveLocation
from dagster_ckpt.spark.live.on_disk import LocalLive
from dagster_ckpt.spark.query import check_characters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["choose_live", "connector_of", "recorded_live", "refuse_impossible"]

_log = logging.getLogger(__name__)

#: The storages whose files can be pinned and copied, each with the package of its class for Hadoop.
_CONNECTORS = {
    "gs": "the jar of gcs-connector",
    "s3": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "hdfs": "hadoop-client-api, which comes with Spark",
}
_COPYING = ", ".join(f"{scheme}://" for scheme in _CONNECTORS)
_HINT = "Set live_location to local, and working_directory to a directory that the driver and every executor reach."


def refuse_impossible(job: StreamingJob) -> None:
    """Refuse a live location that no Spark could use.

    Raises:
        InvalidConfiguration: the live location should lie in a storage that cannot pin and copy its files.
    """
    if job.live_location is LiveLocationPlace.STORAGE and job.filesystem.copies is None:
        raise InvalidConfiguration(
            f"The live checkpointLocation of job {job.name!r} cannot lie in {job.filesystem.url}: that is built for "
            f"{_COPYING} only.",
            hint=_HINT,
        )


def choose_live(job: StreamingJob, spark: SparkSession, directory: Path) -> tuple[LiveLocation, LiveLocationChosen]:
    """Where the live location of a start lies, and why.

    Args:
        job: the job.
        spark: the job's session.
        directory: the start's directory in the working directory.

    Raises:
        InvalidConfiguration: the live location should lie in the storage, and cannot; or Spark's JVM cannot name it.
    """
    live, why = _chosen(job, spark, directory)
    if isinstance(live, LocalLive):
        check_characters(spark, live.url)
    return live, why


def _chosen(job: StreamingJob, spark: SparkSession, directory: Path) -> tuple[LiveLocation, LiveLocationChosen]:
    refuse_impossible(job)
    local = LocalLive(directory / LOCATION, job.ahead)
    if (store := job.filesystem.copies) is None:
        none = f"{job.filesystem.url} is no storage that Spark could keep it in (those are {_COPYING})"
        return local, LiveLocationChosen(local.url, f"live_location is {job.live_location.value}, and {none}")
    master = str(spark.sparkContext.master)
    if (why := _why_on_a_disk(job, master)) is not None:
        return local, LiveLocationChosen(local.url, why)
    scheme = job.filesystem.hadoop_url.partition("://")[0]
    connector = connector_of(spark, scheme)
    if connector is None:
        missing = f"Spark's Hadoop has no file system for {scheme}:// (no connector on its classpath)"
        if job.live_location is LiveLocationPlace.STORAGE:
            raise InvalidConfiguration(
                f"The live checkpointLocation of job {job.name!r} is to lie in {job.filesystem.url}, and {missing}.",
                hint="Add the connector to the session (spark.jars, or spark.jars.packages): "
                f"{_connector(job, spark)}. {_HINT}",
            )
        return local, LiveLocationChosen(local.url, f"{missing}, and live_location is auto")
    from dagster_ckpt.spark.live.in_bucket import stored_live  # noqa: PLC0415

    stored = stored_live(job.filesystem, store, job.name, directory.name)
    asked = (
        "live_location is storage"
        if job.live_location is LiveLocationPlace.STORAGE
        else f"live_location is auto, no working_directory is named that executors of {master} could share"
    )
    return stored, LiveLocationChosen(stored.url, f"{asked}, and Spark reaches {scheme}:// by {connector}")


def recorded_live(choice: Choice, filesystem: FileSystem) -> LiveLocation | None:
    """The live location that a start began with, if it still exists, is this user's and can be reached from here.

    Args:
        choice: the recorded choice of the start.
        filesystem: the storage of the job's checkpoints.

    Raises:
        StorageError: the storage failed.
    """
    if (local := _live_here(choice)) is not None:
        if is_own(local) and is_own(local.parent):
            return LocalLive(local)
        _log.warning("The live location %s is left alone: it is not this user's, or everybody can write to it", local)
        return None
    if filesystem.copies is None or not choice.live.startswith(f"{filesystem.url}/"):
        return None
    # This import loads the client of the storage, which most jobs do not need.
    from dagster_ckpt.spark.live.in_bucket import StoredLive  # noqa: PLC0415

    directory = choice.live.removeprefix(f"{filesystem.url}/")
    if not filesystem.list(directory):
        return None
    return StoredLive(filesystem, filesystem.copies, directory)


def connector_of(spark: SparkSession, scheme: str) -> str | None:
    """The class by which Spark's Hadoop reaches URLs of a scheme, ``None`` for no class. Nothing is opened."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - PySpark is loaded where it runs

    jvm = spark._jvm  # noqa: SLF001
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    try:
        found = jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)  # type: ignore[union-attr]
        return str(found.getName())
    except Py4JJavaError:  # UnsupportedFileSystemException, or the configured class cannot be loaded
        return None


def _connector(job: StreamingJob, spark: SparkSession) -> str:
    """The package with the class for the storage of a job."""
    release = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # type: ignore[union-attr]  # noqa: SLF001
    scheme = job.filesystem.url.partition("://")[0]
    return _CONNECTORS.get(scheme, f"one for {scheme}://").format(hadoop=release)


def _why_on_a_disk(job: StreamingJob, master: str) -> str | None:
    """Why the live location lies on a disk, ``None`` when that depends on what Spark reaches."""
    match job.live_location:
        case LiveLocationPlace.LOCAL:
            return "live_location is local"
        case LiveLocationPlace.STORAGE:
            return None
    if master.startswith("local"):
        return f"live_location is auto, and Spark's executors are on this machine ({master})"
    if job.shares_disk:
        return "live_location is auto, and working_directory names a disk that driver and executors share"
    return None


def _live_here(choice: Choice) -> Path | None:
    """The live location that a start began with, if it is on this host and still exists.

    One behind a directory of another user counts as there: nobody but that user can tell.
    """
    if choice.host != this_host():
        return None
    live = Path(choice.live)
    try:
        return live if live.is_dir() else None
    except PermissionError:
        return live
    except OSError:  # such as a mount that is away
        return None
