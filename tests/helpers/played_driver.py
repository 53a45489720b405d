"""A driver of ``dagster-ckpt run`` that does what a test says instead of running a job, in a real process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagster_ckpt.cli.driver_process import Order
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import DriverLost, JobAlreadyRunning, QueryFailed
from dagster_ckpt.filesystem import unheard
from dagster_ckpt.spark.events import EpochClaimed
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.standalone.resumption import Launch

_log = logging.getLogger("dagster_ckpt.played")


@dataclass(frozen=True)
class Played:
    """A drive that does what the test says instead of running a job."""

    way: str
    notes: Path
    earlier: tuple[Launch, ...] = ()
    on_event: Callable[[object], object] = unheard
    on_resume: Callable[[], object] = list
    asset: Any = None

    @property
    def name(self) -> str:
        return "played"

    def has_failed(self, error: BaseException) -> bool:
        return isinstance(error, QueryFailed)

    def note(self, line: str) -> None:
        with self.notes.open("a") as notes:
            notes.write(f"{line}\n")

    def run(self) -> RunResult:
        before = self.notes.read_text().splitlines() if self.notes.exists() else []
        step = self.way.split(",")[len(before)]
        self.note(step)
        _log.warning("This driver is to %s", step)
        _log.warning("%d is no number", step)
        when, _, what = step.rpartition(" ")
        if when != "blind":
            self.on_resume()
        if not when:
            self.on_event(EpochClaimed(1))
        if what.startswith("leave-"):
            os._exit(int(what.removeprefix("leave-")))
        match what:
            case "finish":
                return RunResult(JobStatus.FINISHED, None)
            case "cancel":
                return RunResult(JobStatus.CANCELED, None)
            case "fail":
                raise QueryFailed("The query failed.")
            case "lose":
                raise DriverLost("The JVM is gone.")
            case "other":
                raise JobAlreadyRunning("Another run has it.", hint="Wait.")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(0)
            case "interrupt":
                raise KeyboardInterrupt
            case "fork":
                if (child := os.fork()) == 0:
                    signal.pause()  # and keeps open what this process has open
                self.notes.with_name("forked").write_text(str(child))
                os.kill(os.getpid(), signal.SIGKILL)
            case "twin":
                if (child := os.fork()) == 0:
                    raise QueryFailed("The query failed, in a process that is not the driver.")
                os.waitpid(child, 0)
                os._exit(3)
            case "wait" | "hold":
                self.note(f"waiting {os.getpid()}")
                try:
                    threading.Event().wait(240)
                finally:
                    self.note("told to end")
                    while what == "hold" and not self.notes.with_name("go").exists():
                        time.sleep(0.02)
                    self.note("stopped")
        raise AssertionError(step)


@dataclass(frozen=True)
class PlayedOrder(Order):
    """What a driver process is sent."""

    notes: Path = Path()

    def drive(self, run_id: str, earlier: tuple[Launch, ...]) -> Any:
        del run_id
        played = Played(self.target, self.notes, earlier)
        return replace(played, asset=played)

    def continued(self) -> PlayedOrder:
        raise AssertionError("no driver has started a query")
