"""Where a live location lies, and what is said about why."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.restart import NoRestart
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import (
    AzureBlobFileSystem,
    FileSystem,
    GcsFileSystem,
    HdfsFileSystem,
    PosixFileSystem,
    S3FileSystem,
)
from dagster_ckpt.spark.events import describe
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live import choose as live_choice
from dagster_ckpt.spark.live.choose import choose_live, connector_of, refuse_impossible
from dagster_ckpt.spark.live.in_bucket import stored_live
from dagster_ckpt.testing.maven import hadoop_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTO, LOCAL, STORAGE = LiveLocationPlace.AUTO, LiveLocationPlace.LOCAL, LiveLocationPlace.STORAGE
CONNECTOR = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
HDFS = "org.apache.hadoop.hdfs.DistributedFileSystem"
ABFS = "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
HOST = "mine.dfs.core.windows.net"
CLUSTER = "spark://master:7077"


def _job(filesystem: FileSystem, place: LiveLocationPlace, *, shares_disk: bool = False) -> StreamingJob:
    def nothing(*_: object) -> Any:
        raise AssertionError("no query is needed")

    return StreamingJob(
        name="orders",
        query=nothing,
        session=nothing,
        config=CheckpointConfig(),
        restart=NoRestart(),
        filesystem=filesystem,
        working_directory=Path("/working"),
        deployment="tests",
        inline_threshold=1,
        live_location=place,
        shares_disk=shares_disk,
    )


def _chosen(monkeypatch: pytest.MonkeyPatch, job: StreamingJob, master: str, connector: str | None) -> tuple[str, str]:
    found = {"gs": CONNECTOR, "s3a": S3A, "abfs": ABFS, "hdfs": HDFS}
    monkeypatch.setattr(live_choice, "connector_of", lambda _, scheme: found.get(scheme) if connector else None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    live, told = choose_live(job, spark, Path("/working/orders/000007-0123abcd"))
    assert live.url == told.url
    ((level, text),) = describe(told)
    assert level == logging.INFO
    assert told.url in text
    return live.url, told.reason


@pytest.mark.parametrize(
    ("place", "shares_disk", "master", "connector", "in_storage", "why"),
    [
        (LOCAL, False, CLUSTER, CONNECTOR, False, "live_location is local"),
        (STORAGE, True, "local[2]", CONNECTOR, True, CONNECTOR),
        (AUTO, False, CLUSTER, CONNECTOR, True, "no working_directory is named"),
        (AUTO, True, CLUSTER, CONNECTOR, False, "working_directory names a disk"),
        (AUTO, False, "local[*]", CONNECTOR, False, "on this machine"),
        (AUTO, False, "local-cluster[1,1,1]", CONNECTOR, False, "on this machine"),
        (AUTO, False, CLUSTER, None, False, "no connector on its classpath"),
    ],
)
def test_where_it_lies_and_why(
    monkeypatch: pytest.MonkeyPatch,
    place: LiveLocationPlace,
    shares_disk: bool,
    master: str,
    connector: str | None,
    in_storage: bool,
    why: str,
) -> None:
    job = _job(GcsFileSystem("bucket", "all of it"), place, shares_disk=shares_disk)
    url, reason = _chosen(monkeypatch, job, master, connector)
    expected = "gs://bucket/all of it/orders/taskowned" if in_storage else "/working/orders"
    assert url == f"{expected}/000007-0123abcd/checkpoint"
    assert why in reason


def test_hadoop_has_another_scheme_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on record and is told is our URL: another start finds the location by it."""
    job = _job(S3FileSystem("bucket", "all of it"), STORAGE)
    url, reason = _chosen(monkeypatch, job, CLUSTER, S3A)
    assert url == "s3://bucket/all of it/orders/taskowned/000007-0123abcd/checkpoint"
    assert f"Spark reaches s3a:// by {S3A}" in reason
    assert job.filesystem.copies is not None
    live = stored_live(job.filesystem, job.filesystem.copies, job.name, "000007-0123abcd")
    assert live.url == url
    assert live.spark_url == f"s3a{url.removeprefix('s3')}"


def test_hadoop_is_told_the_host_of_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on record and is told is our URL: another start finds the location by it."""
    options = {"account_name": "mine", "account_key": "c2VjcmV0LW9mLW1pbmU="}
    job = _job(AzureBlobFileSystem("data", "all of it", options), STORAGE)
    url, reason = _chosen(monkeypatch, job, CLUSTER, ABFS)
    assert url == "abfs://data/all of it/orders/taskowned/000007-0123abcd/checkpoint"
    assert f"Spark reaches abfs:// by {ABFS}" in reason
    assert job.filesystem.copies is not None
    live = stored_live(job.filesystem, job.filesystem.copies, job.name, "000007-0123abcd")
    assert live.url == url
    assert live.spark_url == url.replace("data/", "data@mine.dfs.core.windows.net/")


def test_what_sparks_hadoop_reaches_is_asked_and_not_tried(spark: SparkSession) -> None:
    assert connector_of(spark, "hdfs") == HDFS
    assert connector_of(spark, "viewfs") == "org.apache.hadoop.fs.viewfs.ViewFileSystem"
    # Hadoop's defaults name a class for gs:// that is not there.
    assert connector_of(spark, "gs") is None
    assert connector_of(spark, "s3a") is None
    assert connector_of(spark, "abfs") is None
    assert connector_of(spark, "no-such-scheme") is None


def test_auto_leaves_other_storages_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url, reason = _chosen(monkeypatch, _job(PosixFileSystem(tmp_path), AUTO), CLUSTER, CONNECTOR)
    assert url.startswith("/working")
    assert "those are gs://, s3://, abfs://, hdfs://" in reason


def test_auto_takes_hdfs_where_executors_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(HdfsFileSystem("namenode:8020", "/checkpoints"), AUTO)
    url, reason = _chosen(monkeypatch, job, CLUSTER, CONNECTOR)
    assert url == "hdfs://namenode:8020/checkpoints/orders/taskowned/000007-0123abcd/checkpoint"
    assert f"Spark reaches hdfs:// by {HDFS}" in reason
    assert _chosen(monkeypatch, job, "local[2]", CONNECTOR)[0].startswith("/working")


def test_what_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = _job(PosixFileSystem(tmp_path), STORAGE)
    with pytest.raises(InvalidConfiguration, match="for gs://, s3://, abfs://, hdfs:// only") as caught:
        refuse_impossible(job)
    assert "working_directory" in caught.value.hint
    with pytest.raises(InvalidConfiguration, match="for gs://, s3://, abfs://, hdfs:// only"):
        _chosen(monkeypatch, job, "local[2]", CONNECTOR)


@pytest.mark.parametrize(
    ("filesystem", "artifact"),
    [
        (GcsFileSystem("bucket"), "gcs-connector"),
        (S3FileSystem("bucket"), f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"),
        (AzureBlobFileSystem("data", host=HOST), f"org.apache.hadoop:hadoop-azure:{hadoop_version()}"),
    ],
    ids=["gs", "s3", "abfs"],
)
def test_a_connector_that_is_missing_is_named(spark: SparkSession, filesystem: FileSystem, artifact: str) -> None:
    job = _job(filesystem, STORAGE)
    refuse_impossible(job)
    with pytest.raises(InvalidConfiguration, match="no connector on its classpath") as caught:
        choose_live(job, spark, Path("/working/orders/000007-0123abcd"))
    assert "spark.jars" in caught.value.hint
    assert artifact in caught.value.hint
