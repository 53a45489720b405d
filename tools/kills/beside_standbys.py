"""The kills of the example's first path beside a standby, which is among the victims."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from assets.settings import CATCH_UP_VARIABLE, STANDBY_VARIABLE
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.testing.dagster_dev import wait_for
from tools.kills.cases import Case, is_gone
from tools.kills.under_dagster import DagsterKills

#: Days that have landed when the stream starts. The others land when the standby is warm.
_BEFORE = 16


class StandbyKills(DagsterKills):
    """Files to files, under one ``dagster dev``, with a standby that is warm at the kill."""

    KINDS = ("run process", "standby, later run process", "JVM", "run process and standby", "whole dagster dev")
    COMMITS = (5, 14)

    def __init__(self, directory: Path, seed: int) -> None:
        self._flag, self._held = directory / "until-caught-up", directory / "held-back"
        self._victim: Heartbeat | None = None
        super().__init__(directory, seed, {STANDBY_VARIABLE: "1", CATCH_UP_VARIABLE: str(self._flag)})

    def start(self, kind: str) -> None:
        """Start the job with few files, and land the others when its standby is warm."""
        self._held.mkdir(exist_ok=True)
        for file in sorted(self.paths.landed.iterdir())[_BEFORE:]:
            file.rename(self._held / file.name)
        self._flag.unlink(missing_ok=True)
        super().start(kind)
        wait_for(self._standby, "the standby to be warm", seconds=1200)
        self._flag.touch()
        for file in sorted(self._held.iterdir()):
            file.rename(self.paths.landed / file.name)

    def kill(self, case: Case, heartbeat: Heartbeat) -> None:
        """Kill; the standby takes the job over, or the sensor resumes it."""
        self._victim = heartbeat
        if "standby" not in case.kind:
            super().kill(case, heartbeat)
            return
        if standby := self._standby():
            os.kill(standby, signal.SIGKILL)
        time.sleep(self._random.uniform(0, 5) if "later" in case.kind else 0)
        kind, case.kind = case.kind, "run process"
        super().kill(case, heartbeat)
        case.kind = kind

    def _standby(self) -> int:
        """The process of the standby that waits, 0 for none."""
        signs = Standbys(self.catalog().filesystem, self.job).all()
        return next((sign.processes[0].pid for sign in signs if sign.processes[0].is_alive()), 0)

    def _jvm(self) -> int:
        """The JVM of the stream that is killed, not that of its standby."""
        own = [] if self._victim is None else self._victim.processes[1:]
        return next((process.pid for process in own if not is_gone(process.pid)), 0)
