"""Environment variables that a JVM is launched with, and that this process has only so long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["launched_with"]

#: One launch at a time, which may change several variables.
_launching = threading.RLock()


@contextmanager
def launched_with(variable: str, change: Callable[[str], str]) -> Iterator[None]:
    """Launch a JVM in this context with another value of an environment variable.

    Args:
        variable: its name.
        change: takes the present value, or an empty text if the variable is not set; returns the other value.
    """
    with _launching:
        before = os.environ.get(variable)
        os.environ[variable] = change(before or "")
        try:
            yield
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before
