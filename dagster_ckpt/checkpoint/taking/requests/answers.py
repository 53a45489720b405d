"""The answers that a driver owes to whoever asks for savepoints, and who else is told how far each request is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TypeAlias

from dagster_ckpt.checkpoint.control import Answer, Asked, RequestState, SavepointRequest, SavepointRequests
from dagster_ckpt.checkpoint.format import LONGEST_REASON
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.errors import CheckpointError, MustStop

__all__ = ["Answers", "RequestListener", "in_words", "request_next_step"]

_log = logging.getLogger(__name__)

RequestListener: TypeAlias = "Callable[[SavepointRequest, RequestState, str, str], object]"
"""Is told of a request that its state has changed: the request, the state, the reason and the next step, in words."""


def request_next_step(request: SavepointRequest, state: RequestState, hint: str = "") -> str:
    """What a person does about a request in this state.

    Args:
        request: the request.
        state: how far it is.
        hint: of the error, if it failed.
    """
    match state:
        case RequestState.PENDING:
            return f"Wait: a run of the job takes the request up in its turn, until {iso(request.until)[:19]}Z."
        case RequestState.IN_PROGRESS:
            return f"Wait: the {request.kind} is taken once the batch in flight has committed."
        case RequestState.COMPLETED:
            return "Nothing is to be done."
        case RequestState.FAILED:
            return hint or "The job goes on. Mend the cause, and ask again."
        case RequestState.ABANDONED:
            return f"Nobody waits for the {request.kind} any more. If you still want it, ask again."


class Answers:
    """What the driver of one epoch owes to askers.

    Args:
        requests: the job's requests.
        epoch: of the driver.
        clock: wall time.
        told: called with each change of a request.
    """

    def __init__(self, requests: SavepointRequests, epoch: int, clock: Clock, told: RequestListener) -> None:
        self._requests = requests
        self._epoch = epoch
        self._clock = clock
        self._told = told
        self._owed: dict[str, tuple[SavepointRequest, Answer]] = {}
        self._pending: set[str] = set()

    def owes(self, request: SavepointRequest) -> bool:
        """Whether the request has an answer that is not written yet."""
        return request.token in self._owed

    def has(self, request: SavepointRequest) -> bool:
        """Whether the request is answered on record, as it is when its asker has stopped waiting.

        Raises:
            OSError: the storage failed.
        """
        return self._requests.answer_to(request.token) is not None

    def waits(self, request: SavepointRequest, reason: str) -> None:
        """Tell, once, that a request has to wait."""
        if request.token not in self._pending:
            self._pending.add(request.token)
            self._tell(request, RequestState.PENDING, reason)

    def begun(self, request: SavepointRequest) -> None:
        """Tell, as far as the storage lets us, that a request is taken up."""
        self._pending.discard(request.token)
        with contextlib.suppress(OSError):
            self._requests.begin(self._epoch, request, self._clock.time())
        self._tell(request, RequestState.IN_PROGRESS)

    def withdrawn(self, asked: Asked) -> None:
        """Tell that an asker has stopped waiting, if that is what the answer says."""
        self._pending.discard(asked.request.token)
        if asked.answer is not None and asked.answer.withdrawn:
            self._tell(asked.request, RequestState.ABANDONED, asked.answer.error)

    def abandoned(self, request: SavepointRequest) -> None:
        """Withdraw a request for an asker that is gone; the next look finds the answer, and tells."""
        self.give(request, Answer(self._clock.time(), error="The request is older than its timeout.", withdrawn=True))

    def failed(self, request: SavepointRequest, error: Exception) -> None:
        """Tell the asker that nothing was taken."""
        reason = in_words(error)
        _log.warning("A %s was asked for and not taken: %s", request.kind, reason)
        hint = error.hint if isinstance(error, CheckpointError) else ""
        self._tell(request, RequestState.FAILED, reason, hint)
        self.give(request, Answer(self._clock.time(), error=reason, hint=hint))

    def give(self, request: SavepointRequest, answer: Answer) -> None:
        """Answer as soon as the storage takes the answer."""
        self._owed[request.token] = (request, answer)
        if request.checkpoint and answer.savepoint is not None:
            self._tell(request, RequestState.COMPLETED, f"it is {answer.savepoint.pointer}")
        try:
            self.pay()
        except MustStop:
            raise
        except OSError as error:
            _log.warning("The answer to a request cannot be written and will be tried again: %s", error)

    def pay(self, *, job_ended: bool = False) -> None:
        """Write the answers that are owed, so that no request is carried out twice.

        Args:
            job_ended: the end of the job is recorded; before, a savepoint that stopped the job is no answer.

        Raises:
            Fenced: a newer run has taken the job over.
            OSError: the storage failed.
        """
        for token, (request, answer) in list(self._owed.items()):
            if request.stop and answer.savepoint is not None and not job_ended:
                continue
            if not self._requests.answer(self._epoch, request, answer) and answer.savepoint is not None:
                _log.warning("Savepoint %s stays, but its asker had stopped waiting", answer.savepoint.pointer)
            del self._owed[token]

    def _tell(self, request: SavepointRequest, state: RequestState, reason: str = "", hint: str = "") -> None:
        self._told(request, state, reason, request_next_step(request, state, hint))


def in_words(error: Exception) -> str:
    """An error as the reason of an answer."""
    told = error.message if isinstance(error, CheckpointError) else str(error)
    return told[:LONGEST_REASON]
