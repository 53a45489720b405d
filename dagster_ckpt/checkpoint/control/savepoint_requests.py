"""Requests to a running job: an asker requests a savepoint, and the driver of the current epoch answers.

A request is a record in ``control/requests/`` that the asker creates exclusively. The answer is a second record, also
created exclusively: by the driver, with the savepoint or the error, or by the asker when it stops waiting. The first
answer counts. When the driver dies, the next driver takes up the requests without an answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    Batch,
    CheckpointId,
    CheckpointMetadata,
    Count,
    Line,
    Seconds,
    Text,
    Token,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["Answer", "SavepointRequest", "SavepointRequests", "TakenSavepoint"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"r-([0-9a-f]{32})(\.answer)?")
#: Seconds for which an answered request is kept. Its asker removes it earlier, after reading the answer.
_KEPT = 3600.0


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A savepoint that is asked for.

    Attributes:
        token: 32 hex digits, unique.
        target: the directory for savepoints, ``None`` for the job's configured directory.
        stop: whether the job is to stop with the savepoint.
        asked_at: seconds since 1970.
        until: when the asker stops waiting, seconds since 1970; nobody wants the savepoint later.
    """

    token: Token
    target: Line | None
    stop: bool
    asked_at: Seconds
    until: Seconds


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """A savepoint that was taken.

    Attributes:
        pointer: the savepoint's directory, as ``restore_from`` takes it.
        checkpoint_id: the savepoint's id in the lineage.
        batch: the last committed micro-batch in the savepoint.
        files: the number of its files.
        size: the bytes of its files.
        seconds: from the capture, or the first byte copied, to completion.
    """

    pointer: Line
    checkpoint_id: CheckpointId
    batch: Batch
    files: Count
    size: Count
    seconds: Seconds

    @classmethod
    def of(cls, metadata: CheckpointMetadata) -> TakenSavepoint:
        """The savepoint whose manifest was written as ``metadata``."""
        seconds = sum(metadata.timings_ms.get(step, 0.0) for step in ("pin", "write")) / 1000
        return cls(
            metadata.reference,
            metadata.checkpoint_id,
            metadata.batch,
            len(metadata.files),
            metadata.size,
            round(seconds, 6),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request.

    Attributes:
        answered_at: seconds since 1970.
        savepoint: the savepoint; ``None`` when it failed or the request was withdrawn.
        error: why no savepoint was taken.
        hint: what to do about the error.
    """

    answered_at: Seconds
    savepoint: TakenSavepoint | None = None
    error: Text = ""
    hint: Text = ""


class SavepointRequests:
    """The requests to one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/requests"
        self._epochs = Epochs(filesystem, job_name)

    def ask(self, request: SavepointRequest) -> None:
        """Record a request."""
        path = self._path(request.token)
        self._filesystem.create(path, encode_record(request, path))

    def open(self, now: float | None = None) -> Sequence[SavepointRequest]:
        """The requests without an answer, the oldest first.

        Args:
            now: seconds since 1970, given by the driver only: it answers an unreadable request with an error. Other
                callers skip an unreadable request.
        """
        names = self._names()
        found = []
        for token, kinds in names.items():
            if kinds != {"request"}:
                continue
            try:
                request = read_record(self._filesystem, self._path(token), SavepointRequest, token=token)
            except CorruptRecord as error:
                _log.warning("A request for a savepoint cannot be carried out: %s", error.message)
                if now is not None:
                    self._settle(token, Answer(now, error=error.message, hint="Ask again."))
                continue
            if request is not None:
                found.append(request)
        return sorted(found, key=lambda request: (request.asked_at, request.token))

    def answer(self, epoch: int, request: SavepointRequest, answer: Answer) -> bool:
        """Answer as the driver of ``epoch``; ``False`` when the asker has withdrawn the request.

        Raises:
            Fenced: a newer run has taken over the job and its requests.
        """
        self._epochs.check(epoch)
        return self._settle(request.token, answer)

    def answer_to(self, token: str) -> Answer | None:
        """The answer to a request, ``None`` while there is none."""
        return read_record(self._filesystem, self._path(token, ".answer"), Answer)

    def withdraw(self, token: str, now: float, reason: str) -> Answer | None:
        """Stop waiting for an answer; returns an answer that came first.

        Args:
            token: of the request.
            now: seconds since 1970.
            reason: for people.
        """
        if self._settle(token, Answer(now, error=reason)):
            return None
        return self.answer_to(token)

    def forget(self, token: str) -> None:
        """Remove a request whose answer was read."""
        # The request goes first: without its answer it would be carried out again.
        self._filesystem.remove(self._path(token))
        self._filesystem.remove(self._path(token, ".answer"))

    def forget_old(self, now: float) -> None:
        """Remove old answered requests whose askers never read the answer; ``now`` in seconds since 1970."""
        for token, kinds in self._names().items():
            try:
                answer = self.answer_to(token) if "answer" in kinds else None
            except CorruptRecord as error:
                _log.warning("The answer to a request is removed, and the request with it: %s", error.message)
                self.forget(token)
                continue
            if answer is not None and not 0 <= now - answer.answered_at <= _KEPT:
                self.forget(token)

    def _names(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for entry in self._filesystem.list(self._directory):
            if match := _NAME.fullmatch(entry.name):
                found.setdefault(match[1], set()).add("answer" if match[2] else "request")
        return found

    def _settle(self, token: str, answer: Answer) -> bool:
        path = self._path(token, ".answer")
        try:
            self._filesystem.create(path, encode_record(answer, path))
        except PublishConflict:
            return False
        return True

    def _path(self, token: str, suffix: str = "") -> str:
        return f"{self._directory}/r-{token}{suffix}"
