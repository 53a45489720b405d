"""For which runs the sensor begins to start a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import SparkSessionResource
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.sensors.launching import launch_jvm
from tests.helpers.orchestration.stored_job import make_asset

_RESUMES = {names.RESUMES_TAG: "1", names.PARENT_RUN_TAG: "1"}


class _OwnSession(SparkSessionResource):
    def session(self, job_name: str, required: Any = None) -> Any:
        raise NotImplementedError


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """The jobs whose JVM is started, each with the conf."""
    found: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(
        SparkSessionResource,
        "launch_jvm",
        lambda self, job, required: found.append((job, self.conf | (required or {}))),
    )
    return found


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that launches runs beside its code servers."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def _request(tags: dict[str, str], **run_config: Any) -> dg.RunRequest:
    return dg.RunRequest(run_key="1", job_name="delays_job", tags=tags, run_config=run_config)


def test_the_jvm_of_a_run_that_resumes_a_job_starts_with_its_launch(
    beside: dg.DagsterInstance, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_MEMORY", "3g")
    spark = SparkSessionResource(conf={"spark.driver.memory": dg.EnvVar("DRIVER_MEMORY")})
    launch_jvm(beside, make_asset("delays"), _request(_RESUMES, ops={}), spark)
    assert launched == [("delays", {"spark.driver.memory": "3g"})]


@pytest.mark.parametrize(
    ("request_", "resource", "why"),
    [
        (_request({}), SparkSessionResource(), "it attends a driver"),
        (_request(_RESUMES, resources={}), SparkSessionResource(), "its run may have another Spark"),
        (_request(_RESUMES), SparkSessionResource(early_jvm=False), "the user has switched it off"),
        (_request(_RESUMES), SparkSessionResource(conf={"spark.jars.packages": "a:b:1"}), "it would be a download"),
        (_request(_RESUMES), _OwnSession(), "the run makes its own session"),
        (_request(_RESUMES), None, "the definitions do not have it"),
        (_request(_RESUMES), dg.ResourceDefinition.hardcoded_resource(1), "another kind of resource"),
    ],
)
def test_no_jvm_starts_that_the_run_would_not_use(
    beside: dg.DagsterInstance, launched: list[Any], request_: dg.RunRequest, resource: object, why: str
) -> None:
    launch_jvm(beside, make_asset("delays"), request_, resource)
    assert not launched, why


def test_no_jvm_starts_where_dagster_launches_runs_elsewhere(launched: list[Any]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        launch_jvm(instance, make_asset("delays"), _request(_RESUMES), SparkSessionResource())
    assert not launched


def test_a_resource_that_cannot_be_configured_does_not_keep_the_sensor_from_its_work(
    beside: dg.DagsterInstance, launched: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    spark = SparkSessionResource(conf={"spark.driver.memory": dg.EnvVar("NOWHERE_SET")})
    launch_jvm(beside, make_asset("delays"), _request(_RESUMES), spark)
    assert not launched
    assert "The JVM of job delays is started by its run" in caplog.text
