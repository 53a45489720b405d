"""What all modules here share: PyFlink's enumerations, with Flink's numbers, and the warning of a difference."""

from __future__ import annotations

import inspect
import warnings
from enum import Enum, IntEnum
from typing import TypeVar

from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "CheckpointingMode",
    "ExternalizedCheckpointCleanup",
    "ExternalizedCheckpointRetention",
    "FlinkDifference",
    "TimeCharacteristic",
    "member",
    "warn",
]

_PACKAGE = __name__.partition(".")[0]
_Member = TypeVar("_Member", bound=Enum)


class FlinkDifference(UserWarning):
    """A part of Flink's API has no effect here; the message gives the reason."""


class CheckpointingMode(IntEnum):
    """What a restore promises: exact or refused; or no rows lost, but perhaps doubled."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1


class ExternalizedCheckpointRetention(IntEnum):
    """Whether checkpoints stay when the job is canceled or fails.

    ``DELETE_ON_CANCELLATION`` keeps the checkpoints only when the job fails, ``RETAIN_ON_CANCELLATION`` in both cases,
    ``NO_EXTERNALIZED_CHECKPOINTS`` in neither case. A job that finishes deletes its checkpoints, as in Flink.
    """

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2


#: The name up to Flink 1.20. Deprecated: Flink 2 has :class:`ExternalizedCheckpointRetention` alone.
ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention


class TimeCharacteristic(IntEnum):
    """Which time a query uses.

    In Spark the query itself decides: ``EventTime`` checks that the query has a watermark, ``ProcessingTime`` takes the
    query as it is, and ``IngestionTime`` is not supported.
    """

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2


def member(kind: type[_Member], value: object) -> _Member:
    """The member of ``kind`` for a member, its number or its name.

    Raises:
        InvalidConfiguration: there is no such member.
    """
    for found in kind:
        if value in (found, found.value, found.name) and not isinstance(value, bool):
            return found
    names = ", ".join(f"{kind.__name__}.{found.name}" for found in kind)
    raise InvalidConfiguration(f"{value!r} is no {kind.__name__}.", hint=f"Use one of {names}.")


def warn(message: str) -> None:
    """Warn at the calling line outside this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FlinkDifference, stacklevel=level)
