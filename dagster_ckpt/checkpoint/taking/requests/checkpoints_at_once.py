"""Checkpoints that somebody asks for: taken before their turn, of what was committed when they were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dagster_ckpt.checkpoint.control import SavepointRequest
from dagster_ckpt.checkpoint.format import CheckpointMetadata, CheckpointSource
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator

__all__ = ["CheckpointsAtOnce"]


@dataclass(slots=True)
class _Waiting:
    """A request that waits for a checkpoint.

    Attributes:
        request: the request.
        batch: the last batch that was committed when the request was taken up, ``None`` for none.
        error: why the next checkpoint attempt failed.
    """

    request: SavepointRequest
    batch: int | None
    error: str = ""


class CheckpointsAtOnce:
    """The requests for a checkpoint that one start has taken up.

    A checkpoint that covers the batch answers the request, whether it was taken for the request or not; the next
    failure answers the request, too.

    Args:
        coordinator: takes the checkpoints.
        source: of the coordinator.
        restored: the checkpoint or savepoint that the start began with.
    """

    def __init__(
        self, coordinator: CheckpointCoordinator, source: CheckpointSource, restored: CheckpointMetadata | None
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._newest = restored
        self._waiting: dict[str, _Waiting] = {}

    def ask(self, request: SavepointRequest) -> bool:
        """Have a checkpoint taken for a request; ``False`` if the request waits already.

        Raises:
            CheckpointError: the progress of the query is unknown.
        """
        if request.token in self._waiting:
            return False
        self._source.look_again()
        committed = self._source.progress().committed
        self._waiting[request.token] = _Waiting(request, committed)
        if committed is None or committed != self._coordinator.captured:
            self._coordinator.take_at_once()
        return True

    def completed(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint completed."""
        self._newest = metadata

    def failed(self, reason: str) -> None:
        """A checkpoint attempt failed."""
        for waiting in self._waiting.values():
            waiting.error = reason

    def answered(self, *, over: bool) -> Iterator[tuple[SavepointRequest, CheckpointMetadata | None, str]]:
        """The requests that wait no longer, each with its checkpoint or with the reason why there is none.

        Args:
            over: the query has ended, and its last checkpoint is taken.
        """
        for token, waiting in list(self._waiting.items()):
            newest = self._newest
            covered = newest is not None and (waiting.batch is None or newest.batch >= waiting.batch)
            reason = waiting.error or ("The query has ended, and no batch has committed." if over else "")
            if covered or reason:
                del self._waiting[token]
                yield waiting.request, newest if covered else None, reason
