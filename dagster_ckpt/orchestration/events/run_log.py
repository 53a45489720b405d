"""What a run says in its log, although Dagster's database may be away."""

from __future__ import annotations

import contextlib
import logging

__all__ = ["say"]

_log = logging.getLogger(__name__)


def say(log: logging.Logger, level: int, text: str) -> None:
    """Say it in the log of a run; if Dagster does not take it, in the output of the run's process.

    Dagster answers a line that it cannot write with an event that tells so, which it cannot write either, and raises. A
    line is no reason for a run to end, and what is done after the line is done all the same.

    Args:
        log: of the run.
        level: of :mod:`logging`.
        text: the line.
    """
    for each in (log, _log):
        with contextlib.suppress(Exception):  # Dagster may also manage the loggers of Python
            each.log(level, text)
            return
