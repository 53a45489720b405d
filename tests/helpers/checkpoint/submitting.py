"""A driver of its own, as a run submits it when no other run does."""

from __future__ import annotations

from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.submissions import Submission


def submitted(records: JobRecords, submission: Submission) -> Submission:
    """Record a submission after the newest one; returns the submission with its number."""
    return records.submissions.add(submission, over=records.submissions.latest().number)
