"""Supervised execution: Spark on a worker thread, the main thread in Python where it can be interrupted.

An interrupt delivered while the main thread waits for an answer of the JVM leaves py4j's connection with an answer
nobody reads, and the next call hangs for good. So no call into the JVM is ever made on the main thread.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from dagster_ckpt.spark.events import Event
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.spark.run.job_run import StreamingRun

__all__ = ["die_with_parent", "supervise", "supervise_all"]

_log = logging.getLogger(__name__)
_Event = TypeVar("_Event")

#: How long the main thread sleeps in Python at a time; an interrupt is noticed within this.
_TURN = 0.2
#: How long a canceled query may take to stop before the run ends without it; the JVM ends with the process.
_GRACE = 60.0
_PARENT_POLL = 0.5


def supervise(
    start: Callable[[Callable[[Event], None]], StreamingRun],
    on_event: Callable[[Event], None],
    *,
    on_turn: Callable[[], None] = lambda: None,
    is_cancellation: Callable[[], bool] = lambda: True,
) -> RunResult:
    """Drive a run on a worker thread; handle its events, and an interrupt, on this one.

    Args:
        start: makes the run, given where it is to put its events.
        on_event: is given each event, on the calling thread. What it raises is logged: the job outlives a
            report that could not be made. An event in whose handling this thread is interrupted is given again.
        on_turn: is called a few times a second, on the calling thread. An exception of it is logged, too; anything else
            that it raises is an interrupt.
        is_cancellation: whether an interrupt that has just come means that the job is canceled. If not, or if that
            cannot be found out, the run ends as if its process had died: it is to be gone on with.

    Returns:
        how the run ended.

    Raises:
        BaseException: whatever interrupted this thread, after the query was stopped; else what the run raised.
    """
    (outcome,) = supervise_all([start], on_event, on_turn=on_turn, is_cancellation=is_cancellation)
    return outcome.result()


def supervise_all(
    starts: Sequence[Callable[[Callable[[_Event], None]], StreamingRun]],
    on_event: Callable[[_Event], None],
    *,
    on_turn: Callable[[], None] = lambda: None,
    is_cancellation: Callable[[], bool] = lambda: True,
) -> list[Future[RunResult]]:
    """Drive several runs at once, each on a worker thread; an interrupt stops them all. As :func:`supervise`.

    Returns:
        how each run ended, in the order given; all are done.

    Raises:
        BaseException: whatever interrupted this thread, after the queries were stopped.
    """
    inbox = _Inbox(on_event)
    runs: list[tuple[StreamingRun, Future[RunResult]]] = [(start(inbox.put), Future()) for start in starts]
    outcomes = [outcome for _, outcome in runs]
    for run, outcome in runs:
        threading.Thread(target=_drive, args=(run, outcome), name="dagster-ckpt-spark", daemon=True).start()
    try:
        while not all(outcome.done() for outcome in outcomes):
            inbox.wait(_TURN)
            inbox.handle()
            _take_turn(on_turn)
        inbox.handle()
    except BaseException:
        canceled = _asked(is_cancellation)
        for run, _ in runs:
            if canceled:
                run.cancel()
            else:
                run.interrupt()
        for outcome in outcomes:
            _wait(outcome, _GRACE)
        inbox.handle()
        raise
    return outcomes


class _Inbox(Generic[_Event]):
    """Events on their way from the threads of the runs to the thread that handles them.

    An event leaves when it is handled, not before: an interrupt may come at any bytecode, and must not take one along.
    """

    def __init__(self, on_event: Callable[[_Event], None]) -> None:
        self._on_event = on_event
        self._events: deque[_Event] = deque()
        self._arrived = threading.Event()

    def put(self, event: _Event) -> None:
        self._events.append(event)
        self._arrived.set()

    def wait(self, seconds: float) -> None:
        self._arrived.wait(seconds)
        self._arrived.clear()

    def handle(self) -> None:
        while self._events:
            event = self._events[0]
            try:
                self._on_event(event)
            except Exception:
                _log.exception("An event of the job could not be reported: %s", type(event).__name__)
            self._events.popleft()


def die_with_parent() -> None:
    """Make this process end when its parent does, and Spark's JVM with it.

    A step process of Dagster's multiprocess executor outlives a killed run worker otherwise, and goes on writing
    beside the run that resumes the job.
    """
    parent = multiprocessing.parent_process()
    pid = os.getppid()

    def watch() -> None:
        if parent is not None:
            # Also ready at once for a parent that died before this was called.
            multiprocessing.connection.wait([parent.sentinel])
        else:
            pause = threading.Event()
            while os.getppid() == pid:
                pause.wait(_PARENT_POLL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="dagster-ckpt-orphan-guard", daemon=True).start()


def _take_turn(on_turn: Callable[[], None]) -> None:
    try:
        on_turn()
    except Exception:
        _log.exception("What is done beside the job failed and is tried again")


def _asked(is_cancellation: Callable[[], bool]) -> bool:
    try:
        return is_cancellation()
    except BaseException as error:  # a second interrupt, too: the query has to be stopped
        _log.warning("Whether the job is canceled cannot be found out, so it is to be gone on with: %s", error)
        return False


def _drive(run: StreamingRun, outcome: Future[RunResult]) -> None:
    try:
        outcome.set_result(run.run())
    except BaseException as error:
        outcome.set_exception(error)


def _wait(outcome: Future[RunResult], seconds: float) -> None:
    try:
        error = outcome.exception(timeout=seconds)
    except TimeoutError:
        _log.warning("The query did not stop within %.0f s; the JVM ends with this process.", seconds)
        return
    if error is not None:
        _log.warning("While the run was being interrupted it failed: %s", error)
