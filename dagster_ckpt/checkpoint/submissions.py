"""Submissions: which run has handed its job to a driver of its own, and what that driver is to do.

A Dagster run that only attends its driver records a submission before it starts the driver. The driver takes its order
from the record, so that no setting of the run is on a command line. The record also tells that the driver outlives its
Dagster run.

Submissions are numbered, and the newest counts: a driver of an older one that appears late is no longer wanted. Each
is created exclusively, so one of two runs submits. Its outcome is created exclusively, too: the driver has taken the
job over, or is not wanted any more, and the first outcome counts. Only a newer submission has the records of older ones
removed. So whoever was paused, and a request that arrives late, changes nothing that a newer run has recorded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    Count,
    Epoch,
    Moment,
    RunId,
    Text,
    corrupt,
    encode_record,
    read_record,
    record_in,
)
from dagster_ckpt.errors import Fenced, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["LatestSubmission", "Submission", "Submissions"]

_NAME = re.compile(r"s-([0-9]{10})(?:\.outcome)?")
#: The last number that a name has room for.
_LAST = 10**10 - 1


@dataclass(frozen=True, slots=True)
class Submission:
    """A driver that was submitted.

    Attributes:
        run_id: the run that the driver is for; the driver claims the job under this id.
        after: the highest epoch at the submission, 0 for a job that never ran. The driver claims the next one or none.
        series: the series that the run continues, ``None`` for a run of a user or a schedule.
        op_config: the run configuration of the query, as JSON.
        submitted_at: seconds since 1970.
        number: rises by one with every submission of the job; 0 for a record of the time when they had none.
    """

    run_id: RunId
    after: Count
    series: Epoch | None
    op_config: Text
    submitted_at: Moment
    number: Count = 0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What has become of a submission.

    Attributes:
        epoch: that the driver has claimed, ``None`` if no driver is wanted any more.
    """

    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class LatestSubmission:
    """The submission that was made last.

    Attributes:
        number: of the submission, 0 before the first.
        submission: the record of the submission, ``None`` without a record.
        outcome: what has become of it, ``None`` while its driver may come.
    """

    number: int
    submission: Submission | None
    outcome: _Outcome | None

    @property
    def standing(self) -> Submission | None:
        """The submission, whether its driver has come or not; ``None`` if it was withdrawn."""
        return None if self.outcome is not None and self.outcome.epoch is None else self.submission


class Submissions:
    """``control/submissions/`` of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._control = f"{job_name}/{CONTROL_DIR}"
        self._directory = f"{self._control}/submissions"

    def latest(self) -> LatestSubmission:
        """The submission that was made last.

        Raises:
            CorruptRecord: a record cannot be read.
            StorageError: the storage failed.
        """
        found = self._filesystem.read_listed(self._newest_names, lambda name: f"{self._directory}/{name}")
        number = max(map(_number, found), default=0)
        path, outcome = self._path(number), self._path(number, ".outcome")
        # One submission at a time was on record, and replaced, when they had no numbers.
        data = found.get(path.rpartition("/")[2]) if number else self._filesystem.read_if_there(path)
        ended = found.get(outcome.rpartition("/")[2])
        return LatestSubmission(
            number,
            None if data is None else record_in(data, self._filesystem, path, Submission, number=number),
            None if ended is None else record_in(ended, self._filesystem, outcome, _Outcome),
        )

    def of(self, run_id: str) -> Submission | None:
        """The submission of a run; ``None`` when the run wants no driver, or a later run has submitted one.

        Raises:
            CorruptRecord: a record cannot be read.
            StorageError: the storage failed.
        """
        found = self.latest().standing
        return found if found is not None and found.run_id == run_id else None

    def check(self, run_id: str) -> Submission:
        """The submission of a run, for its driver.

        Raises:
            Fenced: the run has withdrawn its submission, or a later run has submitted a driver.
            CorruptRecord: a record cannot be read.
            StorageError: the storage failed.
        """
        submission = self.of(run_id)
        if submission is None:
            raise self._unwanted(run_id)
        return submission

    def add(self, submission: Submission, over: int) -> Submission:
        """Record a submission after that with the number ``over``; returns the submission with its number.

        Raises:
            PublishConflict: another run has submitted a driver meanwhile.
        """
        if over >= _LAST:
            raise corrupt(self._filesystem, self._path(over, ".outcome"), "no driver was submitted that often")
        numbered = replace(submission, number=over + 1)
        path = self._path(numbered.number)
        self._filesystem.create(path, encode_record(numbered, path))
        with contextlib.suppress(OSError):  # older records do no harm, and the next submission has them removed
            self._forget_before(numbered.number)
        return numbered

    def take(self, submission: Submission, epoch: int) -> None:
        """Record that the driver of a submission has claimed ``epoch``.

        Raises:
            Fenced: the driver is not wanted any more; it starts nothing.
            CorruptRecord: a record cannot be read.
            StorageError: the storage failed.
        """
        self._settle(submission, epoch)
        # Look last: an outcome before this one may have been removed, but then a newer submission is there.
        if self.of(submission.run_id) != submission:
            raise self._unwanted(submission.run_id)

    def withdraw(self, submission: Submission) -> int | None:
        """Want no driver for a submission any more, unless its driver has come.

        Returns:
            the epoch that the driver had claimed before; ``None`` if it ends without a start when it appears.
        """
        return self._settle(submission, None)

    def stands(self, submission: Submission) -> bool:
        """Whether a submission was not withdrawn, for who looks again and again: two reads, and no listing."""
        outcome = read_record(self._filesystem, self._path(submission.number, ".outcome"), _Outcome)
        if outcome is not None:
            return outcome.epoch is not None
        # A newer submission is made over an outcome, which is removed after the record.
        return self._filesystem.read_if_there(self._path(submission.number)) is not None

    def _settle(self, submission: Submission, epoch: int | None) -> int | None:
        """The epoch of the first outcome."""
        path = self._path(submission.number, ".outcome")
        try:
            self._filesystem.create(path, encode_record(_Outcome(epoch), path))
        except PublishConflict:
            found = read_record(self._filesystem, path, _Outcome)
            return None if found is None else found.epoch
        return epoch

    def _forget_before(self, number: int) -> None:
        self._filesystem.remove(self._path(0))
        for name in sorted(self._names()):
            if _number(name) < number:
                self._filesystem.remove(f"{self._directory}/{name}")

    def _newest_names(self) -> Sequence[str]:
        names = self._names()
        newest = max(map(_number, names), default=0)
        return sorted(name for name in names if _number(name) == newest)

    def _names(self) -> Sequence[str]:
        entries = self._filesystem.list(self._directory)
        return [entry.name for entry in entries if not entry.is_directory and _NAME.fullmatch(entry.name)]

    def _unwanted(self, run_id: str) -> Fenced:
        return Fenced(
            f"Run {run_id} does not want a driver any more: its submission does not stand in "
            f"{self._filesystem.url}/{self._directory}.",
            hint="If the run still waits for this driver, make sure that the storage of the definitions is the same "
            "here and in Dagster, and the release of dagster-ckpt, too. This driver changed no checkpoint.",
        )

    def _path(self, number: int, suffix: str = "") -> str:
        if not number and not suffix:
            return f"{self._control}/submission"
        return f"{self._directory}/s-{number:010}{suffix}"


def _number(name: str) -> int:
    return int(name[2:12])
