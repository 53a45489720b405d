"""Where a live location lies, and what is said about why."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.restart import NoRestart
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.filesystem.gcs import GcsFileSystem
from dagster_ckpt.spark import live_choice
from dagster_ckpt.spark.event_text import describe
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live_choice import choose_live, connector_of, refuse_impossible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTO, LOCAL, STORAGE = LiveLocationPlace.AUTO, LiveLocationPlace.LOCAL, LiveLocationPlace.STORAGE
CONNECTOR = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
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
    monkeypatch.setattr(live_choice, "connector_of", lambda _, scheme: connector if scheme == "gs" else None)
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


def test_what_sparks_hadoop_reaches_is_asked_and_not_tried(spark: SparkSession) -> None:
    assert str(connector_of(spark, "file")).endswith("LocalFileSystem")
    # Hadoop's defaults name a class for gs:// that is not there.
    assert connector_of(spark, "gs") is None
    assert connector_of(spark, "no-such-scheme") is None


def test_auto_leaves_other_storages_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url, reason = _chosen(monkeypatch, _job(PosixFileSystem(tmp_path), AUTO), CLUSTER, CONNECTOR)
    assert url.startswith("/working")
    assert "gs:// is" in reason


def test_what_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = _job(PosixFileSystem(tmp_path), STORAGE)
    with pytest.raises(InvalidConfiguration, match="gs:// only, and not for s3://") as caught:
        refuse_impossible(job)
    assert "working_directory" in caught.value.hint
    with pytest.raises(InvalidConfiguration, match="gs:// only"):
        _chosen(monkeypatch, job, "local[2]", CONNECTOR)
    job = replace(job, filesystem=GcsFileSystem("bucket"))
    refuse_impossible(job)
    with pytest.raises(InvalidConfiguration, match="no connector on its classpath") as caught:
        _chosen(monkeypatch, job, "local[2]", None)
    assert "spark.jars" in caught.value.hint
