"""What a JVM is launched with: options for its start, in environment variables that this process has only so long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["OPTIONS_VARIABLE", "launched_for_a_short_start", "launched_with"]

#: Options for the driver's JVM, before those of the session's conf, which win.
OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"
#: HotSpot's second compiler takes a third of the processor time of a start, most of it for code that runs only then.
#: These are its thresholds times ten: what a stream does in each batch reaches them within its first batches.
_LATE_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
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


def launched_for_a_short_start() -> AbstractContextManager[None]:
    """Launch a JVM in this context that optimizes its code later; options of the user win."""
    return launched_with(OPTIONS_VARIABLE, lambda before: f"{_LATE_OPTIMIZATION} {before}".strip())
