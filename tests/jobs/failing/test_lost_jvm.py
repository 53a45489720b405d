"""A JVM that is lost in the middle of a batch: the run starts another one and goes on, and the output stays exact."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import Driver, driving
from tests.jobs.matrix.streams import FILE, ROWS, land
from tests.jobs.zombies.driver import JOB
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_DRIVER = "tests.jobs.zombies.driver"
_FILES = 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(_FILES):
        land(tmp_path / "in", number)
    return tmp_path


def catalog(root: Path) -> CheckpointCatalog:
    return CheckpointCatalog(PosixFileSystem(root / "storage"), JOB)


def kill_mid_batch(driver: Driver, root: Path, starts: int = 1) -> Path:
    """SIGKILL the JVM of a start while a batch is under way; returns the live location."""
    driver.await_("a start", lambda: len(driver.of("Started")) == starts)
    before = len(driver.of("Completed"))
    driver.await_("checkpoints", lambda: len(driver.of("Completed")) >= before + 2)
    chosen = catalog(root).choice()
    assert chosen is not None
    live = CheckpointLocation(Path(chosen[1].live))
    driver.await_("a batch is under way", lambda: live.planned() is not None)
    heartbeat = catalog(root).records.heartbeat.read()
    assert heartbeat is not None
    python, jvm = heartbeat.processes
    assert python.pid == driver.process.pid
    os.kill(jvm.pid, signal.SIGKILL)
    return live.path


def assert_exact(root: Path) -> None:
    found = find_newest(catalog(root))
    assert found.job_id is not None
    _, broken = catalog(root).completed(found.job_id)
    assert not broken
    files = FileSink(root / "out").committed_files()
    rows = Counter(row["id"] for file in files for row in pq.ParquetFile(file).read().to_pylist())
    assert rows == Counter(range(5 * (_FILES - 1) + ROWS))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("udf", "delete"), id="live location deleted"),
        pytest.param((), id="live location kept", marks=pytest.mark.exhaustive),
    ],
)
def test_the_run_goes_on_in_another_jvm(root: Path, words: tuple[str, ...]) -> None:
    with driving(_DRIVER, FILE, str(root), "end", *words) as driver:
        live = kill_mid_batch(driver, root)
        if "delete" in words:
            shutil.rmtree(live.parent)
        assert driver.ended() == "FINISHED"
        (restart,) = driver.of("Restarting")
        assert "The JVM of job 'zombie' is gone: it was killed by SIGKILL" in restart["error"]
        assert "OOM kill" in restart["error"]
        assert "restart 1 of 3" in restart["reason"]
        first, second = driver.of("Started")
        assert (first["epoch"], second["epoch"]) == (1, 2)
        assert second["restored"] is not None
        if "delete" in words:
            assert second["kind"] == "checkpoint"
    assert_exact(root)
    heartbeat = catalog(root).records.heartbeat.read()
    assert heartbeat is not None
    assert len(heartbeat.processes) == 2, "the lost JVM is not named any more"
    claims = [catalog(root).records.epochs.read_claim(epoch) for epoch in (1, 2)]
    assert len({claim.run_id for claim in claims if claim is not None}) == 1


@pytest.mark.exhaustive
def test_a_jvm_that_is_lost_again_and_again_ends_the_job(root: Path) -> None:
    with driving(_DRIVER, FILE, str(root), "end", "restarts=1") as driver:
        kill_mid_batch(driver, root)
        kill_mid_batch(driver, root, starts=2)
        eventually("the driver ends", lambda: driver.process.poll() is not None)
        assert driver.process.returncode != 0
        assert "DriverLost" in driver.log()
    end = catalog(root).records.epochs.read_end(2)
    assert end is not None
    assert end.status == "FAILED"
    assert "OOM kill" in end.reason
    assert "all 1 restarts are used up" in end.reason


@pytest.mark.exhaustive
def test_a_context_that_stops_as_its_cluster_is_lost(root: Path) -> None:
    with driving(_DRIVER, FILE, str(root), "end", "lose") as driver:
        driver.await_("two checkpoints", lambda: len(driver.of("Completed")) >= 2)
        (root / "lose").touch()
        assert driver.ended() == "FINISHED"
        (restart,) = driver.of("Restarting")
        assert "loses its cluster" in restart["error"]
    assert_exact(root)


@pytest.mark.exhaustive
def test_a_function_that_has_kept_the_lost_session_is_told_so_and_a_new_process_goes_on(root: Path) -> None:
    with driving(_DRIVER, FILE, str(root), "end", "keep") as driver:
        kill_mid_batch(driver, root)
        eventually("the driver ends", lambda: driver.process.poll() is not None)
        assert driver.process.returncode != 0
        assert "belongs to a JVM of Spark that is gone" in driver.log()
        assert "from the session that it is given" in driver.log()
    end = catalog(root).records.epochs.read_end(2)
    assert end is not None
    assert end.status == "FAILING"
    with driving(_DRIVER, FILE, str(root), "end", "keep") as driver:
        assert driver.ended() == "FINISHED"
    assert_exact(root)


_CALLED = """
import sys, threading, time
from pathlib import Path
from pyspark import SparkContext
from dagster_ckpt.spark.query.session import start_session
from tests.helpers.local_spark import set_up_jvms

set_up_jvms()
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
start = lambda: start_session("called", "local[1]", conf)
called, go_on, done = threading.Event(), threading.Event(), []

def work(rows, batch):
    called.set()
    go_on.wait()
    done.append(batch)

rows = start().readStream.format("rate").load().writeStream.option("checkpointLocation", sys.argv[1])
rows.foreachBatch(work).start()
assert called.wait(120)
process = SparkContext._gateway.proc
process.kill()
process.wait()
threading.Timer(2, go_on.set).start()
assert start().range(3).count() == 3
assert done, "the function had come to its end before another JVM was started"
"""


@pytest.mark.exhaustive
def test_a_function_that_the_lost_jvm_has_called_ends_before_another_jvm_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CALLED, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
