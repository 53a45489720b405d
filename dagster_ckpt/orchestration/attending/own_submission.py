"""The submission of a run: made beside other runs, and withdrawn beside its own driver.

Nothing locks the records, so everybody writes first and then looks for what others have written. A driver claims the
job, and then looks for its submission. A run replaces or withdraws a submission, and then looks for a claim. So one of
the two sees what the other has done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dagster_ckpt.checkpoint import Claim, JobRecords, Submission
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning

__all__ = ["OwnSubmission"]

#: Seconds for a run that the sensor has ended to go: its process looks for that from time to time.
_GOES = 30.0
#: Seconds between two looks at such a run.
_LOOK = 2.0


class OwnSubmission:
    """The submission of one run.

    Args:
        records: of the job.
        job_name: of the job.
        driver: the run that the driver was, or is to be, submitted for.
        clock: of this host.
        wait: sleeps for so many seconds; may raise the interrupt of the run.
    """

    def __init__(
        self, records: JobRecords, job_name: str, driver: str, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        self._records, self._job_name, self._driver = records, job_name, driver
        self._clock, self._wait = clock, wait

    def make(self, series: int | None, op_config: str) -> None:
        """Record the submission; a driver of an earlier submission that has not claimed the job is no longer wanted.

        Args:
            series: the series that the run continues, ``None`` for a run of a user or a schedule.
            op_config: the run configuration of the query, as JSON.

        Raises:
            JobAlreadyRunning: another run waits for its driver, or a driver has just claimed the job.
        """
        epochs, submissions = self._records.epochs, self._records.submissions
        earlier = submissions.standing()
        if earlier is not None and earlier.after >= epochs.highest():
            self._refuse_beside_waiting(self._clock.monotonic() + (_GOES if series is not None else 0.0))
        after = epochs.highest()
        submissions.replace(Submission(self._driver, after, series, op_config, self._clock.time()))
        if (highest := epochs.highest()) <= after:
            return
        claim = epochs.read_claim(highest)
        if claim is not None and earlier is not None and claim.run_id == earlier.run_id:
            submissions.replace(earlier)  # without it nobody would attend that driver again
        else:
            submissions.withdraw(self._driver)
        raise JobAlreadyRunning(
            f"Run {'?' if claim is None else claim.run_id} has just taken job {self._job_name!r} over.",
            hint="Leave the job to that run, or terminate that run first. This run started nothing.",
        )

    def withdraw(self) -> bool:
        """Withdraw the submission; ``False``, and the submission stands, if the driver has claimed the job."""
        submission = self._records.submissions.of(self._driver)
        self._records.submissions.withdraw(self._driver)
        if self.claim_of(self._records.epochs.highest()) is None:
            return True
        if submission is not None:
            self._records.submissions.replace(submission)
        return False

    def claim_of(self, epoch: int) -> Claim | None:
        """The claim of an epoch, ``None`` if another run's driver made it."""
        claim = self._records.epochs.read_claim(epoch) if epoch else None
        return claim if claim is not None and claim.run_id == self._driver else None

    def _refuse_beside_waiting(self, until: float) -> None:
        """Make sure that no living run waits for the driver that it has submitted.

        Raises:
            JobAlreadyRunning: a run still does at ``until``, on the monotonic clock.
        """
        with suppress(CorruptCheckpoint):  # then nothing shows that a run waits
            while True:
                sign, dead = self._records.attendant.watched(self._clock, self._wait)
                if sign is None or dead is not None:
                    return
                if self._clock.monotonic() >= until:
                    raise JobAlreadyRunning(
                        f"Run {sign.run_id} has submitted a driver of job {self._job_name!r}, and waits for it to take "
                        "the job over.",
                        hint=f"Wait until it has, or terminate run {sign.run_id} first. This run changed nothing.",
                    )
                self._wait(_LOOK)
