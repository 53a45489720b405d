"""Several runs at once: none is left alone when another cannot begin, or when an interrupt comes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.spark.run.supervisor import supervise_all

if TYPE_CHECKING:
    from dagster_ckpt.spark.events import Event
    from dagster_ckpt.spark.run.job_run import StreamingRun


class Supervised:
    """As much of a run as the supervisor sees.

    Args:
        is_endless: whether only a cancellation ends it.
    """

    def __init__(self, *, is_endless: bool) -> None:
        self._told = threading.Event()
        self.has_begun = self.has_ended = False
        if not is_endless:
            self._told.set()

    def run(self) -> RunResult:
        self.has_begun = True
        assert self._told.wait(60)
        self.has_ended = True
        return RunResult(JobStatus.CANCELED, None)

    def cancel(self) -> None:
        self._told.set()

    def as_run(self, emit: Callable[[Event], None]) -> StreamingRun:
        del emit
        return cast("StreamingRun", self)


def fail_second(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The second run's thread is not started, because of ``error``."""
    start, begun = threading.Thread.start, list[threading.Thread]()

    def start_first(thread: threading.Thread) -> None:
        if thread.name == "dagster-ckpt-spark":
            begun.append(thread)
            if len(begun) == 2:
                raise error
        start(thread)

    patch.setattr(threading.Thread, "start", start_first)


@pytest.mark.timeout(30)
def test_a_run_without_a_thread_has_failed_and_the_others_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Supervised(is_endless=False) for _ in range(3)]
    fail_second(monkeypatch, RuntimeError("can't start new thread"))
    outcomes = supervise_all([run.as_run for run in runs], lambda _: None)
    assert [run.has_ended for run in runs] == [True, False, True]
    assert [str(outcome.exception() or "") for outcome in outcomes] == ["", "can't start new thread", ""]


@pytest.mark.timeout(30)
def test_an_interrupt_while_the_runs_begin_stops_those_that_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Supervised(is_endless=True) for _ in range(3)]
    fail_second(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        supervise_all([run.as_run for run in runs], lambda _: None)
    assert runs[0].has_ended or not runs[0].has_begun
    assert not any(run.has_begun for run in runs[1:])
