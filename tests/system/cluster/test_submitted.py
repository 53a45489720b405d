"""The driver on a real standalone cluster or on a real YARN, attended from here: killed, resumed, identical."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from assets.batch_answer import batch_answer, compare, read_delays
from assets.cluster import Cluster, standalone_cluster
from assets.flights import CLOSING_FILES, _write, land, landing_plan
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.errors import DriverLost
from dagster_ckpt.filesystem import HdfsFileSystem, PosixFileSystem
from dagster_ckpt.orchestration.names import ATTENDS_TAG, partition_key
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.servers.hdfs_cluster import MiniDfs, cluster_jvm
from tests.servers.yarn_cluster import yarn_cluster
from tests.system.cluster.layout import JOB, Shared
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(3000)]

_DAYS = 40
_FILES_PER_TRIGGER = 4
_DEFINITIONS = "tests.system.cluster.submitted"
ROOT = "DAGSTER_CKPT_TEST_ROOT"
#: The process of a run of Dagster.
_RUN = f"""
import dagster as dg
from {_DEFINITIONS} import defs
with dg.DagsterInstance.get() as instance:
    defs.resolve_job_def("{JOB}_job").execute_in_process(instance=instance)
"""


@dataclass(frozen=True)
class Place:
    """A cluster, and what ends a driver there.

    Attributes:
        cluster: that runs.
        starter: what a process above the driver has in its command line.
        end: the driver with this process id.
        deploy_mode: where the driver is to be.
        hdfs: where the checkpoints and the live location are, if not on the disk of this machine.
    """

    cluster: Cluster
    starter: str
    end: Callable[[int], object]
    deploy_mode: str = "cluster"
    hdfs: HdfsFileSystem | None = None


def _kill_jvm(driver: int) -> None:
    os.kill(psutil.Process(driver).ppid(), signal.SIGKILL)


@contextmanager
def _standalone(directory: Path) -> Iterator[Place]:
    with standalone_cluster(directory) as cluster:
        yield Place(cluster, "deploy.worker", _kill_jvm)


@contextmanager
def _yarn(directory: Path, *, with_node: bool = False, deploy_mode: str = "cluster") -> Iterator[Place]:
    directory.mkdir()
    with yarn_cluster(directory) as running:
        environment = {"HADOOP_CONF_DIR": str(running.configuration), "SPARK_LOCAL_IP": "127.0.0.1"}
        conf = running.conf({ROOT: os.environ[ROOT]})
        end = (lambda driver: running.stop_node(running.node_of(driver))) if with_node else _kill_jvm
        starter = "yarn.applicationmaster" if deploy_mode == "cluster" else "deploy.sparksubmit"
        yield Place(Cluster("yarn", running.process, environment, conf), starter, end, deploy_mode)


@contextmanager
def _yarn_and_hdfs(directory: Path) -> Iterator[Place]:
    with _yarn(directory) as there:
        (directory / "hdfs").mkdir()
        with cluster_jvm(directory / "hdfs") as jvm:
            dfs = MiniDfs(jvm, directory / "hdfs" / "dfs")
            yield replace(there, hdfs=HdfsFileSystem(dfs.authority(), "/open/of all"))
            dfs.close()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(_standalone, id="standalone"),
        pytest.param(_yarn, id="yarn"),
        pytest.param(partial(_yarn, deploy_mode="client"), id="yarn-client"),
        pytest.param(partial(_yarn, with_node=True), id="yarn-with-its-node"),
        pytest.param(_yarn_and_hdfs, id="yarn-live-in-hdfs"),
    ],
)
def test_a_driver_on_the_cluster_is_killed_and_resumed_by_another_that_loses_an_executor(
    place: Callable[[Path], AbstractContextManager[Place]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _landed(tmp_path / "shared", monkeypatch)
    last = -(-(_DAYS + CLOSING_FILES) // _FILES_PER_TRIGGER) - 1
    with place(tmp_path / "cluster") as there, dg.DagsterInstance.ephemeral() as instance:
        cluster = there.cluster
        catalog = CheckpointCatalog(there.hdfs or PosixFileSystem(shared.storage), JOB)
        defs = _definitions(there, shared, monkeypatch)
        job = defs.resolve_job_def(f"{JOB}_job")

        above: list[str] = []

        def end_driver() -> None:
            driver = _driver_with_a_checkpoint(catalog, 1)
            above.extend(" ".join(process.cmdline()).lower() for process in psutil.Process(driver).parents())
            there.end(driver)

        with _beside(end_driver), pytest.raises(DriverLost, match=r"The driver of run .* is dead"):
            job.execute_in_process(instance=instance)
        assert there.starter in " ".join(above), f"the cluster has started the driver: {above}"
        eventually("the driver's executors end", lambda: not cluster.executors())

        requested = _requested(defs, instance)

        def kill_executor() -> None:
            _driver_with_a_checkpoint(catalog, 2)
            eventually("an executor runs the job", lambda: bool(cluster.executors()))
            cluster.executors()[0].kill()

        with _beside(kill_executor):
            done = job.execute_in_process(instance=instance, run_config=requested.run_config, tags=dict(requested.tags))
        assert done.success
        shown = set(instance.get_dynamic_partitions(f"{JOB}_checkpoints"))
        chosen = catalog.choice()
        assert chosen is not None
        assert (chosen[0], chosen[1].restored is not None) == (2, True)
        completed, broken = catalog.completed(chosen[1].job_id)
        if there.hdfs is not None:
            assert str(chosen[1].live).startswith(f"{there.hdfs.url}/{JOB}/taskowned/")
            assert not list(shared.live.rglob("offsets")), "none of it is on the disk"

    assert not broken
    assert last <= completed[-1].batch <= last + 1, "the driver has read how many files a batch has"
    assert shown == {partition_key(metadata) for metadata in completed}
    expected = batch_answer(shared.landed)
    assert len(expected) > 1000
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical


def test_a_run_whose_process_dies_leaves_its_driver_on_yarn_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _landed(tmp_path / "shared", monkeypatch)
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with _yarn(tmp_path / "cluster") as there, dg.DagsterInstance.get() as instance:
        defs = _definitions(there, shared, monkeypatch)
        with subprocess.Popen([sys.executable, "-c", _RUN]) as attending:
            try:
                driver = _driver_with_a_checkpoint(catalog, 1)
            finally:
                attending.kill()
        (first,) = instance.get_runs()
        requested = _requested(defs, instance)
        assert requested.tags[ATTENDS_TAG] == first.run_id
        assert psutil.pid_exists(driver), "it has not ended with the run"
        done = defs.resolve_job_def(f"{JOB}_job").execute_in_process(
            instance=instance, run_config=requested.run_config, tags=dict(requested.tags)
        )
        assert done.success
        assert catalog.records.epochs.highest() == 1, "the driver was not started again"
        told = instance.get_run_by_id(first.run_id)
        assert told is not None
        assert told.status is dg.DagsterRunStatus.FAILURE
        shown = set(instance.get_dynamic_partitions(f"{JOB}_checkpoints"))
    chosen = catalog.choice()
    assert chosen is not None
    assert shown == {partition_key(metadata) for metadata in catalog.completed(chosen[1].job_id)[0]}
    assert compare(batch_answer(shared.landed), read_delays(FileSink(shared.output).committed_files())).identical


def _landed(root: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The directory of a job whose source has all that lands; drivers find it by the environment, and so do Workers."""
    shared = Shared(root)
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    monkeypatch.setenv(ROOT, str(root))
    return shared


