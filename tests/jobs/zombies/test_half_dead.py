"""A driver of which only the Python process is stopped: its JVM goes on with the query, and nobody checkpoints it."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import ELSEWHERE, Driver, driving
from tests.helpers.processes import lives
from tests.jobs.matrix.streams import FILE, land
from tests.jobs.zombies.driver import JOB
from tests.jobs.zombies.landing import Landing
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_DRIVER = "tests.jobs.zombies.driver"


@pytest.mark.exhaustive
def test_rows_are_neither_lost_nor_doubled_while_a_jvm_outlives_its_python(tmp_path: Path) -> None:
    """Its batches come into the log of the run that takes over, with other files than that run's."""
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from another host"
    landing = Landing(tmp_path / "in", 1)
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "lease=5", "unwatched") as zombie, landing.going_on(0.3):
        zombie.await_("two checkpoints", lambda: len(zombie.of("Completed")) >= 2)
        os.kill(zombie.process.pid, signal.SIGSTOP)
        words = ("rows", "lease=5", "interval=1h", "live=elsewhere")
        with driving(_DRIVER, FILE, str(tmp_path), *words, **ELSEWHERE) as driver:
            driver.await_("it takes over", lambda: bool(driver.of("Started")))
            (began,) = driver.of("Started")
            batches = tmp_path / "live" / "elsewhere"
            past = int(began["batch"]) + 6

            def is_over() -> bool:
                return driver.process.poll() is not None

            def committed(batch: int) -> bool:
                return any(batches.glob(f"{began['epoch']:06}-*/*/commits/{batch}"))

            eventually("both have written for a while", lambda: is_over() or committed(past))
            zombie.kill()
            last = max(int(path.name) for path in (tmp_path / "live" / "first").glob("*/*/commits/[0-9]*"))
            eventually("it is past the other", lambda: is_over() or committed(last + 2))
            if is_over():
                assert "SinkOverlap" in driver.log()
            else:
                driver.kill()
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "end", "lease=5", "live=elsewhere", **ELSEWHERE) as again:
        assert again.ended() == "FINISHED"
    catalog = CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), JOB)
    newest = find_newest(catalog)
    assert newest.job_id is not None
    completed, broken = catalog.completed(newest.job_id)
    assert completed
    assert not broken
    files = FileSink(tmp_path / "out").committed_files()
    rows = Counter((row["id"], row["v"]) for file in files for row in pq.ParquetFile(file).read().to_pylist())
    assert rows == landing.rows()


@pytest.mark.exhaustive
def test_a_jvm_does_not_outlive_its_python_by_more_than_a_lease(tmp_path: Path) -> None:
    land(tmp_path / "in", 0)
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "lease=4") as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        claim = CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), JOB).records.epochs.read_claim(1)
        assert claim is not None
        assert claim.lease.timeout == 4, "nobody may judge a start before its first beat by another lease"
        python, jvm = _python_and_jvm(driver)
        python.suspend()
        eventually("the JVM ends itself", lambda: not lives(jvm))
        assert python.status() == psutil.STATUS_STOPPED
        eventually("it says why", lambda: "has given no sign of life, and its lease of 4.0 s" in driver.log())


def test_a_storage_that_takes_no_heartbeat_pauses_the_query_and_costs_nothing_else(tmp_path: Path) -> None:
    land(tmp_path / "in", 0)
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "refuse", "lease=4") as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        _, jvm = _python_and_jvm(driver)
        for number in range(1, 3):
            (tmp_path / "refuse").touch()
            eventually("the JVM is paused", lambda: jvm.status() == psutil.STATUS_STOPPED)
            before = len(driver.of("Completed"))
            land(tmp_path / "in", number)
            (tmp_path / "refuse").unlink()
            driver.await_("the query goes on", lambda before=before: len(driver.of("Completed")) > before)
        assert driver.log().count("pauses: the storage has taken no heartbeat") == 2
        assert len(driver.of("Started")) == 1


@pytest.mark.exhaustive
def test_a_paused_query_is_not_in_the_way_of_a_cancellation(tmp_path: Path) -> None:
    land(tmp_path / "in", 0)
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "refuse", "lease=4") as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        _, jvm = _python_and_jvm(driver)
        (tmp_path / "refuse").touch()
        eventually("the JVM is paused", lambda: jvm.status() == psutil.STATUS_STOPPED)
        driver.process.send_signal(signal.SIGINT)
        eventually("the driver ends", lambda: driver.process.poll() is not None)
        assert not lives(jvm)


def _python_and_jvm(driver: Driver) -> tuple[psutil.Process, psutil.Process]:
    python, *children = driver.family()
    (jvm,) = (child for child in children if child.name() == "java")
    return python, jvm
