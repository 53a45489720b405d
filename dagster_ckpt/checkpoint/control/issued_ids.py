"""The ids of checkpoints and savepoints: they rise, and no id is issued twice in a lineage.

The name of a record tells the id, so a record with changed content does no harm: ``issued/{job id}/e-{epoch}-{id}``.
Records of version 1 are named ``e-{epoch}`` and hold the id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Iterable

from dagster_ckpt.checkpoint.format import CONTROL_DIR, corrupt
from dagster_ckpt.filesystem import FileSystem

__all__ = ["IssuedIds"]

_NAME = re.compile(r"e-([0-9]{10})(?:-([0-9]{15}))?")
#: The last id that a name has room for.
_LAST = 10**15 - 1
_VERSION_1 = re.compile(rb"[0-9]{1,15}\n?")


class IssuedIds:
    """The ids issued in one lineage of a job.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
        job_id: the lineage.
    """

    def __init__(self, filesystem: FileSystem, job_name: str, job_id: str) -> None:
        self._filesystem = filesystem
        self._lineage = f"{job_name}/{job_id}"
        self._directory = f"{job_name}/{CONTROL_DIR}/issued/{job_id}"

    def record(self, epoch: int, number: int) -> None:
        """Remember that ``epoch`` issued ``number``; durable on return.

        Each epoch has its own records, so a fenced writer cannot lower the id that a newer epoch recorded.
        """
        self._filesystem.create(f"{self._directory}/e-{epoch:010}-{number:015}", f"{number}\n".encode())
        self._filesystem.sync_directories([self._directory])

    def forget(self, epoch: int, number: int) -> None:
        """Delete the record of an id once a greater id was recorded: the newest record of an epoch is enough."""
        with contextlib.suppress(OSError):  # the record has a lower id, and does no harm
            self._filesystem.remove(f"{self._directory}/e-{epoch:010}-{number:015}")

    def forget_before(self, number: int, epochs: Container[int]) -> None:
        """Delete the records of lower ids than ``number``, which is recorded, whose epochs are not in ``epochs``.

        Args:
            number: a recorded id. Whoever deletes its record has recorded a greater id.
            epochs: those that still have a claim, see :meth:`epochs`.
        """
        for entry in self._filesystem.list(self._directory):
            match = _NAME.fullmatch(entry.name)
            if match and match[2] and int(match[2]) < number and int(match[1]) not in epochs:
                self.forget(int(match[1]), int(match[2]))

    def epochs(self) -> frozenset[int]:
        """The epochs that have issued an id in this lineage; one listing.

        No other epoch has a checkpoint in the lineage, unless the claim of the epoch is forgotten.
        """
        entries = self._filesystem.list(self._directory)
        return frozenset(int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry.name)))

    def next(self, present: Iterable[int], restored: int = 0) -> int:
        """The next id: above every id ever issued, and above every id in use.

        Args:
            present: the ids of every ``chk-N`` of the lineage, complete or not.
            restored: the id of the checkpoint or savepoint that the lineage continues from.

        Raises:
            CorruptRecord: a record of version 1 does not hold an id.
        """
        known = {number: f"{self._lineage}/chk-{number}" for number in present}
        for entry in self._filesystem.list(self._directory):
            if not entry.is_directory and (match := _NAME.fullmatch(entry.name)) is not None:
                path = f"{self._directory}/{entry.name}"
                known[int(match[2]) if match[2] else self._read_version_1(path)] = path
        greatest = max([0, *known, restored])
        if greatest >= _LAST:
            raise corrupt(
                self._filesystem, known.get(greatest, self._directory), "no job has had that many checkpoints"
            )
        return greatest + 1

    def _read_version_1(self, path: str) -> int:
        data = self._filesystem.read_if_there(path)
        if data is None:
            return 0  # a sweep of the whole job removed the record after the listing
        if _VERSION_1.fullmatch(data) is None:
            raise corrupt(self._filesystem, path, "it does not hold the number of a checkpoint")
        return int(data)
