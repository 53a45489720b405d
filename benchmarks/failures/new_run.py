"""A run under a real ``dagster dev`` that dies in mid-batch, alone or with its host."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import dagster as dg
import psutil
import yaml

from benchmarks.failures.another_host import ELSEWHERE, family_seconds, kill_family
from benchmarks.failures.case import Case, case, first_commit, mid_batch
from benchmarks.failures.stream import (
    JOB,
    LEASE_VARIABLE,
    ROOT_VARIABLE,
    STANDBY_VARIABLE,
    Landing,
    await_exact,
    spark_output,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.checkpoint.start_traces import StartTrace
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.orchestration import PARENT_RUN_TAG
from dagster_ckpt.orchestration.names import standby_job
from dagster_ckpt.orchestration.run_settings import continuing
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for

_PROJECT = Path(__file__).resolve().parents[2]
#: Seconds for which a standby must be idle before a kill, and the share of a core that it may take meanwhile.
_IDLE_FOR, _IDLE_SHARE = 5.0, 0.2
_OVER = ("SUCCESS", "FAILURE", "CANCELED")
_RESTORED = re.compile(r"Restored in ([0-9.]+) s")


class NewRun:
    """A run under Dagster that is killed again and again, and is resumed each time.

    Args:
        directory: for all files; empty or missing.
        keys: ids of the first file.
        cache: the directory of class archives, empty for none.
        standby: whether a standby waits beside the run, and is warm and idle at each kill.
        lease: seconds.
    """

    def __init__(
        self, directory: Path, keys: int, cache: str = "", *, standby: bool = False, lease: float = 30.0
    ) -> None:
        self._standby = standby
        self._root = directory / "data"
        self._keys = keys
        self._checkpoints = self._root / "checkpoints"
        directory.mkdir(parents=True)
        workspace = directory / "workspace.yaml"
        module = {"python_module": {"module_name": "benchmarks.failures.site"}}
        workspace.write_text(yaml.safe_dump({"load_from": [module]}), encoding="utf-8")
        shutil.copy(_PROJECT / "dagster.yaml", directory)
        self._variables = {
            ROOT_VARIABLE: str(self._root),
            STANDBY_VARIABLE: str(int(standby)),
            LEASE_VARIABLE: str(lease),
            "DAGSTER_CKPT_CACHE": cache,
            "PYTHONPATH": str(_PROJECT),
        }
        #: The standby that is watched until it is idle: its run, since when, its processor time until then, is it idle.
        self._watched: tuple[str, float, float, bool] | None = None
        self._dev = DagsterDev(workspace, directory / "dagster_home", self._variables)

    def run(self, cases: int, checkpoints: int, done: Callable[[Case], None]) -> None:
        """Kill one job so often, each time after so many new checkpoints; ``done`` gets each case at once."""
        with self._dev:
            with Landing(self._root, self._keys) as landing:
                run = self._launch()
                for _ in range(cases):
                    found, run = self._one(run, checkpoints)
                    done(found)
            await_exact(landing.ids, partial(spark_output, self._root))

    def _launch(self) -> str:
        return self._dev.launch(f"{JOB}_job")

    def _one(self, first: str, checkpoints: int) -> tuple[Case, str]:
        location = wait_for(
            lambda: self._mid_batch(first, checkpoints),
            f"{checkpoints} checkpoints and a batch in flight (see {self._dev.log})",
            seconds=900,
            poll=0.02,
        )
        load, killed = round(os.getloadavg()[0], 2), time.time()
        self._kill(location)
        gone = time.time()
        log = f"(see {self._dev.log})"
        second = wait_for(lambda: self._resumed(first), f"the sensor to resume {first} {log}", seconds=240)
        live, restored = wait_for(lambda: self._restored(location.path), f"{second} to restore {log}", seconds=240)
        committed = first_commit(live, restored)
        cpu = None if self._standby else self._cpu_seconds()  # else it is that of the warm-up, too
        started = wait_for(lambda: self._log_line(second, "Restored in"), f"the log of {second}", seconds=60)
        marks = self._marks(first, second, killed)
        seconds = float(_RESTORED.findall(started[1])[0])
        found = case(
            killed,
            {
                "detection": marks["failure visible"],
                "decision": marks["run enqueued"],
                "process_start": marks["step started"],
                "spark_start": marks["Spark started"],
                "restore": marks["Spark started"] + seconds,
                "first_batch": committed,
            },
            {**marks, "processes gone": gone, "query started": started[0], "first batch committed": committed},
            restored,
        )
        (trace,) = wait_for(self._trace, "the trace of the start", seconds=60)
        found.load, found.cpu, found.trace = load, cpu, trace.by_name
        return found, second

    def _kill(self, location: CheckpointLocation) -> None:
        """Kill the run's process, and delete its live location: only the retained checkpoints are left."""
        heartbeat = self._catalog().records.heartbeat.read()
        if heartbeat is None:
            raise RuntimeError(f"{JOB} has no heartbeat")
        os.kill(heartbeat.processes[0].pid, signal.SIGKILL)
        if self._standby:  # which does not wait
            shutil.rmtree(location.path.parent, ignore_errors=True)
        wait_for(
            lambda: not any(process.is_alive() for process in heartbeat.processes),
            "the killed process and its JVM to be gone",
            seconds=60,
        )
        shutil.rmtree(location.path.parent, ignore_errors=True)

    def _marks(self, first: str, second: str, killed: float) -> dict[str, float]:
        """Moments from Dagster's event log and the control files."""
        catalog = self._catalog()
        epochs = catalog.records.epochs
        claim = epochs.read_claim(epochs.highest())
        chosen = catalog.choice()
        if claim is None or chosen is None or claim.run_id != second:
            raise RuntimeError(f"The newest epoch is not one of run {second}")
        choice = self._checkpoints / JOB / CONTROL_DIR / "epochs" / f"e-{chosen[0]:010}.choice"
        claimed = datetime.fromisoformat(claim.claimed_at).timestamp()
        marks = {
            "failure visible": self._event(first, dg.DagsterEventType.RUN_FAILURE),
            "epoch claimed": claimed,
            "choice recorded": choice.stat().st_mtime,
        }
        events = {
            "run enqueued": dg.DagsterEventType.RUN_ENQUEUED,
            "run starting": dg.DagsterEventType.RUN_STARTING,
            "run started": dg.DagsterEventType.RUN_START,
            "step started": dg.DagsterEventType.STEP_START,
        }
        # A standby has all of these before the kill.
        marks |= {name: claimed if self._standby else self._event(second, kind) for name, kind in events.items()}
        spark = self._log_line(second, "Spark started in")
        if spark is None:
            raise RuntimeError(f"Run {second} does not say when Spark started")
        marks["Spark started"] = spark[0]
        if marks["failure visible"] < killed:
            raise RuntimeError(f"Run {first} had failed before it was killed; see {self._dev.log}")
        return marks

    def _event(self, run_id: str, kind: dg.DagsterEventType) -> float:
        with self._dev.instance() as instance:
            entries = instance.all_logs(run_id, of_type=kind)
        if not entries:
            raise RuntimeError(f"Run {run_id} has no {kind.value} in its event log; see {self._dev.log}")
        return float(entries[0].timestamp)

    def _log_line(self, run_id: str, text: str) -> tuple[float, str] | None:
        with self._dev.instance() as instance:
            entries = instance.all_logs(run_id)
        found = (entry for entry in entries if text in (entry.user_message or ""))
        return next(((float(entry.timestamp), entry.user_message) for entry in found), None)

    def _mid_batch(self, run_id: str, checkpoints: int) -> CheckpointLocation | None:
        if (status := self._dev.status(run_id)) in _OVER:
            raise RuntimeError(f"Run {run_id} ended {status} before it was killed; see {self._dev.log}")
        catalog = self._catalog()
        signs = Standbys(catalog.filesystem, JOB).all() if self._standby else ()
        if self._standby and not any(self._may_take_over(run_id, sign) and self._is_idle(sign) for sign in signs):
            return None
        return mid_batch(catalog, checkpoints)

    def _may_take_over(self, run_id: str, sign: Heartbeat) -> bool:
        """Whether a standby that is warm is the one that the case is about."""
        return sign.run_id != run_id

    def _is_idle(self, sign: Heartbeat) -> bool:
        """Whether a standby has done what its start has left to do, as one that has waited for a month."""
        now = time.monotonic()
        run, since, before, is_idle = self._watched or ("", now, 0.0, False)
        if run != sign.run_id:
            self._watched = (sign.run_id, now, family_seconds(self._process_of(sign)), False)
            return False
        if not is_idle and now - since >= _IDLE_FOR:
            spent = family_seconds(self._process_of(sign))
            is_idle = spent - before <= _IDLE_SHARE * (now - since)
            self._watched = (run, now, spent, is_idle)
        return is_idle

    def _process_of(self, sign: Heartbeat) -> psutil.Process:
        return psutil.Process(sign.processes[0].pid)

    def _restored(self, before: Path) -> tuple[CheckpointLocation, int] | None:
        catalog = self._catalog()
        chosen = catalog.choice()
        if chosen is None or Path(chosen[1].live) == before:
            return None
        if chosen[1].restored is None:
            raise RuntimeError("The resumed run began from nothing")
        return CheckpointLocation(Path(chosen[1].live)), catalog.resolve(chosen[1].restored).batch

    def _resumed(self, run_id: str) -> str | None:
        runs = (run for run in self._dev.runs(JOB) if run.tags.get(PARENT_RUN_TAG) == run_id)
        return next((run.run_id for run in runs), None)

    def _cpu_seconds(self) -> float:
        """Of the driver and its JVM, with the processes that they have waited for."""
        heartbeat = self._catalog().records.heartbeat.read()
        if heartbeat is None:
            raise RuntimeError(f"{JOB} has no heartbeat")
        times = (psutil.Process(process.pid).cpu_times() for process in heartbeat.processes)
        return round(sum(sum(spent[:4]) for spent in times), 2)

    def _trace(self) -> Sequence[StartTrace] | None:
        records = self._catalog().records
        newest = records.starts.newest(1)
        return newest if newest and newest[0].epoch == records.epochs.highest() else None

    def _catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(open_filesystem(str(self._checkpoints)), JOB)


