"""The epochs that a run claims: one for each start, and one for its end where that of the last start is closed."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

from dagster_ckpt.checkpoint import (
    FAILING,
    CheckpointCatalog,
    Claim,
    End,
    Lease,
    ProcessIdentity,
    Submission,
    free_job,
)
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.config import LATEST, NONE, RestoreRequest
from dagster_ckpt.hosts import this_host
from dagster_ckpt.spark.events import EpochClaimed
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live import probe_working_directory, refuse_impossible

__all__ = ["Claims"]


class Claims:
    """The claims of one run.

    Args:
        job: the job.
        catalog: its checkpoints.
        run_id: the id of the run.
        clock: wall time.
        emit: called with each claimed epoch.
        series: the series that a restart belongs to, ``None`` when a user or a schedule started the run.
        submission: what this driver was submitted for; the first claim counts only if the submission still stands then.
        after: the first claim is of the epoch after this one, by default after that of the submission, or the highest.

    Attributes:
        series: of the run, once it has claimed.
    """

    def __init__(
        self,
        job: StreamingJob,
        catalog: CheckpointCatalog,
        run_id: str,
        clock: Clock,
        emit: Callable[[EpochClaimed], None],
        series: int | None,
        submission: Submission | None,
        after: int | None,
    ) -> None:
        self._job = job
        self._catalog = catalog
        self._run_id = run_id
        self._clock = clock
        self._emit = emit
        self.series = series
        self._submission, self._after = submission, submission.after if submission else after
        #: Of the next claim while the epoch of the last start is closed: the claim may have succeeded unheard.
        self._token = ""

    def take_over(self, request: RestoreRequest, wait: Callable[[float], object]) -> Claim:
        """The first claim, after checking that the job can run here and that no other run drives it.

        Args:
            request: what the run is to begin with.
            wait: waits so many seconds; raises, at once, if the run is to end.
        """
        refuse_impossible(self._job)
        # Check this directory first: a storage in the driver's memory keeps its records there.
        probe_working_directory(self._job)
        self._job.filesystem.probe()
        self._catalog.records.claim_ownership(self._job.deployment)
        self._catalog.records.reserve.keep()
        if request.restore_from not in {LATEST, NONE} and request.move is None:
            self._catalog.resolve(request.restore_from)  # Spark's start takes long, a look does not
        free_job(self._catalog.records.heartbeat, self._clock, wait)
        wait(0)  # a run that is to end claims nothing
        return self._claim(uuid.uuid4().hex, self._after, self._submission)

    def close(self, claim: Claim, reason: str) -> None:
        """Record that the start of ``claim`` has failed and that the job is to be restarted."""
        self._token = self._token or uuid.uuid4().hex
        failing = End(FAILING, reason, discarded=False, ended_at=iso(self._clock.time()))
        with contextlib.suppress(OSError):
            self._catalog.records.epochs.record_end(claim.epoch, failing)

    def open(self, claim: Claim, *, is_start: bool = True) -> Claim:
        """The claim of an epoch that can have a start and an end: the next one if that of ``claim`` is closed.

        Args:
            claim: of the run.
            is_start: whether a start follows; else the run records its end, and may use the reserve for that.

        Raises:
            Fenced: another run has taken the job over.
            StorageError: the storage failed; call again.
        """
        if self._token:
            claim = self._claim(self._token, claim.epoch, is_start=is_start)
            self._token = ""
        return claim

    def _claim(
        self, token: str, after: int | None, submission: Submission | None = None, *, is_start: bool = True
    ) -> Claim:
        """Claim the epoch after ``after``, or the next one there is; a ``submission`` must still stand then."""
        claim = self._catalog.records.epochs.claim(
            token=token,
            series=self.series,
            run_id=self._run_id,
            host=this_host(),
            pid=ProcessIdentity.current().pid,
            now=iso(self._clock.time()),
            after=after,
            is_start=is_start,
            lease=Lease.of(self._job.config),
        )
        if submission is not None:
            self._catalog.records.submissions.take(submission, claim.epoch)
        self._emit(EpochClaimed(claim.epoch))
        self.series = claim.series
        return claim
