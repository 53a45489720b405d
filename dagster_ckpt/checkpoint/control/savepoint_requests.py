"""Requests to a running job: for a savepoint or a checkpoint, which the driver answers, or for the job's end.

A request is a record in ``control/requests/`` that the asker creates exclusively. The answer is a second record, also
created exclusively: by the driver, with the savepoint or the error, or by the asker when it stops waiting. The first
answer counts. When the driver dies, the next driver takes up the requests without an answer. A third record, which the
driver writes when it takes a request up, is for people only.

A request for a checkpoint, or with a name or a note, has a record version of its own: an older release, which would
take a nameless savepoint instead, answers that it cannot read the request.

In a bucket a listing costs as much as a dozen reads. So whoever asks there rings afterwards: ``control/requests/bell``
is replaced, and the driver lists the requests only when the bell has changed.

``control/requests/cancel`` asks one run, which it names, to end the job. The end of the job is the answer, so a request
that is left behind is without effect. Who asks for that rings, too.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.control.taken_savepoints import NO_LABEL, Label
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    Batch,
    CheckpointId,
    CheckpointMetadata,
    Count,
    Epoch,
    Line,
    Moment,
    RunId,
    SavepointName,
    Seconds,
    Text,
    Token,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = [
    "Answer",
    "Asked",
    "CancelRequest",
    "RequestState",
    "SavepointRequest",
    "SavepointRequests",
    "TakenSavepoint",
]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"r-([0-9a-f]{32})(?:\.(answer|begun))?")
#: Seconds for which an answered request is kept. Its asker removes it earlier, after reading the answer.
_KEPT = 3600.0


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A savepoint, or a checkpoint, that is asked for.

    Attributes:
        token: 32 hex digits, unique.
        target: the directory for savepoints, ``None`` for the job's configured directory.
        stop: whether the job is to stop with the savepoint.
        asked_at: seconds since 1970.
        until: when the asker stops waiting, seconds since 1970; nobody wants the savepoint later.
        name: the name of the savepoint, unique in the job; ``None`` for none.
        note: what the asker writes about the savepoint.
        series: the savepoints of which this is the next one, for their history; ``None`` for none.
        checkpoint: a checkpoint is asked for, at once, and no savepoint.
    """

    VERSIONS: ClassVar = (2, 3)

    token: Token
    target: Line | None
    stop: bool
    asked_at: Moment
    until: Moment
    name: SavepointName | None = None
    note: Line = ""
    series: SavepointName | None = None
    checkpoint: bool = False

    @property
    def version(self) -> int:
        """Of the record."""
        return self.VERSIONS[self.checkpoint or self.label != NO_LABEL]

    @property
    def label(self) -> Label:
        """What the savepoint is to be called."""
        return Label(self.name, self.note, self.series)

    @property
    def kind(self) -> str:
        """What is asked for."""
        return "checkpoint" if self.checkpoint else "savepoint"


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """A savepoint or checkpoint that was taken.

    Attributes:
        pointer: the savepoint's directory, or ``{job id}/chk-N``, as ``restore_from`` takes it.
        checkpoint_id: the savepoint's id in the lineage.
        batch: the last committed micro-batch in the savepoint.
        files: the number of its files.
        size: the bytes of its files.
        seconds: from the capture, or the first byte copied, to completion.
        name: that of the savepoint, ``None`` for none.
        note: that of the savepoint.
    """

    pointer: Line
    checkpoint_id: CheckpointId
    batch: Batch
    files: Count
    size: Count
    seconds: Seconds
    name: SavepointName | None = None
    note: Line = ""

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
            metadata.given_name,
            metadata.note,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request.

    Attributes:
        answered_at: seconds since 1970.
        savepoint: the savepoint; ``None`` when it failed or the request was withdrawn.
        error: why no savepoint was taken.
        hint: what to do about the error.
        withdrawn: the asker has stopped waiting; ``error`` says why.
    """

    answered_at: Moment
    savepoint: TakenSavepoint | None = None
    error: Text = ""
    hint: Text = ""
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class _Begun:
    """The driver of an epoch has taken a request up."""

    epoch: Epoch
    at: Moment


class RequestState(StrEnum):
    """How far a request is."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is still on record.

    Attributes:
        request: the request.
        answer: its answer, which nobody has read yet; ``None`` while there is none.
        begun: the epoch whose driver has taken the request up, 0 for none.
    """

    request: SavepointRequest
    answer: Answer | None
    begun: int

    def state(self, now: float, epoch: int) -> RequestState:
        """How far the request is.

        Args:
            now: seconds since 1970.
            epoch: the job's newest one; what the driver of an older one has taken up is taken up again.
        """
        if self.answer is not None:
            if self.answer.savepoint is not None:
                return RequestState.COMPLETED
            return RequestState.ABANDONED if self.answer.withdrawn else RequestState.FAILED
        if self.request.until < now:
            return RequestState.ABANDONED
        return RequestState.IN_PROGRESS if 0 < self.begun == epoch else RequestState.PENDING


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """One run is asked to end its job as canceled.

    Attributes:
        run_id: the run.
        asked_at: seconds since 1970.
    """

    run_id: RunId
    asked_at: Moment


@dataclass(frozen=True, slots=True)
class _Bell:
    """Somebody has asked for something; no two requests have the same token."""

    token: Token


class SavepointRequests:
    """The requests to one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/requests"
        self._cancel = f"{self._directory}/cancel"
        self._bell = f"{self._directory}/bell"
        #: Under this name the driver's process keeps the bell as it has heard it last (``checkpoint/seen.py``).
        self.heard_as = (filesystem.url, job_name, "bell")
        self._epochs = Epochs(filesystem, job_name)

    def ask(self, request: SavepointRequest) -> None:
        """Record a request."""
        path = self._path(request.token)
        self._filesystem.create(path, encode_record(request, path))
        self._ring(request.token)

    def bell(self) -> bytes | None:
        """What changes with each request; ``None`` where a listing costs nothing, and nobody rings.

        Read it before the requests: a request that the listing lacks rings later.
        """
        return (self._filesystem.read_if_there(self._bell) or b"") if self._filesystem.is_distant else None

    def open(self) -> Sequence[SavepointRequest]:
        """The requests without an answer, the oldest first; unreadable ones are left out."""
        return [asked.request for asked in self.unread() if asked.answer is None]

    def unread(self, known: Container[str] = (), *, answer_at: float | None = None) -> Sequence[Asked]:
        """The requests whose answer nobody has read yet, the oldest first; unreadable records are left out.

        Args:
            known: tokens of answered requests that the caller knows, and that are left out.
            answer_at: seconds since 1970, given by the driver only: it answers an unreadable request with an error, and
                does not read who has begun with a request.
        """
        found = []
        for token, kinds in self._names().items():
            if "request" not in kinds or ("answer" in kinds and token in known):
                continue
            try:
                request = read_record(self._filesystem, self._path(token), SavepointRequest, token=token)
                answer = self.answer_to(token) if "answer" in kinds else None
            except CorruptRecord as error:
                if answer_at is not None and "answer" not in kinds:
                    _log.warning("A request for a savepoint cannot be carried out: %s", error.message)
                    self._settle(token, Answer(answer_at, error=error.message, hint="Ask again."))
                continue
            if request is not None:
                begun = self.begun_by(token) if "begun" in kinds and answer_at is None else 0
                found.append(Asked(request, answer, begun))
        return sorted(found, key=lambda asked: (asked.request.asked_at, asked.request.token))

    def begin(self, epoch: int, request: SavepointRequest, now: float) -> None:
        """Tell that the driver of ``epoch`` has taken a request up; ``now`` in seconds since 1970."""
        path = self._path(request.token, ".begun")
        self._filesystem.replace(path, encode_record(_Begun(epoch, now), path))

    def begun_by(self, token: str) -> int:
        """The epoch whose driver has taken a request up last, 0 for none or if the record cannot be read."""
        with contextlib.suppress(CorruptRecord):  # for people only
            begun = read_record(self._filesystem, self._path(token, ".begun"), _Begun)
            return 0 if begun is None else begun.epoch
        return 0

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
        if self._settle(token, Answer(now, error=reason, withdrawn=True)):
            return None
        return self.answer_to(token)

    def forget(self, token: str) -> None:
        """Remove a request whose answer was read."""
        # The request goes first: without its answer it would be carried out again.
        for suffix in ("", ".begun", ".answer"):
            self._filesystem.remove(self._path(token, suffix))

    def forget_old(self, now: float) -> None:
        """Remove old answered requests whose askers never read the answer; ``now`` in seconds since 1970."""
        for token, kinds in self._names().items():
            if kinds == {"begun"}:  # told after the asker had read the answer
                self.forget(token)
                continue
            try:
                answer = self.answer_to(token) if "answer" in kinds else None
            except CorruptRecord as error:
                _log.warning("The answer to a request is removed, and the request with it: %s", error.message)
                self.forget(token)
                continue
            if answer is not None and not 0 <= now - answer.answered_at <= _KEPT:
                self.forget(token)

    def ask_to_cancel(self, request: CancelRequest) -> None:
        """Ask a run to end the job; replaces what was asked of another run."""
        self._filesystem.replace(self._cancel, encode_record(request, self._cancel))
        self._ring(uuid.uuid4().hex)

    def is_to_cancel(self, run_id: str) -> bool:
        """Whether a run is asked to end the job.

        Raises:
            CorruptRecord: the request cannot be read.
            StorageError: the storage failed.
        """
        request = read_record(self._filesystem, self._cancel, CancelRequest)
        return request is not None and request.run_id == run_id

    def forget_cancel(self) -> None:
        """Remove the request to end the job."""
        self._filesystem.remove(self._cancel)

    def _ring(self, token: str) -> None:
        if self._filesystem.is_distant:
            self._filesystem.replace(self._bell, encode_record(_Bell(token), self._bell))

    def _names(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for entry in self._filesystem.list(self._directory):
            if match := _NAME.fullmatch(entry.name):
                found.setdefault(match[1], set()).add(match[2] or "request")
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
