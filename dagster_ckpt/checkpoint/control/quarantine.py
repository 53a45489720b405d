"""Checkpoints that were found broken and passed over: records in ``control/quarantine/``.

A quarantined checkpoint is never chosen automatically, and neither retention nor cleanup counts or deletes it: the
checkpoint is evidence, and perhaps can be mended. The names of the records tell which checkpoints are quarantined, so
one listing is enough while no checkpoint is quarantined.

A start that was fenced may be late with its record. A newer start that has chosen the same checkpoint has verified that
checkpoint since: the record does not count, and the next start removes it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    CheckpointName,
    Epoch,
    Line,
    RunId,
    Text,
    encode_record,
    read_record,
)
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["FellBack", "Quarantine", "Quarantined"]

_NAME = re.compile(r"q-([0-9a-f]{32})-(chk-[1-9][0-9]{0,14})")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A checkpoint in quarantine.

    Attributes:
        checkpoint: ``{job id}/chk-N``.
        reason: what is wrong with the checkpoint.
        epoch: of the start that found it broken.
        run_id: the run of that start.
        host: the host of that run.
        quarantined_at: ISO 8601 in UTC.
    """

    checkpoint: CheckpointName
    reason: Text
    epoch: Epoch
    run_id: RunId
    host: Line
    quarantined_at: Line


class Quarantine:
    """The quarantined checkpoints of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/quarantine"
        self._epochs = Epochs(filesystem, job_name)

    def add(self, record: Quarantined) -> None:
        """Put a checkpoint into quarantine; durable on return. Of records that count, only the first is kept.

        Raises:
            StorageError: the storage failed.
        """
        path = self._path(record.checkpoint)
        try:
            self._filesystem.create(path, encode_record(record, path))
        except PublishConflict:
            if record.checkpoint not in self.names():
                self._filesystem.replace(path, encode_record(record, path))

    def lift(self, checkpoint: str) -> bool:
        """Take ``{job id}/chk-N`` out of quarantine; ``False`` when it was not there."""
        if checkpoint not in self._recorded():
            return False
        self._filesystem.remove(self._path(checkpoint))
        self._filesystem.sync_directories([self._directory])
        return True

    def lift_overruled(self) -> None:
        """Remove the record that a fenced start was late with, if there is one."""
        if (checkpoint := self._overruled(self._recorded())) is not None:
            self.lift(checkpoint)

    def names(self) -> frozenset[str]:
        """The quarantined checkpoints, each as ``{job id}/chk-N``; one listing while none is quarantined."""
        recorded = self._recorded()
        return recorded - {self._overruled(recorded)}

    def numbers(self, job_id: str) -> frozenset[int]:
        """The ids of the quarantined checkpoints of one lineage; one listing while none is quarantined."""
        own = (checkpoint for checkpoint in self.names() if checkpoint.startswith(f"{job_id}/"))
        return frozenset(int(checkpoint.rpartition("-")[2]) for checkpoint in own)

    def records(self) -> dict[str, Quarantined]:
        """Every record, by ``{job id}/chk-N``; for an unreadable one a substitute, because its name still counts."""
        found = {}
        for name in sorted(self.names()):
            try:
                record = read_record(self._filesystem, self._path(name), Quarantined, checkpoint=name)
            except CorruptRecord as error:
                record = Quarantined(name, f"Its record cannot be read: {error.message}", 1, "?", "?", "")
            if record is not None:
                found[name] = record
        return found

    def _recorded(self) -> frozenset[str]:
        matches = (_NAME.fullmatch(entry.name) for entry in self._filesystem.list(self._directory))
        return frozenset(f"{match[1]}/{match[2]}" for match in matches if match is not None)

    def _overruled(self, recorded: frozenset[str]) -> str | None:
        """The checkpoint that the newest choice is of, if the start that found it broken is older than the choice."""
        if not recorded:
            return None
        with suppress(CorruptRecord):  # a record that cannot be read counts, and a choice that cannot overrules nothing
            epoch = max((epoch for epoch, kinds in self._epochs.names().items() if "choice" in kinds), default=0)
            choice = self._epochs.read_choice(epoch) if epoch else None
            if choice is not None and choice.restored in recorded:
                path = self._path(choice.restored)
                record = read_record(self._filesystem, path, Quarantined, checkpoint=choice.restored)
                return choice.restored if record is not None and record.epoch < epoch else None
        return None

    def _path(self, checkpoint: str) -> str:
        return f"{self._directory}/q-{checkpoint.replace('/', '-')}"


@dataclass(frozen=True, slots=True)
class FellBack:
    """Tells that a job restored an older checkpoint than its newest, and what that costs.

    Attributes:
        passed_over: the newer, quarantined checkpoints, each as ``{job id}/chk-N``, the newest first.
        restored: the checkpoint that was restored.
        batch: the last batch in that checkpoint.
        last: the last batch that is known to have run, and so runs again; ``batch`` when no later batch is known.
        files: how many files the batches that run again read, ``None`` when not known.
        rows: how many rows these batches read, ``None`` when not known.
    """

    passed_over: tuple[str, ...]
    restored: str
    batch: int
    last: int
    files: int | None
    rows: int | None

    @property
    def batches(self) -> int:
        """How many batches are known to run again."""
        return self.last - self.batch

    def __str__(self) -> str:
        passed = ", ".join(name.rpartition("/")[2] for name in self.passed_over)
        told = f"{passed} {'is' if len(self.passed_over) == 1 else 'are'} broken, and it fell back to {self.restored}"
        if not self.batches:
            return f"{told} (batch {self.batch}): no batch is known to be run again"
        first = self.batch + 1
        which = f"batch {first} is" if self.batches == 1 else f"batches {first} to {self.last} are"
        more = [f"{count} {what}" for count, what in ((self.files, "files"), (self.rows, "rows")) if count is not None]
        size = ", ".join([f"{self.batches} {'batch' if self.batches == 1 else 'batches'}", *more])
        return f"{told} (batch {self.batch}): {which} run again ({size})"
