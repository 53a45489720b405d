"""Supervised execution: Spark on a worker thread, and the main thread in Python, where it can be interrupted.

If an interrupt arrives while the main thread waits for the JVM, py4j's connection keeps an unread answer, and the next
call hangs forever. So the main thread never calls into the JVM.
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

#: Seconds that the main thread sleeps in Python at a time; an interrupt is noticed within this time.
_TURN = 0.2
#: Seconds that a canceled query may take to stop; then the run ends anyway, and the JVM ends with the process.
_GRACE = 60.0
#: The same for a run that is interrupted and leaves no end behind. Kubernetes kills a pod after 30 s.
_GRACE_OF_INTERRUPTED = 20.0
_PARENT_POLL = 0.5


def supervise(
    start: Callable[[Callable[[Event], None]], StreamingRun],
    on_event: Callable[[Event], None],
    *,
    on_turn: Callable[[], None] = lambda: None,
    is_cancellation: Callable[[], bool] = lambda: True,
) -> RunResult:
    """Drive a run on a worker thread, and handle its events and any interrupt on the calling thread.

    Args:
        start: makes the run, given a function that takes its events.
        on_event: called with each event, on the calling thread. Its exceptions are logged: the job survives a failed
            report. An event whose handling was interrupted is delivered again.
        on_turn: called a few times a second, on the calling thread. An ``Exception`` is logged, too; any other
            ``BaseException`` is an interrupt.
        is_cancellation: whether an interrupt that has just arrived means that the job is canceled. If not, or if that
            is unknown, the run ends as if its process had died, so that the job is resumed.

    Returns:
        how the run ended.

    Raises:
        BaseException: the interrupt of this thread, after the query was stopped; else the run's exception.
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
    """Drive several runs at once, each on a worker thread; an interrupt stops all runs. See :func:`supervise`.

    Returns:
        how each run ended, in the order given; all are done.

    Raises:
        BaseException: the interrupt of this thread, after the queries were stopped.
    """
    inbox = _Inbox(on_event)
    runs: list[tuple[StreamingRun, Future[RunResult]]] = [(start(inbox.put), Future()) for start in starts]
    outcomes = [outcome for _, outcome in runs]
    try:
        for run, outcome in runs:
            _begin(run, outcome)
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
            if not outcome.cancel():  # else its run has not begun, and never will
                _wait(outcome, _GRACE if canceled else _GRACE_OF_INTERRUPTED)
        inbox.handle()
        raise
    return outcomes


class _Inbox(Generic[_Event]):
    """Events on their way from the threads of the runs to the thread that handles them.

    An event is removed only after it was handled, because an interrupt at any bytecode must not lose an event.
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
    """Make this process, and Spark's JVM with it, end when the parent process ends.

    Otherwise a step process of Dagster's multiprocess executor survives a killed run worker, and goes on writing beside
    the run that resumes the job.
    """
    parent = multiprocessing.parent_process()
    pid = os.getppid()

    def watch() -> None:
        if parent is not None:
            # The sentinel is also ready when the parent died before this call.
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
    except BaseException as error:  # even a second interrupt: the query has to be stopped
        _log.warning("Whether the job is canceled cannot be found out, so it is to be gone on with: %s", error)
        return False


def _begin(run: StreamingRun, outcome: Future[RunResult]) -> None:
    thread = threading.Thread(target=_drive, args=(run, outcome), name="dagster-ckpt-spark", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the host has no room for another thread: the runs that have begun go on
        outcome.set_exception(error)


def _drive(run: StreamingRun, outcome: Future[RunResult]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
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
