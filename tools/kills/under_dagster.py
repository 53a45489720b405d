"""The kills of the example's first path: files to files, under a ``dagster dev`` whose sensor resumes the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import psutil

from assets.batch_answer import read_delays
from assets.settings import CATCH_UP_VARIABLE, DATA_VARIABLE
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for
from tools.kills.cases import Case, Kills, is_gone

_WORKSPACE = Path(__file__).resolve().parents[2] / "workspace.yaml"


class DagsterKills(Kills):
    """Files to files, under one ``dagster dev``."""

    KINDS = ("run process", "step process", "run worker of a step process", "JVM", "whole dagster dev")
    COMMITS = (-2, 14)
    COMPARED = "in the sink's log and in the raw directory"

    def __init__(self, directory: Path, seed: int, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, seed)
        self._dev = DagsterDev(
            _WORKSPACE,
            directory / "dagster_home",
            # No class archive is made: the JVM that makes it would be taken for a victim.
            {
                DATA_VARIABLE: str(self.paths.root),
                CATCH_UP_VARIABLE: "1",
                "DAGSTER_CKPT_CACHE": "",
                **(environment or {}),
            },
        )

    @property
    def job(self) -> str:
        """The name of the job."""
        return "flight_delays"

    @property
    def output(self) -> Path:
        """Where the job writes."""
        return self.paths.delays

    def ready(self) -> DagsterDev:
        """What all cases need."""
        return self._dev

    def start(self, kind: str) -> None:
        """Start the job, in a step process where that is to be killed."""
        if "step" in kind:
            self._dev.launch("__ASSET_JOB", assets=[[self.job]])
        else:
            self._dev.launch(f"{self.job}_job")

    def kill(self, case: Case, heartbeat: Heartbeat) -> None:
        """Kill; the sensor, which looks every few seconds, resumes the job. A run whose JVM dies starts another one."""
        driver = heartbeat.processes[0].pid
        if case.kind == "whole dagster dev":
            self._dev.kill()
            self.lose(case)
            self._dev.start()
            return
        victim = {
            "run process": driver,
            "step process": driver,
            "run worker of a step process": psutil.Process(driver).ppid(),
            "JVM": self._jvm(),
        }[case.kind]
        os.kill(victim, signal.SIGKILL)
        if case.kind == "JVM":
            wait_for(lambda: is_gone(victim), "the JVM to be gone", poll=0.01)
        else:
            wait_for(lambda: is_gone(driver) and self._jvm() == 0, f"what was left of the {case.kind} to be gone")
        self.lose(case)

    def read(self) -> pd.DataFrame:
        """The rows of the files that the sink's log lists."""
        return read_delays(FileSink(self.paths.delays).committed_files())

    def read_raw(self) -> pd.DataFrame:
        """The rows of all Parquet files."""
        return read_delays(sorted(self.paths.delays.rglob("part-*.parquet")))

    def await_quiet(self) -> None:
        """Wait until every run is over."""
        wait_for(lambda: all(run.is_finished for run in self._dev.runs(self.job)), "every run to be over", poll=0.5)

    def _jvm(self) -> int:
        return next(iter(self._dev.jvms()), 0)
