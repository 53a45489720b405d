"""What a real standalone cluster refuses: the run says why and what is next, and no driver has taken the job over."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import dagster as dg
import pytest

from assets.cluster import Cluster, standalone_cluster
from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.errors import CheckpointError, SparkNotStarted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset
from tools.spark_environment import spark_environment

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(3000)]

_DEFINITIONS = "tests.system.cluster.submitted:defs"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredJob:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return StoredJob(tmp_path / "storage", "orders")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path / "cluster") as running:
        yield running


def refused(
    job: StoredJob, cluster: Cluster, *, python: str | None = None, deploy_mode: str = "cluster"
) -> CheckpointError:
    """The error of a run whose driver is submitted; nothing has taken the job over."""
    spark = SparkSubmitResource(
        definitions=_DEFINITIONS,
        master=cluster.master,
        deploy_mode=deploy_mode,
        python=python,
        conf={**cluster.conf, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"},
    )
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(CheckpointError) as raised:
        dg.materialize([make_asset()], resources={"checkpoint_storage": job.storage, "spark": spark}, instance=instance)
    assert job.catalog.records.epochs.highest() == 0
    assert not job.catalog.records.submissions.latest().standing, "a driver that comes late is not wanted"
    return raised.value


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_python_without_the_package(job: StoredJob, cluster: Cluster, tmp_path: Path, deploy_mode: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    error = refused(job, cluster, python=str(python), deploy_mode=deploy_mode)
    if deploy_mode == "client":
        assert "No module named" in error.message
        assert "Install dagster-ckpt and the project for the Python of the driver" in error.hint
    else:
        assert "is FAILED" in error.message
        assert "the Worker's work/driver-*/stdout" in error.hint
        assert "a Python without dagster-ckpt" in error.hint
        (said,) = (tmp_path / "cluster" / "work").rglob("driver-*/stdout")
        assert "No module named" in said.read_text()


def test_a_master_that_asks_for_a_secret(job: StoredJob, tmp_path: Path) -> None:
    settings = {"spark.authenticate": "true", "spark.authenticate.secret": "of the cluster"}
    with standalone_cluster(tmp_path / "cluster", settings=settings) as cluster:
        error = refused(job, cluster)
    assert "Expected SaslMessage" in error.message
    assert "set spark.authenticate to true and spark.authenticate.secret in conf/spark-defaults.conf" in error.hint


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_master_of_another_release(job: StoredJob, tmp_path: Path, deploy_mode: str) -> None:
    python = Path(spark_environment("4.2"))
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    with standalone_cluster(tmp_path / "cluster", spark_home=home) as cluster:
        error = refused(job, cluster, deploy_mode=deploy_mode)
        assert given(cluster) == 0
    here = version("pyspark")
    assert isinstance(error, SparkNotStarted)
    assert re.fullmatch(
        rf"The Spark master at {cluster.master} has Spark 4\.2\.\d+, and the driver is submitted with {here}\. "
        r"No driver was started\.",
        error.message,
    )
    assert f"or set master to a cluster that has Spark {here}" in error.hint
    assert not job.root.exists(), "nothing is on record"


def test_a_worker_of_another_release(job: StoredJob, tmp_path: Path) -> None:
    """A Master takes it as any other, and would give it the driver."""
    python = Path(spark_environment("4.2"))
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    with standalone_cluster(tmp_path / "cluster", of_workers=home) as cluster:
        error = refused(job, cluster)
        assert given(cluster) == 0
    assert isinstance(error, SparkNotStarted)
    assert re.fullmatch(
        rf"The Worker at http://127\.0\.0\.1:\d+ of the Spark master at {cluster.master} has Spark 4\.2\.\d+, and the "
        rf"driver is submitted with {version('pyspark')}\. No driver was started\.",
        error.message,
    )
    assert not job.root.exists(), "nothing is on record"


def given(cluster: Cluster) -> int:
    """How many drivers and applications the Master was given."""
    port = cluster.conf["spark.master.ui.port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=10) as reply:
        state = json.load(reply)
    return sum(len(state[f"{kind}{what}"]) for kind in ("active", "completed") for what in ("apps", "drivers"))
