"""Savepoints that a job took, on record in ``control/savepoints/``: a recovery may go on from them, if it is told to.

A record is made by the epoch that took the savepoint, once it is complete. It says that the savepoint was there and
where the line of the job was at that moment; the savepoint itself stays the user's, who may move or delete it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.records import CheckpointId, Epoch, JobId, Line, encode_record, read_record
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.filesystem import FileSystem

__all__ = ["RecordedSavepoint", "RecordedSavepoints"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"s-[0-9]{10}-[0-9]{10}")
#: Records kept. A recovery looks for the newest, and for an older one only when the user has taken that away.
_KEPT = 10


@dataclass(frozen=True, slots=True)
class RecordedSavepoint:
    """A savepoint that was complete when this was written.

    Attributes:
        job_id: the lineage.
        epoch: that took it.
        checkpoint_id: its id, of the counter that checkpoints have, too.
        restored_from: the reference of what the epoch began with.
        reference: the directory of the savepoint, by which what is restored from it refers to it.
    """

    job_id: JobId
    epoch: Epoch
    checkpoint_id: CheckpointId
    restored_from: Line | None
    reference: Line

    @classmethod
    def of(cls, metadata: CheckpointMetadata) -> RecordedSavepoint:
        """The record of a savepoint."""
        return cls(metadata.job_id, metadata.epoch, metadata.checkpoint_id, metadata.restored_from, metadata.reference)

    @property
    def key(self) -> tuple[int, int]:
        """Its place among checkpoints and savepoints: (epoch, id)."""
        return self.epoch, self.checkpoint_id


class RecordedSavepoints:
    """The savepoints of one job name that are on record.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/savepoints"

    def add(self, savepoint: RecordedSavepoint) -> None:
        """Put a savepoint on record, and forget the oldest that are."""
        name = f"s-{savepoint.epoch:010}-{savepoint.checkpoint_id:010}"
        path = f"{self._directory}/{name}"
        self._filesystem.create(path, encode_record(savepoint, path))
        old = self._names()[_KEPT:]
        for oldest in old:
            self._filesystem.remove(f"{self._directory}/{oldest}")
        if old:
            self._filesystem.sync_directories([self._directory])

    def known(self) -> Sequence[RecordedSavepoint]:
        """What is on record, the newest by (epoch, id) first; a record that cannot be read is told and left out."""
        found = []
        for name in self._names():
            try:
                savepoint = self._read(name)
            except CorruptRecord as error:
                _log.warning("The record of a savepoint is passed over: %s", error.message)
                continue
            if savepoint is not None:
                found.append(savepoint)
        return found

    def taken_in(self, epoch: int) -> Sequence[RecordedSavepoint]:
        """What one epoch took, the newest first.

        Raises:
            CorruptRecord: a record cannot be read, and who passed it over might go on from something older.
        """
        names = [name for name in self._names() if name.startswith(f"s-{epoch:010}-")]
        return [savepoint for name in names if (savepoint := self._read(name)) is not None]

    def _read(self, name: str) -> RecordedSavepoint | None:
        epoch, number = map(int, name.split("-")[1:])
        path = f"{self._directory}/{name}"
        return read_record(self._filesystem, path, RecordedSavepoint, epoch=epoch, checkpoint_id=number)

    def _names(self) -> list[str]:
        names = [entry.name for entry in self._filesystem.list(self._directory)]
        return sorted((name for name in names if _NAME.fullmatch(name)), reverse=True)
