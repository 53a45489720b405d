"""The submission of a run: made beside other runs, and withdrawn beside its own driver.

Nothing locks the records, and a process may be paused between any two of its requests. So whatever two of them may want
at once is created exclusively: the next submission, and the outcome of each. A run settles the submission before its
own, and then makes its own. A driver claims the job, and then takes its submission. So each driver either drives
the job, or is told that nobody wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dagster_ckpt.checkpoint import Claim, JobRecords, Submission, free_job
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CorruptCheckpoint, JobAlreadyRunning, PublishConflict

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
        self._made: Submission | None = None

    def made(self) -> Submission | None:
        """The submission that stands, perhaps of an earlier process of the run; ``None`` if no submission stands."""
        self._made = self._made or self._records.submissions.of(self._driver)
        return self._made

    def make(self, series: int | None, op_config: str) -> None:
        """Record the submission; a driver of an earlier submission that has not taken the job over is not wanted then.

        Args:
            series: the series that the run continues, ``None`` for a run of a user or a schedule.
            op_config: the run configuration of the query, as JSON.

        Raises:
            JobAlreadyRunning: another run of the job is alive, or waits for its driver; or a driver has just claimed
                the job.
        """
        epochs, submissions = self._records.epochs, self._records.submissions
        before = epochs.highest()
        free_job(self._records.heartbeat, self._clock, self._wait)
        self._records.heartbeat.tell_silent(self._clock)  # to the driver, which is another process
        latest = submissions.latest()
        came = None if latest.outcome is None else latest.outcome.epoch
        if latest.submission is not None and latest.outcome is None:
            if latest.submission.after >= before:
                self._refuse_beside_waiting(self._clock.monotonic() + (_GOES if series is not None else 0.0))
            came = submissions.withdraw(latest.submission)
        if came is not None and came > before:
            raise self._taken_over(epochs.read_claim(came))
        after = epochs.highest()
        submission = Submission(self._driver, after, series, op_config, self._clock.time())
        try:
            self._made = submissions.add(submission, over=latest.number)
        except PublishConflict:
            raise JobAlreadyRunning(
                f"Another run has submitted a driver of job {self._job_name!r} at the same moment.",
                hint="Leave the job to that run, or terminate that run first. This run started nothing.",
            ) from None
        if (highest := epochs.highest()) > after:
            submissions.withdraw(self._made)
            raise self._taken_over(epochs.read_claim(highest))

    def withdraw(self) -> bool:
        """Withdraw the submission; ``False``, and the submission stands, if the driver has taken the job over."""
        made = self.made()
        return made is None or self._records.submissions.withdraw(made) is None

    def stands(self, epoch: int) -> bool:
        """Whether the driver may still come, or has just come, where ``epoch`` was the highest a moment ago."""
        made = self.made()
        return made is not None and epoch <= made.after and self._records.submissions.stands(made)

    def claim_of(self, epoch: int) -> Claim | None:
        """The claim of an epoch, ``None`` if another run's driver made it."""
        claim = self._records.epochs.read_claim(epoch) if epoch else None
        return claim if claim is not None and claim.run_id == self._driver else None

    def _taken_over(self, claim: Claim | None) -> JobAlreadyRunning:
        return JobAlreadyRunning(
            f"Run {'?' if claim is None else claim.run_id} has just taken job {self._job_name!r} over.",
            hint="Leave the job to that run, or terminate that run first. This run started nothing.",
        )

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
