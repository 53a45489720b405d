"""Checkpoints that a user wants kept: records in ``control/pins/``, checked before any checkpoint is deleted.

A pin belongs to the user, not to an epoch: a pin outlives runs, and the end of the job. The names of the records tell
which checkpoints are pinned, so one listing is enough to know. A checkpoint may have several pins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import CONTROL_DIR, CheckpointName, Line, Text, Token, encode_record, read_record
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.filesystem import FileSystem

__all__ = ["Pin", "Pins"]

_NAME = re.compile(r"p-([0-9a-f]{32})-(chk-[1-9][0-9]{0,14})-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin of one checkpoint.

    Attributes:
        checkpoint: ``{job id}/chk-N``.
        reason: why the user pinned the checkpoint; may be empty.
        pinned_at: ISO 8601 in UTC.
        token: 32 hex digits, unique, so that a user who takes back a pin removes no pin of another user.
    """

    checkpoint: CheckpointName
    reason: Text
    pinned_at: Line
    token: Token

    @classmethod
    def alone(cls, job_id: str, checkpoint_id: int, reason: str, pinned_at: str) -> Pin:
        """The one pin of a savepoint: only one process at a time can create its record.

        Savepoints and checkpoints of a lineage share one counter.
        """
        return cls(f"{job_id}/chk-{checkpoint_id}", reason, pinned_at, job_id)


class Pins:
    """The pins of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/pins"

    def add(self, pin: Pin) -> None:
        """Record a pin."""
        path = f"{self._directory}/{_name(pin)}"
        self._filesystem.create(path, encode_record(pin, path))

    def remove(self, pin: Pin) -> None:
        """Remove one pin; no error when it is not there."""
        self._remove({_name(pin)})

    def clear(self, checkpoint: str) -> None:
        """Remove every pin of ``{job id}/chk-N``."""
        self._remove({name for name, pinned in self._names().items() if pinned == checkpoint})

    def pinned(self) -> frozenset[str]:
        """The pinned checkpoints, each as ``{job id}/chk-N``; one listing."""
        return frozenset(self._names().values())

    def numbers(self, job_id: str) -> frozenset[int]:
        """The ids of the pinned checkpoints of one lineage; one listing."""
        own = (checkpoint for checkpoint in self.pinned() if checkpoint.startswith(f"{job_id}/"))
        return frozenset(int(checkpoint.rpartition("-")[2]) for checkpoint in own)

    def reasons(self) -> dict[str, str]:
        """Why each checkpoint is pinned, by ``{job id}/chk-N``, the oldest reason first; reads every record."""
        found: dict[str, list[Pin]] = {}
        for pin in self.all():
            found.setdefault(pin.checkpoint, []).append(pin)
        return {
            checkpoint: "; ".join(pin.reason for pin in sorted(pins, key=lambda pin: pin.pinned_at) if pin.reason)
            for checkpoint, pins in found.items()
        }

    def all(self) -> Iterator[Pin]:
        """Every pin; reads every record."""
        for name, checkpoint in self._names().items():
            path = f"{self._directory}/{name}"
            try:
                pin = read_record(self._filesystem, path, Pin, checkpoint=checkpoint, token=name[-32:])
            except CorruptRecord:  # the name of the record is enough to pin
                pin = Pin(checkpoint, "the record of this pin cannot be read", "", name[-32:])
            if pin is not None:
                yield pin

    def held(self, pin: Pin) -> Pin | None:
        """The pin that is there under the name of ``pin``; the same checkpoint may have pins of users, too."""
        return next((each for each in self.all() if _name(each) == _name(pin)), None)

    def _names(self) -> dict[str, str]:
        names = [entry.name for entry in self._filesystem.list(self._directory)]
        return {name: f"{match[1]}/{match[2]}" for name in names if (match := _NAME.fullmatch(name)) is not None}

    def _remove(self, names: set[str]) -> None:
        for name in sorted(names):
            self._filesystem.remove(f"{self._directory}/{name}")
        self._filesystem.sync_directories([self._directory])


def _name(pin: Pin) -> str:
    return f"p-{pin.checkpoint.replace('/', '-')}-{pin.token}"
