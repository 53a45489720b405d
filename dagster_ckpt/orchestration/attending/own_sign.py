"""The sign of life of a run that attends a driver: ``control/attendant``, which one run writes at a time."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.checkpoint import Heartbeat, JobRecords, Lease
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning, StorageError

__all__ = ["OwnSign"]


class OwnSign:
    """The sign of life of one run.

    Args:
        records: of the job.
        job_name: of the job.
        run_id: of this Dagster run.
        clock: of this host.
    """

    def __init__(self, records: JobRecords, job_name: str, run_id: str, clock: Clock) -> None:
        self._records, self._job_name, self._run_id, self._clock = records, job_name, run_id, clock
        self._last: Heartbeat | None = None

    @property
    def lease(self) -> Lease:
        """That the last sign has announced: whoever waits for the next sign waits as long."""
        return Lease() if self._last is None else self._last.lease

    def check_sole(self) -> None:
        """Make sure that no other run attends the driver.

        Raises:
            JobAlreadyRunning: another run has taken over, while this one gave no sign of life.
            StorageError: the storage failed.
        """
        found = self._records.attendant.read() if self._last is not None else None
        if found is not None and found.run_id != self._run_id:
            raise JobAlreadyRunning(
                f"Run {found.run_id} attends the driver of job {self._job_name!r} now.",
                hint="Leave the job to that run. Its driver has gone on all the time.",
            )

    def show(self, epoch: int, lease: Lease) -> None:
        """Leave a sign of life.

        Args:
            epoch: of the driver, 1 before its first claim.
            lease: of the driver: signs come as often as the looks at it.

        Raises:
            StorageError: the storage failed.
        """
        self._write(epoch, lease)

    def stop(self, epoch: int, *, interrupted: bool) -> None:
        """Leave the last sign of life, if there was one and no other run attends the driver by now.

        Args:
            epoch: as for :meth:`show`.
            interrupted: the run was told to end; else Dagster hears from the run how the driver has ended.
        """
        if self._last is None:
            return
        try:
            self.check_sole()
            self._write(epoch, self.lease, stopped=True, interrupted=interrupted)
        except (JobAlreadyRunning, StorageError, OSError):
            return

    def _write(self, epoch: int, lease: Lease, *, stopped: bool = False, interrupted: bool = False) -> None:
        sign = Heartbeat.following(self._last, epoch, self._run_id, lease, self._clock)
        sign = replace(sign, stopped=stopped, interrupted=interrupted)
        self._records.attendant.write(sign)
        self._last = sign
