"""The durable record of failures, from which a restart strategy decides.

One small file per failure, created exclusively under a name that says which failure it is, so that a run, a
sensor and a second tick of the sensor that all see the same failure record it once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format.file_names import is_record
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.records import Batch, Line, RunId, Seconds, Text, encode_record, read_record
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import Entry, FileSystem

__all__ = ["DIED", "Failure", "FailureLog", "in_order"]

_log = logging.getLogger(__name__)

#: Sequence number of "the run itself died", after any failure the run recorded by itself.
DIED = 999_999
_KEPT_SERIES = 20
_SERIES = re.compile(r"s-([0-9]{10})")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a job.

    Attributes:
        run_id: the run it happened in.
        sequence: which failure of that run, from 1; :data:`DIED` when the run itself died.
        at: seconds since the epoch.
        batch: the batch in flight (planned, begun and not committed), ``None`` when there was none or it is not known.
        reason: for people.
        recoverable: ``False`` when restarting cannot help.
        kind: the class of the error, such as ``QueryFailed``; empty for a run that died.
        plan: fingerprint of what ``batch`` was to read, ``None`` when not known.
    """

    run_id: RunId
    sequence: int
    at: Seconds
    batch: Batch | None
    reason: Text
    recoverable: bool = True
    kind: Line = ""
    plan: Line | None = None


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The failures, oldest first."""
    return sorted(failures, key=lambda failure: (failure.at, failure.run_id, failure.sequence))


class FailureLog:
    """The failures of one job name, by series (see :class:`~dagster_ckpt.checkpoint.control.epochs.Claim`)."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/failures"

    def record(self, series: int, failure: Failure) -> None:
        """Record a failure; a second record of the same one changes nothing."""
        path = f"{self._directory}/s-{series:010}/{failure.run_id}-{failure.sequence:06}"
        try:
            self._filesystem.create(path, encode_record(failure, path))
        except PublishConflict:
            return

    def of(self, series: int) -> list[Failure]:
        """The failures of one series, oldest first; one that cannot be read is told and left out."""
        directory = f"{self._directory}/s-{series:010}"
        found = []
        for entry in self._filesystem.list(directory):
            if entry.name.startswith(".") or not self._is_failure(series, entry):
                continue
            run_id, _, sequence = entry.name.rpartition("-")
            path = f"{directory}/{entry.name}"
            try:
                failure = read_record(self._filesystem, path, Failure, run_id=run_id, sequence=int(sequence))
            except CorruptRecord as error:  # the job is tried once more than its strategy says
                _log.warning("A failure is not counted: %s", error.message)
                continue
            if failure is not None:
                found.append(failure)
        return in_order(found)

    @staticmethod
    def _is_failure(series: int, entry: Entry) -> bool:
        return not entry.is_directory and is_record(f"failures/s-{series:010}/{entry.name}")

    def series(self) -> list[int]:
        """The series that have failures, ascending."""
        entries = self._filesystem.list(self._directory)
        return sorted(int(match[1]) for entry in entries if (match := _SERIES.fullmatch(entry.name)))

    def forget_before(self, series: int) -> None:
        """Drop the records of all but the last few series before ``series``."""
        older = [other for other in self.series() if other < series]
        for name in (f"s-{other:010}" for other in older[:-_KEPT_SERIES]):
            for entry in self._filesystem.list(f"{self._directory}/{name}"):
                if self._is_failure(int(name[2:]), entry):
                    self._filesystem.remove(f"{self._directory}/{name}/{entry.name}")
            self._filesystem.remove_directory(f"{self._directory}/{name}")
