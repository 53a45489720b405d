"""The driver on a Worker of a real standalone cluster, attended from here: killed, resumed, identical."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from typing import TYPE_CHECKING

import dagster as dg
import psutil
import pytest

from assets.batch_answer import batch_answer, compare, read_delays
from assets.flights import CLOSING_FILES, _write, land, landing_plan
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.errors import DriverLost
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.orchestration.names import partition_key
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.system.cluster.layout import FILES_PER_TRIGGER, JOB, Shared
from tests.system.cluster.standalone import eventually, standalone_cluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(1500)]

_DAYS = 40


def test_a_driver_on_the_cluster_is_killed_and_resumed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Shared(tmp_path / "shared")
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    last = -(-(_DAYS + CLOSING_FILES) // FILES_PER_TRIGGER) - 1
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)
    monkeypatch.setenv("DAGSTER_CKPT_TEST_ROOT", str(shared.root))  # of the Worker, and so of its drivers
    with standalone_cluster(tmp_path / "cluster") as cluster, dg.DagsterInstance.ephemeral() as instance:
        for name in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON"):
            monkeypatch.setenv(name, cluster.environment[name])
        (shared.root / "master").write_text(cluster.master, encoding="utf-8")
        defs: dg.Definitions = importlib.import_module("tests.system.cluster.submitted").defs
        job = defs.resolve_job_def(f"{JOB}_job")

        killed: list[list[str]] = []
        killer = threading.Thread(target=_kill_at_the_first_checkpoint, args=(catalog, killed), daemon=True)
        killer.start()
        with pytest.raises(DriverLost, match=r"The driver of run .* is dead"):
            job.execute_in_process(instance=instance)
        killer.join()
        assert "worker" in " ".join(killed[0]), f"a Worker has started the driver: {killed}"
        eventually("the driver's executors end", lambda: not cluster.executors())

        (sensor,) = defs.get_repository_def().sensor_defs
        storage = {"checkpoint_storage": defs.resources["checkpoint_storage"]} if defs.resources else {}

        def request() -> dg.RunRequest | None:
            context = dg.build_sensor_context(instance=instance, resources=storage, definitions=defs)
            return next(iter(sensor.evaluate_tick(context).run_requests or ()), None)

        requested: list[dg.RunRequest] = []

        def resumed() -> bool:
            requested.extend(found for found in [request()] if found is not None)
            return bool(requested)

        eventually("the sensor resumes the job", resumed)
        done = job.execute_in_process(
            instance=instance, run_config=requested[0].run_config, tags=dict(requested[0].tags)
        )
        assert done.success
        shown = set(instance.get_dynamic_partitions(f"{JOB}_checkpoints"))

    chosen = catalog.choice()
    assert chosen is not None
    assert (chosen[0], chosen[1].restored is not None) == (2, True)
    completed, broken = catalog.completed(chosen[1].job_id)
    assert not broken
    assert completed[-1].batch >= last
    assert shown == {partition_key(metadata) for metadata in completed}
    expected = batch_answer(shared.landed)
    assert len(expected) > 1000
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical


def _kill_at_the_first_checkpoint(catalog: CheckpointCatalog, killed: list[list[str]]) -> None:
    """Kill the driver as soon as it has a checkpoint; tell the command lines of the processes above it."""

    def completed() -> bool:
        beat = catalog.records.heartbeat.read()
        return beat is not None and beat.completed is not None

    eventually("the driver completes a checkpoint", completed)
    beat = catalog.records.heartbeat.read()
    assert beat is not None
    driver = psutil.Process(beat.processes[0].pid)
    killed.append([" ".join(process.cmdline()).lower() for process in driver.parents()])
    os.kill(driver.pid, signal.SIGKILL)
