"""Submissions: which run has handed its job to a driver of its own, and what that driver is to do.

A Dagster run that only attends its driver records a submission before it starts the driver. The driver takes its order
from the record, so that no setting of the run is on a command line. A newer submission replaces the record: a driver
that appears late finds that it is no longer wanted. The record also tells that the driver outlives its Dagster run.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import CONTROL_DIR, Count, Epoch, RunId, Seconds, Text, encode_record, read_record
from dagster_ckpt.errors import Fenced
from dagster_ckpt.filesystem import FileSystem

__all__ = ["Submission", "Submissions"]


@dataclass(frozen=True, slots=True)
class Submission:
    """A driver that was submitted.

    Attributes:
        run_id: the run that the driver is for; the driver claims the job under this id.
        after: the highest epoch at the submission, 0 for a job that never ran. The driver claims the next one or none.
        series: the series that the run continues, ``None`` for a run of a user or a schedule.
        op_config: the run configuration of the query, as JSON.
        submitted_at: seconds since 1970.
    """

    run_id: RunId
    after: Count
    series: Epoch | None
    op_config: Text
    submitted_at: Seconds


class Submissions:
    """``control/submission`` of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._path = f"{job_name}/{CONTROL_DIR}/submission"

    def replace(self, submission: Submission) -> None:
        """Record a submission; the driver of an earlier one that has not claimed the job yet is no longer wanted."""
        self._filesystem.replace(self._path, encode_record(submission, self._path))

    def standing(self) -> Submission | None:
        """The submission that was made last, whether its driver has come or not; ``None`` if there is none.

        Raises:
            CorruptRecord: the record cannot be read.
            StorageError: the storage failed.
        """
        return read_record(self._filesystem, self._path, Submission)

    def of(self, run_id: str) -> Submission | None:
        """The submission of a run; ``None`` when the run has submitted no driver, or a later run has.

        Raises:
            CorruptRecord: the record cannot be read.
            StorageError: the storage failed.
        """
        found = self.standing()
        return found if found is not None and found.run_id == run_id else None

    def check(self, run_id: str) -> Submission:
        """The submission of a run, for its driver.

        Raises:
            Fenced: the run has withdrawn its submission, or a later run has submitted a driver.
            CorruptRecord: the record cannot be read.
            StorageError: the storage failed.
        """
        submission = self.of(run_id)
        if submission is None:
            raise Fenced(
                f"Run {run_id} does not want a driver any more: its submission is not in "
                f"{self._filesystem.url}/{self._path}.",
                hint="If the run still waits for this driver, make sure that the storage of the definitions is the "
                "same here and in Dagster. This driver changed no checkpoint.",
            )
        return submission

    def withdraw(self, run_id: str) -> None:
        """Withdraw the submission of a run: if its driver appears, it ends without a claim."""
        if self.of(run_id) is not None:
            self._filesystem.remove(self._path)