class LostHost(NewRun):
    """A run that dies with its Dagster and its whole host, while a standby waits on another host: one case.

    Args:
        directory: for all files; empty or missing.
        keys: ids of the first file.
        cache: the directory of class archives, empty for none.
        lease: seconds.
    """

    def __init__(self, directory: Path, keys: int, cache: str, lease: float) -> None:
        super().__init__(directory, keys, cache, standby=True, lease=lease)
        self._directory = directory
        self._elsewhere: psutil.Popen | None = None

    def run(self, cases: int, checkpoints: int, done: Callable[[Case], None]) -> None:
        """Kill the host, after so many new checkpoints."""
        try:
            super().run(cases, checkpoints, done)
        finally:
            if self._elsewhere is not None:
                kill_family(self._elsewhere)

    def _launch(self) -> str:
        run = super()._launch()
        wait_for(self._catalog().records.heartbeat.read, f"the heartbeat of {run} (see {self._dev.log})", seconds=120)
        # Under another name, because what has the name of the first host's home is killed.
        home = self._directory / "home-elsewhere"
        home.symlink_to(self._dev.home, target_is_directory=True)
        with self._dev.instance() as instance:
            # A standby with another configuration ends.
            config = self._directory / "standby.yaml"
            config.write_text(yaml.safe_dump(continuing(instance.get_run_by_id(run), JOB)), encoding="utf-8")
        job = ["-m", "benchmarks.failures.site", "-j", standby_job(JOB), "-c", str(config)]
        command = [*ELSEWHERE, sys.executable, "-m", "dagster", "job", "execute", *job]
        # Nobody resolves the other host's name.
        environment = {**os.environ, **self._variables, "DAGSTER_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self._directory / "elsewhere.log").open("wb") as log:
            self._elsewhere = psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return run

    def _may_take_over(self, run_id: str, sign: Heartbeat) -> bool:
        return super()._may_take_over(run_id, sign) and not sign.processes[0].is_here

    def _process_of(self, sign: Heartbeat) -> psutil.Process:
        if self._elsewhere is None:
            raise RuntimeError(f"Nothing was started that run {sign.run_id} can be")
        return self._elsewhere

    def _kill(self, location: CheckpointLocation) -> None:
        self._dev.kill()
        shutil.rmtree(location.path.parent)
