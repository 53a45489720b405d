"""How the user is told that something of Flink has no counterpart in Spark."""

from __future__ import annotations

import inspect
import warnings

__all__ = ["FlinkDifference", "warn"]

_PACKAGE = __name__.partition(".")[0]


class FlinkDifference(UserWarning):
    """Something that Flink's API has and that changes nothing here, with the reason."""


def warn(message: str) -> None:
    """Warn, at the line outside this package that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FlinkDifference, stacklevel=level)
