"""The durable record of failures, from which a restart strategy decides.

One small file per failure, created exclusively under a name that says which failure it is, so that a run, a
sensor and a second tick of the sensor that all see the same failure record it once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dagster_ckpt.checkpoint.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.records import encode_record, read_record
from dagster_ckpt.errors import PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["Failure", "FailureLog"]

#: Sequence number of "the run itself died", after any failure the run recorded by itself.
DIED = 999_999
_KEPT_SERIES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a job.

    Attributes:
        run_id: the run it happened in.
        sequence: which failure of that run, from 1; :data:`DIED` when the run itself died.
        at: seconds since the epoch.
        batch: the batch in flight, ``None`` when not known.
        reason: for people.
        recoverable: ``False`` when restarting cannot help.
    """

    run_id: str
    sequence: int
    at: float
    batch: int | None
    reason: str
    recoverable: bool = True


class FailureLog:
    """The failures of one job name, by series (see :class:`~dagster_ckpt.checkpoint.epochs.Claim`)."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/failures"

    def record(self, series: int, failure: Failure) -> None:
        """Record a failure; a second record of the same one changes nothing."""
        path = f"{self._directory}/s-{series:010}/{failure.run_id}-{failure.sequence:06}"
        try:
            self._filesystem.create(path, encode_record(asdict(failure)))
        except PublishConflict:
            return

    def of(self, series: int) -> list[Failure]:
        """The failures of one series, oldest first."""
        directory = f"{self._directory}/s-{series:010}"
        found = []
        for entry in self._filesystem.list(directory):
            if entry.name.startswith("."):
                continue
            failure = read_record(self._filesystem, f"{directory}/{entry.name}", Failure)
            if failure is not None:
                found.append(failure)
        return sorted(found, key=lambda failure: (failure.at, failure.run_id, failure.sequence))

    def forget_before(self, series: int) -> None:
        """Drop the records of all but the last few series before ``series``."""
        older = sorted(
            entry.name
            for entry in self._filesystem.list(self._directory)
            if entry.name.startswith("s-") and int(entry.name[2:]) < series
        )
        for name in older[:-_KEPT_SERIES]:
            for entry in self._filesystem.list(f"{self._directory}/{name}"):
                self._filesystem.remove(f"{self._directory}/{name}/{entry.name}")
            self._filesystem.remove_directory(f"{self._directory}/{name}")
