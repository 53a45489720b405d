"""How tests of clusters wait."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

__all__ = ["eventually"]

_DEADLINE = 900.0


def eventually(what: str, condition: Callable[[], bool]) -> None:
    """Wait for ``condition``."""
    give_up, pause = monotonic() + _DEADLINE, Event()
    while not condition():
        assert monotonic() < give_up, f"waited {_DEADLINE:.0f} s in vain: {what}"
        pause.wait(0.05)
