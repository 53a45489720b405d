"""The example's stream on a real standalone cluster: an executor is killed, then the driver; identical."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from assets.batch_answer import batch_answer, compare, read_delays
from assets.flights import CLOSING_FILES, _write, land, landing_plan
from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.file_sink import FileSink
from tests.cluster.layout import FILES_PER_TRIGGER, JOB, Shared
from tests.cluster.standalone import Cluster, eventually, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_ROOT = Path(__file__).resolve().parents[2]
_DAYS = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path / "cluster") as running:
        yield running


class Driver:
    """A driver process, and what it has told so far."""

    def __init__(self, cluster: Cluster, shared: Shared) -> None:
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.driver", cluster.master, str(shared.root)],
            cwd=_ROOT,
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [said for said in list(self.said) if said["event"] == event]

    def await_(self, what: str, condition: Any) -> None:
        def happened() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, "the driver has ended:\n" + "\n".join(self._log[-50:])
            return False

        eventually(what, happened)

    def family(self) -> list[psutil.Process]:
        """The driver and its JVM."""
        driver = psutil.Process(self.process.pid)
        return [driver, *driver.children(recursive=True)]

    def ended(self) -> str:
        """Wait for the end; how the run ended."""
        eventually("the driver ends", lambda: self.process.poll() is not None)
        self._reader.join()
        assert self.process.returncode == 0, "\n".join(self._log[-50:])
        (end,) = self.of("Ended")
        return str(end["status"])

    def close(self) -> None:
        """After its end, however it came."""
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event"'):
                self.said.append(json.loads(line))
            else:
                self._log.append(line.rstrip())


@contextmanager
def driving(cluster: Cluster, shared: Shared) -> Iterator[Driver]:
    driver = Driver(cluster, shared)
    try:
        yield driver
    finally:
        if driver.process.poll() is None:
            for process in driver.family():
                process.kill()
        driver.close()


def test_an_executor_and_then_the_driver_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    shared = Shared(tmp_path / "shared")
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    files = _DAYS + CLOSING_FILES
    last = -(-files // FILES_PER_TRIGGER) - 1
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)

    with driving(cluster, shared) as driver:
        driver.await_("two checkpoints", lambda: len(driver.of("Completed")) >= 2)
        executors = cluster.executors()
        assert executors, "no executor of the cluster runs the job"
        before = _committed(catalog)
        assert before < last
        executors[0].kill()
        driver.await_("batches commit after the executor is lost", lambda: _committed(catalog) >= before + 3)
        checkpoints = len(driver.of("Completed"))
        driver.await_("a checkpoint after it", lambda: len(driver.of("Completed")) > checkpoints)
        assert not driver.of("Failed")

        family = driver.family()
        driver.process.kill()
        driver.process.wait()
        eventually("the driver's JVM ends with it", lambda: not any(map(_alive, family)))
        killed_at = _committed(catalog)
        assert killed_at < last, "the job had ended before it was killed: there was nothing to show"
        shutil.rmtree(shared.live)

    with driving(cluster, shared) as driver:
        driver.await_("the query starts again", lambda: bool(driver.of("Started")))
        (started,) = driver.of("Started")
        assert started["kind"] == "checkpoint"
        assert started["batch"] <= killed_at
        assert driver.ended() == "FINISHED"
        assert not driver.of("Restarting")
        assert driver.of("Completed")[-1]["batch"] >= last

    expected = batch_answer(shared.landed)
    assert len(expected) > 1000
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical
    (job_id,) = catalog.job_ids()
    completed, broken = catalog.completed(job_id)
    assert not broken
    assert len(completed) == 4
    for metadata in completed:
        catalog.verify(metadata)


def test_a_driver_killed_in_a_batch_is_salvaged(tmp_path: Path) -> None:
    """Without a cluster, and with its live location kept: no committed batch is computed again."""
    shared = Shared(tmp_path / "shared")
    land(shared.landed, days=_DAYS)
    for file in landing_plan()[-CLOSING_FILES:]:
        _write(shared.landed, file)
    catalog = CheckpointCatalog(PosixFileSystem(shared.storage), JOB)
    local = Cluster("local[2]", psutil.Process(), dict(os.environ))

    with driving(local, shared) as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        chosen = catalog.choice()
        assert chosen is not None
        location = CheckpointLocation(Path(chosen[1].live))
        saved = int(driver.of("Completed")[-1]["batch"])
        driver.await_(
            "a batch is in flight, others committed since",
            lambda: location.planned() is not None and (location.last_committed() or 0) > saved,
        )
        family = driver.family()
        driver.process.kill()
        driver.process.wait()
        eventually("the driver's JVM ends with it", lambda: not any(map(_alive, family)))
        committed = location.last_committed()
        newest = catalog.newest().metadata
        assert committed is not None
        assert newest is not None

    with driving(local, shared) as driver:
        assert driver.ended() == "FINISHED"
        (started,) = driver.of("Started")
        assert started["batch"] == committed
        assert started["kind"] == ("salvage" if committed > newest.batch else "checkpoint")

    expected = batch_answer(shared.landed)
    assert compare(expected, read_delays(FileSink(shared.output).committed_files())).identical
    assert compare(expected, read_delays(shared.output.rglob("part-*.parquet"))).identical


def _committed(catalog: CheckpointCatalog) -> int:
    chosen = catalog.choice()
    assert chosen is not None
    committed = CheckpointLocation(Path(chosen[1].live)).last_committed()
    return -1 if committed is None else committed


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
