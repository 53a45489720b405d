"""What Spark itself makes of a submission to Kubernetes: nothing is run there, all that would be run is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import kubernetes_validate
import pytest

from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.errors import SparkNotStarted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset
from tests.servers.kubernetes_api import KubernetesApi, kubernetes_api

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

_IMAGE = "registry.example/shop:1"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with kubernetes_api() as server:
        yield server


def submitted(api: KubernetesApi, job: StoredJob) -> SparkNotStarted:
    """The error of a run whose driver is submitted."""
    spark = SparkSubmitResource(
        definitions="shop.definitions:defs",
        master=api.master,
        deploy_mode="cluster",
        image=_IMAGE,
        python="/opt/shop/bin/python",
        conf={"spark.kubernetes.namespace": "shop", "spark.kubernetes.authenticate.driver.serviceAccountName": "runs"},
    )
    resources = {"checkpoint_storage": job.storage, "spark": spark}
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(SparkNotStarted) as raised:
        dg.materialize([make_asset()], resources=resources, instance=instance)
    assert job.catalog.records.epochs.highest() == 0
    assert job.catalog.records.submissions.latest().standing is None, "a driver that appears late is not wanted"
    return raised.value


def test_spark_makes_a_pod_of_the_image_with_the_driver_of_the_run(api: KubernetesApi, tmp_path: Path) -> None:
    error = submitted(api, StoredJob(tmp_path / "storage"))
    (pod,) = api.of_kind("Pod")
    kubernetes_validate.validate(pod, "1.37", strict=True)
    (container,) = pod["spec"]["containers"]
    assert (pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]) == ("shop", "runs")
    assert container["image"] == _IMAGE
    assert pod["spec"]["restartPolicy"] == "Never", "the resume sensor alone starts the next driver"
    arguments = container["args"]
    assert arguments[0] == "driver"
    assert arguments[arguments.index("--class") + 1] == "org.apache.spark.deploy.PythonRunner"
    assert arguments[-6:-1] == ["-m", "", "dagster_ckpt.standalone.submitted", "shop.definitions:defs", "orders"]
    (settings,) = (item["data"] for item in api.of_kind("ConfigMap") if "spark.properties" in item["data"])
    told = settings["spark.properties"]
    assert f"spark.kubernetes.container.image={_IMAGE.replace(':', chr(92) + ':')}" in told
    assert "spark.pyspark.python=/opt/shop/bin/python" in told
    assert f"`kubectl logs {pod['metadata']['name']}`" in error.hint
    assert api.unknown == []


def test_a_pod_that_may_not_be_made_is_named_and_none_is_made(api: KubernetesApi, tmp_path: Path) -> None:
    api.refuses = (403, 'pods is forbidden: User "dagster" cannot create resource "pods" in the namespace "shop"')
    error = submitted(api, StoredJob(tmp_path / "storage"))
    assert 'User "dagster" cannot create resource "pods"' in error.message
    assert "a role that may make pods" in error.hint
    assert api.of_kind("Pod") == []
