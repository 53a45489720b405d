"""Records in ``control/savepoints/`` of the savepoints that a job took. A recovery may restore them, if configured so.

The epoch that took a savepoint writes the record when the savepoint is complete. The record says that the savepoint
existed and where the line of the job was at that moment; the user owns the savepoint and may move or delete it.

A record of another kind gives a savepoint its name, at the moment before the savepoint becomes complete. Each name has
generations: the record of the next one is created exclusively, once the savepoint of the one before is gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    CheckpointId,
    CheckpointMetadata,
    Epoch,
    JobId,
    Line,
    SavepointName,
    Token,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord, PublishConflict, SavepointFailed
from dagster_ckpt.filesystem import FileSystem

__all__ = ["NO_LABEL", "Label", "NamedSavepoint", "RecordedSavepoint", "RecordedSavepoints", "name_taken"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"s-[0-9]{10}-[0-9]{10}")
_GIVEN = re.compile(r"n-([0-9]{6})-([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
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


@dataclass(frozen=True, slots=True)
class Label:
    """What a user calls a savepoint.

    Attributes:
        name: unique in the job; ``restore_from: savepoint:NAME`` goes back to the savepoint. ``None`` for none.
        note: one line about the savepoint.
        series: the savepoints of which this is the next one, for their history; ``None`` for none.
    """

    name: str | None = None
    note: str = ""
    series: str | None = None


NO_LABEL = Label()


@dataclass(frozen=True, slots=True)
class NamedSavepoint:
    """A savepoint that a user gave a name. While the savepoint is not there, nothing has the name.

    Attributes:
        name: unique in the job.
        reference: the savepoint's directory.
        note: what the user wrote about the savepoint.
        series: the savepoints of whose history this is one, ``None`` for none.
        job_id: the lineage.
        epoch: the epoch of the state.
        checkpoint_id: the id of the state.
        named_at: ISO 8601 in UTC.
        generation: how often the name was given, this time included.
        request: the token of the request that asked for the savepoint; ``None`` for a copy, and in a record of a
            release that did not tell it.
    """

    name: SavepointName
    reference: Line
    note: Line
    series: SavepointName | None
    job_id: JobId
    epoch: Epoch
    checkpoint_id: CheckpointId
    named_at: Line
    generation: int = 1
    request: Token | None = None

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

    def give(self, named: NamedSavepoint, *, over: NamedSavepoint | None) -> None:
        """Give a savepoint its name; durable on return.

        Args:
            named: the record; its generation is set here.
            over: the savepoint that had the name, and is gone or of the same request; ``None`` if none had.

        Raises:
            SavepointFailed: another savepoint has just been given the name.
        """
        generation = 1 if over is None else over.generation + 1
        path = self._path_of(named.name, generation)
        try:
            self._filesystem.create(path, encode_record(replace(named, generation=generation), path))
        except PublishConflict:
            raise name_taken(named.name, "another savepoint, which was asked for at the same time") from None
        if over is not None:
            self._filesystem.remove(self._path_of(over.name, over.generation))

    def named(self, name: str) -> NamedSavepoint | None:
        """What was given a name last, whether it is still there or not.

        Raises:
            CorruptRecord: the record cannot be read.
        """
        generation = self._generations().get(name)
        return None if generation is None else self._read_named(name, generation)

    def all_named(self) -> Sequence[NamedSavepoint]:
        """What has or had a name, the oldest first; an unreadable record is logged and left out."""
        found = []
        for name, generation in self._generations().items():
            try:
                named = self._read_named(name, generation)
            except CorruptRecord as error:
                _log.warning("The name of a savepoint is passed over: %s", error.message)
                continue
            if named is not None:
                found.append(named)
        return sorted(found, key=lambda named: (named.named_at, named.name))

    def forget_name(self, named: NamedSavepoint) -> None:
        """Remove the record of a savepoint that is gone."""
        self._filesystem.remove(self._path_of(named.name, named.generation))

    def _generations(self) -> dict[str, int]:
        """The newest generation of each name."""
        found: dict[str, int] = {}
        for entry in self._filesystem.list(self._directory):
            if match := _GIVEN.fullmatch(entry.name):
                found[match[2]] = max(found.get(match[2], 0), int(match[1]))
        return found

    def _read_named(self, name: str, generation: int) -> NamedSavepoint | None:
        path = self._path_of(name, generation)
        return read_record(self._filesystem, path, NamedSavepoint, name=name, generation=generation)

    def _path_of(self, name: str, generation: int) -> str:
        return f"{self._directory}/n-{generation:06}-{name}"

    def _read(self, name: str) -> RecordedSavepoint | None:
        epoch, number = map(int, name.split("-")[1:])
        path = f"{self._directory}/{name}"
        return read_record(self._filesystem, path, RecordedSavepoint, epoch=epoch, checkpoint_id=number)

    def _names(self) -> list[str]:
        names = [entry.name for entry in self._filesystem.list(self._directory)]
        return sorted((name for name in names if _NAME.fullmatch(name)), reverse=True)


def name_taken(name: str, by: str) -> SavepointFailed:
    """The error for a savepoint whose name another savepoint has."""
    return SavepointFailed(
        f"The name {name!r} is that of {by}.",
        hint="Choose another name, or delete that savepoint with `dagster-ckpt dispose` first.",
    )
