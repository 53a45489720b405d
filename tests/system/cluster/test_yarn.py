"""What a real YARN rejects fails the run by name, and no driver is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.errors import SparkNotStarted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset
from tests.servers.yarn_cluster import CLOSED_QUEUE, MiniYarn, yarn_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniYarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("conf", "message", "hint"),
    [
        pytest.param({"spark.yarn.queue": "nobodys"}, "to unknown queue: nobodys", "`yarn logs ", id="queue"),
        pytest.param(
            {"spark.yarn.queue": CLOSED_QUEUE},
            "does not have permission to submit application_",
            "acl_submit_applications",
            id="no permission",
        ),
        pytest.param(
            {"spark.driver.memory": "3g"},
            "above the max threshold (2048 MB) of this cluster",
            "`yarn logs ",
            id="memory",
        ),
        pytest.param(
            {},
            "User application exited with status 1",
            "`yarn logs -applicationId application_",
            id="driver",
        ),
    ],
)
def test_what_is_not_driven_is_named(
    yarn: MiniYarn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conf: dict[str, str],
    message: str,
    hint: str,
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    job = StoredJob(tmp_path / "storage")
    spark = SparkSubmitResource(
        definitions="no_such_module:defs", master="yarn", deploy_mode="cluster", conf={**yarn.conf({}), **conf}
    )
    resources = {"checkpoint_storage": job.storage, "spark": spark}
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(SparkNotStarted) as raised:
        dg.materialize([make_asset()], resources=resources, instance=instance)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert job.catalog.records.epochs.highest() == 0
    assert job.catalog.records.submissions.latest().standing is None, "a driver that appears late is not wanted"
