"""Requests to a running job: somebody asks for a savepoint, and the driver of the current epoch answers.

A request is a record in ``control/requests/``, created exclusively by who asks. Its answer is a second record, also
created exclusively: by the driver, with the savepoint or the error, or by an asker that stopped waiting. Whichever is
first counts. A request without an answer is taken up by the next driver when this one dies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.records import (
    Batch,
    CheckpointId,
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
#: Seconds an answered request is kept for its asker, who removes it when it has read the answer.
_KEPT = 3600.0


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A savepoint that is asked for.

    Attributes:
        token: 32 hex digits, unique.
        target: the directory for savepoints, ``None`` for the one that the job is configured with.
        stop: whether the job is to be stopped with it.
        asked_at: seconds since the epoch.
        until: when the asker stops waiting, seconds since the epoch; nobody wants it later.
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
        pointer: its directory, as ``restore_from`` takes it.
        checkpoint_id: its id in the lineage.
        batch: the last committed micro-batch in it.
        files: how many it has.
        size: their bytes.
        seconds: from the capture, or the first byte copied, to its completion.
    """

    pointer: Line
    checkpoint_id: CheckpointId
    batch: Batch
    files: Count
    size: Count
    seconds: Seconds

    @classmethod
    def of(cls, metadata: CheckpointMetadata) -> TakenSavepoint:
        """What ``metadata``, as it was written, tells about its savepoint."""
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
        answered_at: seconds since the epoch.
        savepoint: what was taken; ``None`` when it failed or was withdrawn.
        error: why it was not taken.
        hint: what to do then.
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
        """Put a request on record."""
        path = self._path(request.token)
        self._filesystem.create(path, encode_record(request, path))

    def open(self, now: float | None = None) -> Sequence[SavepointRequest]:
        """The requests that have no answer, the oldest first.

        Args:
            now: seconds since the epoch, given by the driver: it refuses a request that cannot be read. Others pass
                over such a request.
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
            Fenced: a newer run has taken the job over, and the request with it.
        """
        self._epochs.check(epoch)
        return self._settle(request.token, answer)

    def answer_to(self, token: str) -> Answer | None:
        """The answer to a request, ``None`` while there is none."""
        return read_record(self._filesystem, self._path(token, ".answer"), Answer)

    def withdraw(self, token: str, now: float, reason: str) -> Answer | None:
        """Stop waiting for an answer; an answer that was there first is returned.

        Args:
            token: of the request.
            now: seconds since the epoch.
            reason: for people.
        """
        if self._settle(token, Answer(now, error=reason)):
            return None
        return self.answer_to(token)

    def forget(self, token: str) -> None:
        """Remove a request whose answer was read."""
        # In this order: a request without its answer would be carried out again.
        self._filesystem.remove(self._path(token))
        self._filesystem.remove(self._path(token, ".answer"))

    def forget_old(self, now: float) -> None:
        """Remove what askers left that never came back for the answer; ``now`` in seconds since the epoch."""
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
