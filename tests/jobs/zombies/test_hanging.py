"""A driver that hangs on this host, with its JVM: what the next start kills, and what that start leaves alone."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile, free_job
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.driving import driving
from tests.jobs.matrix.streams import FILE, land
from tests.jobs.zombies.driver import JOB

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


def test_a_driver_that_hangs_is_killed_with_its_jvm(tmp_path: Path) -> None:
    for number in range(3):
        land(tmp_path / "in", number)
    with driving("tests.jobs.zombies.driver", FILE, str(tmp_path)) as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        file = HeartbeatFile(PosixFileSystem(tmp_path / "storage"), JOB)
        driver.pause()
        heartbeat = file.read()
        assert heartbeat is not None
        python, jvm = heartbeat.processes
        assert python.ticks is not None
        assert python.pid == driver.process.pid
        assert "java" in psutil.Process(jvm.pid).name()
        late = ManualClock()
        late.now = time.monotonic() + heartbeat.lease.timeout + 1

        copied = HeartbeatFile(PosixFileSystem(tmp_path / "copy"), JOB)
        copied.write(heartbeat)
        with pytest.raises(JobAlreadyRunning, match=str(python.pid)):
            free_job(copied, late, late.advance)
        assert python.is_alive()
        assert jvm.is_alive()

        assert free_job(file, late, late.advance) == (python, jvm)
        assert driver.process.wait() == -signal.SIGKILL
        assert not jvm.is_alive()


@pytest.mark.exhaustive
def test_a_jvm_that_outlives_its_driver_is_killed(tmp_path: Path) -> None:
    for number in range(3):
        land(tmp_path / "in", number)
    with driving("tests.jobs.zombies.driver", FILE, str(tmp_path)) as driver:
        driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
        file = HeartbeatFile(PosixFileSystem(tmp_path / "storage"), JOB)
        heartbeat = file.read()
        assert heartbeat is not None
        _, jvm = heartbeat.processes
        driver.pause()
        driver.process.kill()
        driver.process.wait()
        try:
            assert jvm.is_alive()
            late = ManualClock()
            assert free_job(file, late, late.advance) == (jvm,)
            assert not jvm.is_alive()
        finally:
            if jvm.is_alive():
                jvm.kill()
