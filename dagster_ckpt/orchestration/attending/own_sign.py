"""The sign of life of a run that attends a driver: ``control/attendant``, which one run writes at a time."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.checkpoint import Claim, Heartbeat, JobRecords, Lease
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning, StorageError

__all__ = ["OwnSign"]


class OwnSign:
    """The sign of life of one run, whose process shows on its own host that it is gone; a bucket gets it seldom.

    Args:
        records: of the job.
        job_name: of the job.
        run_id: of this Dagster run.
        clock: of this host.
    """

    def __init__(self, records: JobRecords, job_name: str, run_id: str, clock: Clock) -> None:
        self._records, self._job_name, self._run_id, self._clock = records, job_name, run_id, clock
        self._last: Heartbeat | None = None
        #: On the monotonic clock: when the next sign is due.
        self._due_at = clock.monotonic()

    @property
    def lease(self) -> Lease:
        """That the last sign has announced: whoever waits for the next sign waits as long."""
        return Lease() if self._last is None else self._last.lease

    def show(self, claim: Claim | None, lease: Lease) -> None:
        """Leave a sign of life if one is due: by the interval of the last one, or because the lease is another one.

        Args:
            claim: of the driver, ``None`` before its first. Until then signs are as frequent as any, because another
                run may wait for this one to be gone.
            lease: of the driver.

        Raises:
            JobAlreadyRunning: another run has taken over, while this one gave no sign of life.
            StorageError: the storage failed.
        """
        own = lease if claim is None else lease.of_attendant(self._records.filesystem)
        if own == self.lease and self._clock.monotonic() < self._due_at:
            return
        self._check_sole()
        self._write(claim, own)

    def stop(self, claim: Claim | None, *, interrupted: bool) -> None:
        """Leave the last sign of life, if there was one and no other run attends the driver by now.

        Args:
            claim: as for :meth:`show`.
            interrupted: the run was told to end, or has broken off; else Dagster hears from the run how the driver has
                ended.
        """
        if self._last is None:
            return
        try:
            self._check_sole()
            self._write(claim, self.lease, stopped=True, interrupted=interrupted)
        except (JobAlreadyRunning, StorageError, OSError):
            return

    def _check_sole(self) -> None:
        found = self._records.attendant.read() if self._last is not None else None
        if found is not None and found.run_id != self._run_id:
            raise JobAlreadyRunning(
                f"Run {found.run_id} attends the driver of job {self._job_name!r} now.",
                hint="Leave the job to that run. Its driver has gone on all the time.",
            )

    def _write(self, claim: Claim | None, lease: Lease, *, stopped: bool = False, interrupted: bool = False) -> None:
        began, epoch = self._clock.monotonic(), 1 if claim is None else claim.epoch
        sign = Heartbeat.following(self._last, epoch, self._run_id, lease, self._clock)
        sign = replace(sign, stopped=stopped, interrupted=interrupted)
        self._records.attendant.write(sign)
        self._last, self._due_at = sign, began + lease.interval