def _definitions(there: Place, shared: Shared, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """The definitions for a place, in the environment of its cluster."""
    cluster = there.cluster
    for name in {"SPARK_LOCAL_IP", "PYSPARK_PYTHON", "HADOOP_CONF_DIR"} & cluster.environment.keys():
        monkeypatch.setenv(name, cluster.environment[name])
    spark: dict[str, Any] = {"master": cluster.master, "deploy_mode": there.deploy_mode, "conf": dict(cluster.conf)}
    spark["storage"] = None if there.hdfs is None else there.hdfs.url
    (shared.root / "spark.json").write_text(json.dumps(spark), encoding="utf-8")
    (shared.root / "files_per_trigger").write_text(str(_FILES_PER_TRIGGER), encoding="utf-8")
    monkeypatch.delitem(sys.modules, _DEFINITIONS, raising=False)
    defs: dg.Definitions = importlib.import_module(_DEFINITIONS).defs
    return defs


def _requested(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.RunRequest:
    """What the sensor launches, as soon as it launches something."""
    (sensor,) = defs.get_repository_def().sensor_defs
    storage = {"checkpoint_storage": defs.resources["checkpoint_storage"]} if defs.resources else {}
    requested: list[dg.RunRequest] = []

    def ticked() -> bool:
        context = dg.build_sensor_context(instance=instance, resources=storage, definitions=defs)
        requested.extend(sensor.evaluate_tick(context).run_requests or ())
        return bool(requested)

    eventually("the sensor launches a run", ticked)
    return requested[0]


@contextmanager
def _beside(happens: Callable[[], None]) -> Iterator[None]:
    """What happens beside a run; it has happened when the run is over."""
    failed: list[BaseException] = []

    def do() -> None:
        try:
            happens()
        except BaseException as error:  # raised in the thread of the test
            failed.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    yield
    thread.join()
    if failed:
        raise failed[0]


def _driver_with_a_checkpoint(catalog: CheckpointCatalog, epoch: int) -> int:
    """The process id of the driver of an epoch, as soon as it has completed a checkpoint."""

    def beat() -> Heartbeat | None:
        found = catalog.records.heartbeat.read()
        if found is None or found.epoch != epoch or found.completed is None:
            return None
        return found if found.completed.epoch == epoch else None

    eventually("the driver completes a checkpoint", lambda: beat() is not None)
    found = beat()
    assert found is not None
    return found.processes[0].pid
