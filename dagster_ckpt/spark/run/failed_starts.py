"""The records of a run's failed starts."""

from __future__ import annotations

import contextlib

from dagster_ckpt.checkpoint import Failure, JobRecords, Streak, dated
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CorruptCheckpoint, PoisonBatch, QueryFailed
from dagster_ckpt.spark.batches import BatchInFlight, batch_in_flight
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.query import failed_in_batch
from dagster_ckpt.spark.run.chosen import Prepared

__all__ = ["FailedStarts"]


class FailedStarts:
    """The failed starts of one run, and those that its series had before.

    Args:
        job: the job.
        run_id: the id of the run.
        clock: wall time.
    """

    def __init__(self, job: StreamingJob, run_id: str, clock: Clock) -> None:
        self._job = job
        self._run_id = run_id
        self._clock = clock
        self._failures = JobRecords(job.filesystem, job.name).failures
        self._history: list[Failure] = []

    def forget_before(self, series: int) -> None:
        """Forget the failures of earlier series."""
        self._failures.forget_before(series)

    def record_before_claim(self, series: int | None, error: Exception) -> None:
        """Record why this run could not take the job over, if it should resume the job."""
        self._failures.record_failed_start(series, self._run_id, error, self._clock.time())

    def record(self, series: int, error: Exception, prepared: Prepared | None) -> list[Failure]:
        """Put a failure on record; returns all failures of the series, those of this run last, in order.

        This run's failures are the latest, whatever the clocks say, because no other run drives the job.
        """
        in_flight = _in_flight(error, prepared)
        batch, plan = (None, None) if in_flight is None else (in_flight.batch, in_flight.plan)
        failure = Failure.of(error, self._run_id, self._clock.time(), len(self._history) + 1, batch, plan)
        self._history.append(failure)
        own = {(item.run_id, item.sequence) for item in self._history}
        before: list[Failure] = []
        # If the storage refuses writes, or a record is damaged, the failure must still be raised and counted.
        with contextlib.suppress(OSError, CorruptCheckpoint):
            self._failures.record(series, failure)
            before = [item for item in self._failures.of(series) if (item.run_id, item.sequence) not in own]
        return dated([*before, *self._history], self._clock.time())

    def poison(self, found: Streak, prepared: Prepared | None) -> PoisonBatch:
        """The error that ends the job because of one batch."""
        filesystem, before = self._job.filesystem, None
        if prepared is not None:
            before = prepared.store.retained[-1] if prepared.store.retained else prepared.restored
        return found.poison(
            self._job.name,
            storage=filesystem.url if filesystem.is_durable else None,
            before=None if before is None else before.reference,
        )


def _in_flight(error: Exception, prepared: Prepared | None) -> BatchInFlight | None:
    """The batch that was under way, ``None`` when the query had not reached a batch."""
    if prepared is None or (isinstance(error, QueryFailed) and not failed_in_batch(error)):
        return None
    return batch_in_flight(prepared.live)
