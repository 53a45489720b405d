"""What a standby does once while it waits, on a thread of its own, and leaves as soon as the session is needed."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

__all__ = ["Rehearsal"]


class Rehearsal:
    """A rehearsal under way.

    Args:
        rehearse: takes the flag that tells it to end; returns what it has done, for people.

    Attributes:
        outcome: what was done, or the error; ``None`` while it is under way.
    """

    def __init__(self, rehearse: Callable[[threading.Event], str]) -> None:
        self.outcome: str | Exception | None = None
        self._rehearse = rehearse
        self._cut = threading.Event()
        self._cut_at: float | None = None
        # What the job's function asks of this thread's context, it finds there, too.
        run = partial(contextvars.copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="dagster-ckpt-rehearsal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # there can be no more threads, and nobody needs the rehearsal
            self.outcome = error

    @property
    def is_over(self) -> bool:
        """Whether the session is free."""
        return not self._thread.is_alive()

    def cut(self) -> float:
        """Tell the rehearsal to end; returns the seconds since it was first told so."""
        self._cut.set()
        self._cut_at = self._cut_at or monotonic()
        return monotonic() - self._cut_at

    def join(self, seconds: float) -> None:
        """Wait until it is over, or so long."""
        if not self.is_over:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self.outcome = self._rehearse(self._cut)
        except Exception as error:  # whatever the job's function raises: nobody needs the rehearsal
            self.outcome = error
