"""What the attempts of checkpoints and of savepoints share: how often one is repeated, and how it is given up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dagster_ckpt.errors import CaptureIncomplete

__all__ = ["RETRIES", "RETRY_AFTER", "outcome_of_abandoned", "until_whole"]

_T = TypeVar("_T")

#: An incomplete capture is taken again with the next batch, or after this many seconds; five in a row count as one
#: failed checkpoint, because a capture that never works must not go unnoticed.
RETRY_AFTER = 1.0
RETRIES = 5
#: A canceled job waits this long for a writer to notice; one that hangs in the storage ends with the process.
_ABANDON = 5.0


def until_whole(take: Callable[[], _T]) -> _T:
    """What ``take`` takes of a query that has stopped, tried :data:`RETRIES` times.

    Raises:
        CaptureIncomplete: it was never all there.
    """
    for _ in range(RETRIES - 1):
        with contextlib.suppress(CaptureIncomplete):
            return take()
    return take()


def outcome_of_abandoned(writing: Future[_T]) -> _T | None:
    """What became of an attempt that has been given up: its result where it came to its publication all the same."""
    with contextlib.suppress(TimeoutError):
        if writing.exception(timeout=_ABANDON) is None:
            return writing.result()
    return None
