"""Drivers without Dagster that are killed: one's JVM, or all of one while another takes over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from benchmarks.failures.another_host import ELSEWHERE, kill_family
from benchmarks.failures.case import Case, case, first_commit, mid_batch
from benchmarks.failures.stream import JOB, Landing, await_exact, spark_output
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.start_traces import StartTrace
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.standby.place import directory as standbys
from dagster_ckpt.testing.dagster_dev import wait_for

_DRIVER = Path(__file__).resolve().parents[1] / "drivers" / "recovery_driver.py"


class Driven:
    """A stream in a process of its own (``drivers/recovery_driver.py``), hit in mid-batch.

    One driver whose JVM is killed again and again, or a stream from scratch for each driver that is killed.

    Args:
        directory: emptied first.
        keys: ids of the first file.
        lease: seconds.
        elsewhere: kill the whole driver, and begin another as if on another host; else kill its JVM only.
        standby: kill the whole driver, and begin another on this host, with a standby or without one.
    """

    def __init__(
        self, directory: Path, keys: int, lease: float = 30.0, *, elsewhere: bool = False, standby: bool | None = None
    ) -> None:
        self._directory = directory
        self._keys = keys
        self._standby = standby
        self._lease = lease
        self._elsewhere = elsewhere
        self._catalog = CheckpointCatalog(open_filesystem(str(directory / "checkpoints")), JOB)

    def run(self, cases: int, checkpoints: int, done: Callable[[Case], None]) -> None:
        """Run the cases one after another, each after so many new checkpoints; ``done`` gets each at once."""
        streams, of_a_stream = (1, cases) if self._standby is None and not self._elsewhere else (cases, 1)
        for _ in range(streams):
            shutil.rmtree(self._directory, ignore_errors=True)
            drivers: list[psutil.Popen] = []
            try:
                with Landing(self._directory, self._keys) as landing:
                    drivers.append(self._start("here"))
                    for _ in range(of_a_stream):
                        done(self._one(drivers, checkpoints))
                await_exact(landing.ids, partial(spark_output, self._directory))
            finally:
                for driver in drivers:
                    kill_family(driver)

    def _one(self, drivers: list[psutil.Popen], checkpoints: int) -> Case:
        live = wait_for(partial(self._mid_batch, drivers[0], checkpoints), "a batch in flight", seconds=300, poll=0.02)
        heartbeat = self._catalog.records.heartbeat.read()
        if heartbeat is None:
            raise RuntimeError("The driver has no heartbeat")
        if self._standby:
            wait_for(lambda: list(standbys().glob("*.sock")), "a standby", seconds=300)
            live = wait_for(partial(self._mid_batch, drivers[0], 0), "a batch in flight", seconds=60, poll=0.02)
        load, killed = round(os.getloadavg()[0], 2), time.time()
        if self._standby is not None:
            drivers[0].kill()
            drivers[0].wait()
            drivers.append(self._start("here"))
        elif self._elsewhere:
            kill_family(drivers[0])
            drivers.append(self._start("elsewhere", *ELSEWHERE))
        else:
            jvm = heartbeat.processes[1]
            os.kill(jvm.pid, signal.SIGKILL)
            wait_for(lambda: not jvm.is_alive(), "the JVM to be gone", seconds=60, poll=0.005)
            shutil.rmtree(live.path.parent, ignore_errors=True)
        records = self._catalog.records
        # Not too often: each look takes processor time from the start that is measured.
        epoch, choice = wait_for(lambda: self._chosen_after(heartbeat.epoch), "the next start", seconds=240, poll=0.1)
        if choice.restored is None:
            raise RuntimeError("The next start began from nothing")
        restored = self._catalog.resolve(choice.restored).batch
        committed = first_commit(CheckpointLocation(Path(choice.live)), restored)
        (trace,) = wait_for(lambda: self._trace(epoch), "the trace of the start", seconds=60)
        claim = records.epochs.read_claim(epoch)
        if claim is None:
            raise RuntimeError("The next start has no claim")
        claimed = datetime.fromisoformat(claim.claimed_at).timestamp()
        failures = records.failures.of(claim.series)
        noticed = claimed if self._elsewhere or self._standby is not None else failures[-1].at
        ready = claimed + trace.by_name.get("session", 0.0) + trace.by_name.get("watchdog", 0.0)
        recorded = (self._directory / "checkpoints" / JOB / CONTROL_DIR / "epochs").joinpath(f"e-{epoch:010}.choice")
        found = case(
            killed,
            {
                "detection": noticed,
                "decision": claimed,
                "process_start": claimed,
                "spark_start": ready,
                "restore": recorded.stat().st_mtime,
                "first_batch": committed,
            },
            {"epoch claimed": claimed, "first batch committed": committed},
            restored,
        )
        found.load, found.trace = load, trace.by_name
        return found

    def _start(self, live: str, *within: str) -> psutil.Popen:
        with (self._directory / f"{live}.log").open("wb") as log:
            command = [*within, sys.executable, str(_DRIVER), str(self._directory), live, str(self._lease)]
            command += ["standby"] if self._standby else []
            # Nobody resolves the other host's name.
            environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
            return psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _mid_batch(self, driver: psutil.Popen, checkpoints: int) -> CheckpointLocation | None:
        if driver.poll() is not None:
            raise RuntimeError(f"The driver has ended; see {self._directory / 'here.log'}")
        return mid_batch(self._catalog, checkpoints)

    def _chosen_after(self, epoch: int) -> tuple[int, Choice] | None:
        chosen = self._catalog.choice()
        return chosen if chosen is not None and chosen[0] > epoch else None

    def _trace(self, epoch: int) -> Sequence[StartTrace] | None:
        newest = self._catalog.records.starts.newest(1)
        return newest if newest and newest[0].epoch == epoch else None
