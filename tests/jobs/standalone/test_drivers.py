"""``dagster-ckpt run`` as a user calls it: its drivers are killed and interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.failures import DIED
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.clock import SystemClock
from tests.jobs.harness import Bench, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.checkpoint.control.epochs import Claim

_DEADLINE = 600.0


class Command:
    """One ``dagster-ckpt run`` of the job in a directory."""

    def __init__(self, root: Path) -> None:
        self.log = root / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "dagster_ckpt.cli", "run", "tests.jobs.standalone.jobs:tiny"),
                    *("--resources", "tests.jobs.standalone.jobs:RESOURCES"),
                ],
                env={**os.environ, "STANDALONE_JOB": str(root), "DAGSTER_HOME": "", "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=log,
            )

    def check(self) -> None:
        assert self.process.poll() is None, self.log.read_text()

    def status(self) -> int:
        return self.process.wait(_DEADLINE)


def driver_of(bench: Bench) -> tuple[int, Claim]:
    """The process of the job's newest driver, and its claim."""
    epochs = bench.catalog.records.epochs
    claim = epochs.read_claim(epochs.highest())
    assert claim is not None
    return claim.pid, claim


def until_read(bench: Bench, command: Command) -> None:
    """Wait until everything landed is in the sink, and a checkpoint is complete."""
    wanted = bench.expected()
    eventually("the files are read", lambda: bench.in_sink_log() == wanted, unless=command.check)
    eventually("a checkpoint completes", lambda: find_newest(bench.catalog).metadata is not None, unless=command.check)


def test_a_lost_driver_and_an_interrupted_run_are_resumed_and_only_the_lost_one_counts(tmp_path: Path) -> None:
    bench = Bench(cast("SparkSession", None), tmp_path)  # Spark runs in other processes
    bench.land(2)
    command = Command(tmp_path)
    until_read(bench, command)
    first, claim = driver_of(bench)
    assert first != command.process.pid
    os.kill(first, signal.SIGKILL)

    bench.land(2)
    until_read(bench, command)
    second, resumed = driver_of(bench)
    assert second != first
    assert resumed.series == claim.series
    (died,) = bench.catalog.records.failures.of(claim.series)
    assert (died.run_id, died.sequence) == (claim.run_id, DIED)

    command.process.send_signal(signal.SIGINT)
    assert command.status() == 130
    bench.land(2)
    command = Command(tmp_path)
    until_read(bench, command)
    _, after = driver_of(bench)
    assert after.series == claim.series
    assert bench.catalog.records.failures.of(claim.series) == [died], "an interruption was counted"

    taken = take_savepoint(
        bench.catalog,
        None,
        default=None,
        stop=True,
        timeout=f"{_DEADLINE:.0f} s",
        clock=SystemClock(),
        wait=time.sleep,
        report=lambda _: None,
    )
    assert command.status() == 0, command.log.read_text()
    assert Path(taken.pointer.removeprefix("file://")).is_dir()
    assert bench.in_raw_directory() == bench.in_sink_log() == bench.expected()
    assert "Traceback" not in command.log.read_text()
