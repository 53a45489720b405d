"""The JVM of a submitted driver is above its Python process, and follows the same lease."""

from __future__ import annotations

import importlib
import time
import uuid
from pathlib import Path

import psutil
import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.processes import is_proven
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.orchestration.attending.submitted_process import SubmittedProcess
from tests.helpers.checkpoint.submitting import submitted
from tests.jobs.matrix.streams import land
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_JOB = "copied"


def test_it_pauses_while_no_heartbeat_is_taken_and_ends_when_spark_loses_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_CKPT_TEST_ROOT", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = importlib.import_module("tests.jobs.zombies.submitted")
    spark = module.defs.resources["spark"]
    catalog = CheckpointCatalog(PosixFileSystem(tmp_path / "storage"), _JOB)
    records, run, refuse = catalog.records, uuid.uuid4().hex, tmp_path / "refuse"
    land(tmp_path / "in", 0)
    submitted(records, Submission(run, 0, None, "{}", time.time()))
    process = SubmittedProcess(spark.command(_JOB, run), spark.environment(), _JOB, run)
    try:

        def newest() -> str | None:
            assert not process.has_ended, process.log.read_text()
            beat = records.heartbeat.read()
            return None if beat is None or beat.completed is None else beat.completed.checkpoint

        eventually("a checkpoint", lambda: newest() is not None)
        beat = records.heartbeat.read()
        assert beat is not None
        driver, above = beat.processes
        jvm = psutil.Process(above.pid)
        assert psutil.Process(driver.pid).ppid() == jvm.pid
        told = [*jvm.cmdline(), *psutil.Process(driver.pid).cmdline(), process.log.read_text()]
        assert not [text for text in told if module.SECRET[1] in text], "the query has the secret, and nobody else"

        refuse.touch()
        eventually("the JVM is paused", lambda: jvm.status() == psutil.STATUS_STOPPED)
        assert is_proven(above, driver, records.heartbeat.key), "a paused JVM that is left behind can be killed"
        before = newest()
        refuse.unlink()
        eventually("the JVM goes on", lambda: jvm.status() != psutil.STATUS_STOPPED)
        land(tmp_path / "in", 1)
        eventually("another checkpoint", lambda: newest() != before)
        assert records.epochs.highest() == 1, "nothing was started again"

        lose = tmp_path / "lose"
        lose.touch()
        eventually("Spark loses its context", lambda: not lose.exists())
        land(tmp_path / "in", 2)
        eventually("the driver ends, with its JVM", lambda: process.has_ended)
        end, (failure,) = records.epochs.read_end(1), records.failures.of(1)
        assert end is not None
        assert (end.status, failure.kind) == ("FAILING", "DriverLost")
        assert "as it does when it loses its cluster" in failure.reason
        assert "dagster-ckpt driver: DriverLost" in process.log.read_text()
    finally:
        process.kill()
