"""``control/messages/``: what a driver of its own tells its Dagster run, as messages of Dagster Pipes.

A session of Dagster Pipes ends with the run that has opened it, and the driver may outlive that run. So its messages
lie here until a run has told them: in chunks, which the driver numbers from 1, and of which it keeps the newest.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import CONTROL_DIR, Text, encode_record, read_record
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["DriverMessages"]

_NAME = re.compile(r"m-([0-9]{10})-([0-9]{10})")
#: How many chunks are kept that no run has told.
_KEPT = 1_000
#: Of so many looks that find nothing, one lists: the driver may have removed what comes next.
_LOOKS = 10


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Messages of one moment.

    Attributes:
        messages: each is JSON.
    """

    messages: tuple[Text, ...]


class DriverMessages:
    """The messages of the driver of one submission, for the driver or for a run that attends the driver.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
        submission: the number of the submission.
    """

    def __init__(self, filesystem: FileSystem, job_name: str, submission: int) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/messages"
        self._submission = submission
        #: The number of the next chunk, 0 where it is not known; and how many of its messages were told.
        self._next = self._told = 0
        self._looks = 0
        #: What earlier drivers have said, once that is known.
        self._over: list[str] = []

    # --- the driver --------------------------------------------------------------------------------------------------

    def add(self, messages: Sequence[str]) -> None:
        """Store a chunk; with the first one the messages of earlier submissions go.

        Raises:
            InvalidConfiguration: a message is longer than a record may be; nothing was stored.
            StorageError: the storage failed; the chunk may be stored or not. The same chunk can be added again.
        """
        if not self._next:
            found = self._numbers()
            earlier = sorted(submission for submission in found if submission < self._submission)
            self._over = [self._path(number, submission) for submission in earlier for number in found[submission]]
            self._next = 1 + max(found[self._submission], default=0)
        while not self._is_stored(messages):
            self._next += 1
        if self._next > _KEPT:
            self._over.append(self._path(self._next - _KEPT))
        self._next += 1
        while self._over:
            self._remove(self._over.pop())

    def _is_stored(self, messages: Sequence[str]) -> bool:
        """Store a chunk under the next number; ``False`` if another process of this submission has used that number."""
        path = self._path(self._next)
        try:
            self._filesystem.create(path, encode_record(_Chunk(tuple(messages)), path))
        except PublishConflict:
            return False
        return True

    # --- the run that attends the driver -----------------------------------------------------------------------------

    def new(self) -> Iterator[str]:
        """The messages that this has not given yet, oldest first. One counts as given when the next one is asked for.

        The newest chunk stays, so that a run that begins to attend knows where to go on: that run is told the messages
        of this chunk again.

        Raises:
            StorageError: the storage failed; the next call goes on.
        """
        self._next = self._next or self._oldest()
        while self._next and (messages := self._read(self._next)) is not None:
            self._looks = 0
            while self._told < len(messages):
                yield messages[self._told]
                self._told += 1
            self._next, self._told = self._next + 1, 0
            self._remove(self._path(self._next - 2))
        self._looks += 1
        if self._looks % _LOOKS == 0 and (oldest := self._oldest()) > self._next:
            self._next, self._told = oldest, 0

    def _oldest(self) -> int:
        """The first of the chunks that end with the newest without a gap, 0 for none."""
        numbers = self._numbers()[self._submission]
        oldest = max(numbers, default=0)
        while oldest - 1 in numbers:
            oldest -= 1
        return oldest

    def _read(self, number: int) -> Sequence[str] | None:
        try:
            chunk = read_record(self._filesystem, self._path(number), _Chunk)
        except CorruptRecord as error:
            return [json.dumps({"method": "log", "params": {"level": "WARNING", "message": str(error)}})]
        return None if chunk is None else chunk.messages

    def _remove(self, path: str) -> None:
        with suppress(Exception):  # what stays is passed over, and the next submission removes it
            self._filesystem.remove(path)

    def _numbers(self) -> dict[int, set[int]]:
        """The numbers of the stored chunks, by submission."""
        found = defaultdict[int, set[int]](set)
        for entry in self._filesystem.list(self._directory):
            if (match := _NAME.fullmatch(entry.name)) is not None:
                found[int(match[1])].add(int(match[2]))
        return found

    def _path(self, number: int, submission: int | None = None) -> str:
        of = self._submission if submission is None else submission
        return f"{self._directory}/m-{of:010}-{number:010}"
