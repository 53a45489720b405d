"""Savepoints of a real job, asked for as the command line does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import take_savepoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.spark.events import Started
from tests.jobs.harness import NEVER, Bench, Launch, eventually

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint

Take: TypeAlias = "Callable[..., TakenSavepoint]"


def take_into(directory: Path | str) -> Take:
    """Takes savepoints of a job into ``directory``, from beside its run if it has one."""

    def ask(bench: Bench, *, to: Path | None = None, stop: bool = False) -> TakenSavepoint:
        return take_savepoint(
            bench.catalog,
            str(to or directory),
            default=None,
            stop=stop,
            timeout="4 min",
            clock=SystemClock(),
            wait=Event().wait,
            report=lambda _: None,
        )

    return ask


def started(bench: Bench, files: int, config: CheckpointConfig = NEVER, **options: object) -> Launch:
    """A run without end that has read so many files and goes on."""
    bench.until_done = False
    launch = bench.launch(bench.job(config=config, **options))  # type: ignore[arg-type]
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(files)
    bench.await_in_sink(launch)
    return launch
