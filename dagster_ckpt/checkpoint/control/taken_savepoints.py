"""Records in ``control/savepoints/`` of the savepoints that a job took. A recovery may restore them, if configured so.

The epoch that took a savepoint writes the record when the savepoint is complete. The record says that the savepoint
existed and where the line of the job was at that moment; the user owns the savepoint and may move or delete it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    CheckpointId,
    CheckpointMetadata,
    Epoch,
    JobId,
    Line,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.filesystem import FileSystem

__all__ = ["RecordedSavepoint", "RecordedSavepoints"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"s-[0-9]{10}-[0-9]{10}")
#: Records kept. A recovery looks for the newest savepoint, and for an older one only when the newest is gone.
_KEPT = 10


@dataclass(frozen=True, slots=True)
class RecordedSavepoint:
    """A savepoint that was complete when the record was written.

    Attributes:
        job_id: the lineage.
        epoch: the epoch that took the savepoint.
        checkpoint_id: the savepoint's id; checkpoints and savepoints share one counter.
        restored_from: the reference of the checkpoint or savepoint that the epoch began with.
        reference: the savepoint's directory; checkpoints of a start that restores the savepoint refer to it so.
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
        """Orders checkpoints and savepoints: (epoch, id)."""
        return self.epoch, self.checkpoint_id


class RecordedSavepoints:
    """The recorded savepoints of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/savepoints"

    def add(self, savepoint: RecordedSavepoint) -> None:
        """Record a savepoint, and forget the oldest records."""
        name = f"s-{savepoint.epoch:010}-{savepoint.checkpoint_id:010}"
        path = f"{self._directory}/{name}"
        self._filesystem.create(path, encode_record(savepoint, path))
        old = self._names()[_KEPT:]
        for oldest in old:
            self._filesystem.remove(f"{self._directory}/{oldest}")
        if old:
            self._filesystem.sync_directories([self._directory])

    def known(self) -> Sequence[RecordedSavepoint]:
        """The recorded savepoints, the newest by (epoch, id) first; an unreadable record is logged and left out."""
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
        """The savepoints that one epoch took, the newest first.

        Raises:
            CorruptRecord: a record cannot be read. Skipping it could silently restore an older checkpoint.
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
