"""What is not submitted to a real standalone cluster: the run says why and what is next."""

from __future__ import annotations

import json
import re
import urllib.request
from importlib.metadata import version
from pathlib import Path

import dagster as dg
import pytest

from assets.cluster import Cluster, standalone_cluster
from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.errors import CheckpointError, SparkNotStarted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset
from tools.spark_environment import spark_environment

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(1500)]

_DEFINITIONS = "tests.system.cluster.submitted:defs"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredJob:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return StoredJob(tmp_path / "storage", "orders")


def refused(job: StoredJob, cluster: Cluster, deploy_mode: str) -> CheckpointError:
    """The error of a run whose driver is submitted; nothing has taken the job over."""
    spark = SparkSubmitResource(
        definitions=_DEFINITIONS,
        master=cluster.master,
        deploy_mode=deploy_mode,
        conf={**cluster.conf, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"},
    )
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(CheckpointError) as raised:
        dg.materialize([make_asset()], resources={"checkpoint_storage": job.storage, "spark": spark}, instance=instance)
    return raised.value


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_master_of_another_release(job: StoredJob, tmp_path: Path, deploy_mode: str) -> None:
    python = Path(spark_environment("4.2"))
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    with standalone_cluster(tmp_path / "cluster", spark_home=home) as cluster:
        error = refused(job, cluster, deploy_mode)
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


def given(cluster: Cluster) -> int:
    """How many drivers and applications the Master was given."""
    port = cluster.conf["spark.master.ui.port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=10) as reply:
        state = json.load(reply)
    return sum(len(state[f"{kind}{what}"]) for kind in ("active", "completed") for what in ("apps", "drivers"))
