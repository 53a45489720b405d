"""Resumes a job that is not over: waits as its restart strategy says, and counts what nobody has counted yet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint import INTERRUPTED, CheckpointCatalog, Claim, End, end_dead_epoch
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointError, Fenced, JobAlreadyRunning, NotRestarted
from dagster_ckpt.resume import EndJob, RecordFailures, Resume, RunFacts, decide, poison_of, stored_facts
from dagster_ckpt.spark import StreamingJob

__all__ = ["Launch", "Resumption"]

_log = logging.getLogger(__name__)

#: Seconds between two looks at a job that is to be resumed later.
_TURN = 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """An earlier driver of the same ``dagster-ckpt run``, which has ended.

    Attributes:
        run_id: the id of its run.
        ended_at: seconds since 1970.
    """

    run_id: str
    ended_at: float


class Resumption:
    """What a new run does about the run before it.

    Args:
        job: the job.
        catalog: its checkpoints.
        earlier: the drivers that this run replaces, oldest first; empty for a run that a user has started.
        clock: of this host.
        wait: sleeps for so many seconds.
    """

    def __init__(
        self,
        job: StreamingJob,
        catalog: CheckpointCatalog,
        earlier: Sequence[Launch],
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._job = job
        self._catalog = catalog
        self._earlier = earlier
        self._clock = clock
        self._wait = wait
        self._told: object = None

    def series(self) -> int | End | None:
        """Wait until the job may be resumed.

        Returns:
            the series that the run continues; ``None`` for a job that never ran or is over, whose run begins a new
            series, and for a job that another run drives, whose run is refused; the end that one of the earlier
            drivers has recorded.

        Raises:
            NotRestarted: the run before has died, and the restart strategy allows no restart.
            PoisonBatch: the same batch has failed too often.
            JobAlreadyRunning: another run has continued the job in the meantime.
            ForeignCheckpoint: the job belongs to another deployment.
            StorageError: the storage failed.
        """
        epochs = self._catalog.records.epochs
        while True:
            epoch = epochs.highest()
            claim = epochs.read_claim(epoch) if epoch else None
            if claim is None:
                return None
            self._catalog.records.claim_ownership(self._job.deployment)
            own = any(launch.run_id == claim.run_id for launch in self._earlier)
            if self._earlier and not own:
                raise JobAlreadyRunning(
                    f"Run {claim.run_id} has continued job {self._job.name!r} in the meantime.",
                    hint="Leave the job to that run. This run changed nothing.",
                )
            end = epochs.read_end(epoch)
            if end is not None and end.is_final:
                return end if own else None
            death = self._death(claim, end)
            if death is None:
                return None
            if self._step(claim, end, death):
                self._catalog.records.heartbeat.tell_silent(self._clock)  # to the driver, which is another process
                return claim.series

    def _death(self, claim: Claim, end: End | None) -> tuple[str | None, float] | None:
        """Why the holder is dead, and its last sign of life; ``None`` while the holder lives."""
        heartbeat, dead = self._catalog.records.heartbeat.watched(self._clock, self._wait)
        if heartbeat is None or heartbeat.epoch != claim.epoch:  # a run that has just claimed the job, or died then
            return self._catalog.records.heartbeat.judged(claim, end, self._clock)
        if heartbeat.stopped and end is None:
            dead = INTERRUPTED if heartbeat.interrupted else "it stopped and recorded no end"
        return None if dead is None else (dead, self._clock.time() - (heartbeat.silent_for(self._clock) or 0.0))

    def _step(self, claim: Claim, end: End | None, death: tuple[str | None, float]) -> bool:
        """Do the one next thing; whether the job may be resumed now."""
        facts = stored_facts(
            self._catalog,
            self._clock,
            claim,
            end,
            death,
            restart=self._job.restart,
            poison_batch_attempts=self._job.poison_batch_attempts,
            others=self._never_began(claim),
        )
        match decide(facts):
            case Resume(reason=reason):
                _log.info("Job %r is resumed: %s", self._job.name, reason)
                return True
            case RecordFailures(failures):
                for failure in failures:
                    _log.warning("%s", failure.reason)
                    self._catalog.records.failures.record(claim.series, failure)
            case EndJob(status, reason, poison):
                error: CheckpointError = NotRestarted(
                    f"Job {self._job.name!r} has failed: {reason}.",
                    hint="Mend the cause, and run the job again: it goes on from its newest checkpoint.",
                )
                if poison is not None:
                    error = found = poison_of(self._catalog, poison)
                    reason = found.in_one_line
                with contextlib.suppress(Fenced):  # a run has begun meanwhile: decide anew
                    end_dead_epoch(self._catalog, claim, self._job.config, status, reason, self._clock)
                    raise error
            case other:
                if self._told != (seen := (claim.token, len(facts.failures))):
                    self._told = seen
                    _log.warning("Job %r waits: %s", self._job.name, getattr(other, "reason", other))
                self._wait(_TURN)
        return False

    def _never_began(self, claim: Claim) -> list[RunFacts]:
        """The drivers that were started after the claim and never took the job over."""
        ids = [launch.run_id for launch in self._earlier]
        after = self._earlier[ids.index(claim.run_id) + 1 :] if claim.run_id in ids else ()
        return [
            RunFacts(launch.run_id, "FAILURE", launch.ended_at, True, claim.series, claim.run_id) for launch in after
        ]
