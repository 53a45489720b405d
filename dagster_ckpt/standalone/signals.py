"""Signals that tell a process to end, so that its job is resumed by a later run."""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["ToldToEnd", "told_to_end"]


class ToldToEnd(SystemExit):
    """A signal has told this process to end; ``code`` is 128 and the number of the signal."""


class _Once:
    """Raises for the first signal alone: the next ones must not disturb what the first one has begun.

    What was raised may be swallowed, by a finalizer or a bare ``except:`` of imported code. Nothing holds it any more
    then, and the next signal raises again.
    """

    def __init__(self) -> None:
        self._raised: Callable[[], ToldToEnd | None] = lambda: None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._raised() is not None:
            return
        told = ToldToEnd(128 + number)
        self._raised = weakref.ref(told)
        try:
            raise told
        finally:
            del told  # its traceback holds this frame, which would hold it


@contextlib.contextmanager
def told_to_end(*others: signal.Signals) -> Iterator[None]:
    """Within it the first SIGTERM or SIGHUP raises :class:`ToldToEnd` on the main thread; the next ones do nothing.

    Where code in between has swallowed the exception, the next signal raises another one.

    Without it they would end the process at once, and the death of a run counts as a failure. A signal that the program
    handles or ignores itself is left to the program.

    Args:
        others: further signals of which the same is true.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, *others)}
    # Dagster makes a SIGTERM raise KeyboardInterrupt, as Ctrl-C does.
    ours = [number for number, set_ in before.items() if set_ in {signal.SIG_DFL, signal.default_int_handler}]
    end = _Once()
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
