"""Attempts in progress: what one is, who is told, how a capture is repeated, and how an attempt is abandoned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dagster_ckpt.checkpoint.format import CheckpointMetadata, Snapshot
from dagster_ckpt.checkpoint.taking.progress import PendingCheckpoint
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.errors import CaptureIncomplete

__all__ = ["RETRIES", "RETRY_AFTER", "Attempt", "CheckpointListener", "outcome_of_abandoned", "until_whole", "writing"]

_T = TypeVar("_T")

#: An incomplete capture is taken again with the next batch, or after this many seconds. Five incomplete captures in a
#: row count as one failed checkpoint, because a capture that never works must not go unnoticed.
RETRY_AFTER = 1.0
RETRIES = 5
#: A canceled job waits so many seconds for a writer to stop; a writer that hangs in the storage ends with the process.
_ABANDON = 5.0


@dataclass(slots=True)
class Attempt:
    """A checkpoint that is being written."""

    pending: PendingCheckpoint
    snapshot: Snapshot
    future: Future[CheckpointMetadata]


class CheckpointListener(Protocol):
    """Is called on the thread that ticks, with what happened."""

    def completed(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint completed; the checkpoints that it subsumes are still there."""

    def subsumed(self, dropped: Sequence[Discarded]) -> None:
        """Subsumed checkpoints were deleted."""

    def failed(self, number: int, reason: str, consecutive: int) -> None:
        """A checkpoint attempt failed, the ``consecutive``-th failure in a row."""


def writing(executor: Executor, snapshot: Snapshot, write: Callable[[], _T]) -> Future[_T]:
    """Have a snapshot written by ``write``, which releases it; it is released, too, if there is no thread for that.

    Raises:
        OSError: there is no thread.
    """
    try:
        return executor.submit(write)
    except BaseException:
        snapshot.release()
        raise


def until_whole(take: Callable[[], _T]) -> _T:
    """The result of ``take`` for a query that has stopped, tried up to :data:`RETRIES` times.

    Raises:
        CaptureIncomplete: the capture was incomplete each time.
    """
    for _ in range(RETRIES - 1):
        with contextlib.suppress(CaptureIncomplete):
            return take()
    return take()


def outcome_of_abandoned(future: Future[_T]) -> _T | None:
    """The result of an abandoned attempt if it was published all the same, else ``None``."""
    with contextlib.suppress(TimeoutError):
        if future.exception(timeout=_ABANDON) is None:
            return future.result()
    return None
