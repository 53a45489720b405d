"""A driver of which only the Python process is stopped: its JVM goes on with the query, and nobody checkpoints it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from tests.helpers.driving import Driver, driving
from tests.jobs.matrix.streams import FILE, ROWS, Row, land
from tests.jobs.zombies.driver import JOB
from tests.system.cluster.standalone import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: As if on another host: with another name, so that no process of this one can be looked at or killed.
_ENVIRONMENT = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
_ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "--")
_DRIVER = "tests.jobs.zombies.driver"


class Landing:
    """Files that land one after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._over = threading.Event()
        self.landed = 0

    def land(self) -> None:
        while not self._over.wait(0.3):
            land(self._directory, self.landed)
            self.landed += 1

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self.land)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def test_rows_are_neither_lost_nor_doubled_while_a_jvm_outlives_its_python(tmp_path: Path) -> None:
    """Its batches come into the log of the run that takes over, with other files than that run's."""
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from another host"
    landing = Landing(tmp_path / "in")
    land(tmp_path / "in", 0)
    landing.landed = 1
    elsewhere = {"environment": _ENVIRONMENT, "within": _ELSEWHERE}
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "watchdog=3600") as zombie, landing.going_on():
        zombie.await_("two checkpoints", lambda: len(zombie.of("Completed")) >= 2)
        os.kill(zombie.process.pid, signal.SIGSTOP)
        words = ("rows", "lease=5", "interval=1h", "live=elsewhere")
        with driving(_DRIVER, FILE, str(tmp_path), *words, **elsewhere) as driver:  # type: ignore[arg-type]
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
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "end", "lease=5", "live=elsewhere", **elsewhere) as again:  # type: ignore[arg-type]
        assert again.ended() == "FINISHED"
    catalog = CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), JOB)
    newest = find_newest(catalog)
    assert newest.job_id is not None
    completed, broken = catalog.completed(newest.job_id)
    assert completed
    assert not broken
    files = FileSink(tmp_path / "out").committed_files()
    rows = Counter((row["id"], row["v"]) for file in files for row in pq.ParquetFile(file).read().to_pylist())
    assert rows == _expected(landing.landed)


def test_a_jvm_does_not_outlive_its_python_by_more_than_a_lease(tmp_path: Path) -> None:
    land(tmp_path / "in", 0)
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "watchdog=4") as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        python, jvm = _python_and_jvm(driver)
        python.suspend()
        eventually("the JVM ends itself", lambda: not _runs(jvm))
        assert python.status() == psutil.STATUS_STOPPED
        eventually("it says why", lambda: "has given no sign of life for 4 s" in driver.log())


def test_a_storage_that_takes_no_heartbeat_does_not_cost_the_jvm(tmp_path: Path) -> None:
    land(tmp_path / "in", 0)
    lease = 8
    with driving(_DRIVER, FILE, str(tmp_path), "rows", "refuse", f"watchdog={lease}") as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        _, jvm = _python_and_jvm(driver)
        until = monotonic() + 2 * lease + 1
        driver.await_("two leases are over", lambda: monotonic() > until)
        assert not (tmp_path / "storage" / JOB / "control" / "heartbeat").exists()
        before = len(driver.of("Completed"))
        land(tmp_path / "in", 1)
        driver.await_("the query goes on", lambda: len(driver.of("Completed")) > before)
        assert _runs(jvm)


def _python_and_jvm(driver: Driver) -> tuple[psutil.Process, psutil.Process]:
    python, *children = driver.family()
    (jvm,) = (child for child in children if child.name() == "java")
    return python, jvm


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _expected(files: int) -> Counter[Row]:
    return Counter((file * 5 + row, (file * 5 + row) * 10 + file) for file in range(files) for row in range(ROWS))
