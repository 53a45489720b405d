"""A run of a streaming job: starts of its query, one after another, under the restart strategy and one owner."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    Claim,
    End,
    Heart,
    Lease,
    Streak,
    Submission,
    close_earlier,
    discard_within,
    finish_deletions,
    reason_of,
    restart_after,
    so_far,
    store_that_ends,
)
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.config import JobStatus, RestoreRequest
from dagster_ckpt.errors import (
    CheckpointError,
    CorruptCheckpoint,
    DriverLost,
    Fenced,
    InvalidConfiguration,
    MustStop,
    NotRestarted,
    QueryNotBuilt,
    RestoreRefused,
)
from dagster_ckpt.filesystem import Stopped, local_failure
from dagster_ckpt.spark.claims import Claims
from dagster_ckpt.spark.events import (
    CheckpointCompleted,
    CheckpointDue,
    CheckpointFailed,
    CheckpointsDiscarded,
    Event,
    Restarting,
    SettingsIgnored,
    SparkStarted,
    StartTraced,
)
from dagster_ckpt.spark.job import RunResult, StreamingJob
from dagster_ckpt.spark.jvm import as_loss, let_go_of_lost_jvm, refuse_lost, start_beside
from dagster_ckpt.spark.metrics import measured
from dagster_ckpt.spark.query import driver_jvm_pid, refuse_running_tasks
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.run.chosen import Prepared
from dagster_ckpt.spark.run.failed_starts import FailedStarts
from dagster_ckpt.spark.run.start import Start
from dagster_ckpt.spark.run.watchdog import Watchdog
from dagster_ckpt.spark.start_tracer import Earlier, StartTracer
from dagster_ckpt.spark.upgrading import Upgrading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StreamingRun"]

_log = logging.getLogger(__name__)
_RUN_ID = re.compile(r"[0-9a-f](?:-?[0-9a-f]){31}")


@dataclass(slots=True)
class _State:
    """What is kept from one start of a run to the next."""

    request: RestoreRequest
    prepared: Prepared | None = None
    ignored: set[str] = field(default_factory=set)


class StreamingRun:
    """One run of a job, from the claim of its first epoch to its end.

    :meth:`run` works on the calling thread alone, which may block in the JVM; :meth:`cancel` and :meth:`interrupt` may
    be called from any other thread.

    Args:
        job: the job.
        run_id: the id of the Dagster run, or any other unique id of 32 hex digits, dashes allowed.
        request: what to begin with.
        series: the series that a restart belongs to, ``None`` when a user or a schedule started the run.
        clock: wall and monotonic time.
        emit: called with each event.
        worker: the process of the Dagster run, if this process is a step process below it.
        earlier: what happened before this run, for the trace of its first start.
        submission: what this driver was submitted for; its first claim counts only if the submission still stands then.
        after: the first claim is of the epoch after this one, by default after that of the submission, or the highest.

    Raises:
        InvalidConfiguration: ``run_id`` is not such an id.
    """

    def __init__(
        self,
        job: StreamingJob,
        *,
        run_id: str,
        request: RestoreRequest,
        series: int | None,
        clock: Clock,
        emit: Callable[[Event], None],
        worker: int | None = None,
        earlier: Earlier | None = None,
        submission: Submission | None = None,
        after: int | None = None,
    ) -> None:
        self._worker, self._job = worker, job
        if _RUN_ID.fullmatch(run_id) is None:
            raise InvalidConfiguration(
                f"{run_id[:80]!r} cannot be the id of a run: it becomes part of the names of records.",
                hint="Use 32 hex digits, with dashes or without, as uuid.uuid4() gives them.",
            )
        self._run_id = run_id
        self._clock = clock
        self._emit = measured(job.name, emit)
        self._cancel = Flag()
        self._is_interrupted = False
        self._catalog = CheckpointCatalog(job.filesystem, job.name)
        self._failures = FailedStarts(job, run_id, clock)
        self._upgrading = Upgrading(job, self._catalog, clock)
        self._claims = Claims(job, self._catalog, run_id, clock, self._emit, series, submission, after)
        self._state = _State(request)
        self._spark: SparkSession | None = None
        self._tracer = StartTracer(clock, earlier)
        #: Waits for the JVM that is started beside the claim.
        self._jvm: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Stop the query and end the run as canceled; returns at once."""
        self._cancel.set()

    def interrupt(self) -> None:
        """Stop the query and record no end, as if this process had died; returns at once.

        So the job is not over: a later run finds this run dead and resumes the job.
        """
        self._is_interrupted = True
        self._cancel.set()

    def run(self) -> RunResult:
        """Drive the job to its end.

        A run that was interrupted returns as if it was canceled. A run that is to end before it has taken the job over
        records nothing: the job is as it was.

        Raises:
            JobAlreadyRunning: another run of the job is alive.
            Fenced: a newer run has taken the job over.
            CheckpointError: the job failed and is not restarted within this run.
        """
        self._tracer.begin("claim")
        self._jvm = start_beside(self._job.start_jvm, self._tracer.beside("JVM"))
        try:
            claim = self._claims.take_over(self._state.request, self._wait)
        except Stopped:
            _log.info("The run of job %r ends before it has taken the job over", self._job.name)
            return RunResult(JobStatus.CANCELED, None)
        except Exception as error:
            self._failures.record_before_claim(self._claims.series, error)
            raise
        heart = Heart(
            self._catalog.records.heartbeat,
            self._clock,
            epoch=claim.epoch,
            run_id=self._run_id,
            worker=self._worker,
            lease=Lease.of(self._job.config),
        )
        returned = False
        try:
            heart.start()
            while True:
                result = self._start(claim, heart)
                while result is None:
                    try:
                        self._tracer.begin("claim")
                        # If another run has taken the job over while this one waited, the job is that run's.
                        claim = self._claims.open(claim)
                        heart.hold(claim.epoch)
                        break
                    except Fenced:
                        raise
                    except Exception as error:  # at a restart, while the storage is full or down
                        result = self._fail(claim, error)
                if result is not None:
                    returned = True
                    return result
        finally:
            # A run that fails while it is interrupted has failed.
            heart.stop(interrupted=returned and self._is_interrupted)

    def _wait(self, seconds: float) -> None:
        """Wait before the first claim; raises :class:`Stopped` if the run is to end: it has not changed the job yet."""
        if self._cancel.wait(seconds):
            raise Stopped

    def _start(self, claim: Claim, heart: Heart) -> RunResult | None:
        """Make one start of the query; ``None`` when the start failed and the next one is due."""
        self._state.prepared = None
        tracer = self._tracer
        start: Start | None = None
        watchdog = Watchdog(self._job.name, heart, self._cancel)
        try:
            if (over := close_earlier(self._catalog, claim, self._clock)) is not None:
                _log.warning("Job %r is over, and is not resumed: %s: %s", self._job.name, over.status, over.reason)
                return RunResult.of_job_over(self._catalog, over)
            self._failures.forget_before(claim.series)
            finish_deletions(self._catalog, claim.epoch)
            tracer.hold(claim, self._catalog.records.starts, lambda trace: self._emit(StartTraced(trace)))
            tracer.begin("session")
            spark = self._start_spark()
            if self._cancel.is_set():
                return self._end(claim, JobStatus.CANCELED, "canceled before the query started")
            if (pid := driver_jvm_pid(spark)) is not None:
                # Only a JVM that serves this process alone gets a watchdog, which would end the JVM.
                tracer.begin("watchdog")
                watchdog.arm(spark, pid)
                heart.on_beat = watchdog.renew
                heart.add_process(pid)
            begun, tell = self._upgrading.begin(self._state.request, claim), partial(self._tell, heart)
            start = Start(begun.job, claim, spark, self._clock, tell, tracer, begun.code, begun.why)
            prepared = self._state.prepared = start.prepare(begun.request, self._cancel)
            # The choice is now on record: later starts resume from it.
            self._state.request = RestoreRequest()
            self._tell_ignored(prepared.ignored)
            run = partial(start.run, prepared)
            ended = self._upgrading.in_time(run, self._cancel, prepared.choice.code, prepared.live, prepared.after)
        except (Fenced, NotRestarted):
            raise
        except Exception as error:
            tracer.finish(committed=False)
            with contextlib.suppress(OSError):
                # A fenced run must not report anything about the job.
                self._catalog.records.epochs.check(claim.epoch)
            if self._cancel.is_set():
                _log.info("The job was canceled while it failed: %s", error)
                return self._end(claim, JobStatus.CANCELED, "canceled while it failed")
            if (named := local_failure(error, self._job.working_directory)) is not None:
                named.__cause__ = error
            result = self._fail(claim, named or error)
            if result is None and start is not None:
                start.forget()
            return result
        finally:
            watchdog.disarm()
            tracer.close()
        if ended is None and not self._cancel.is_set():
            # No failure of the job: it goes on whatever its restart strategy says.
            self._tracer = StartTracer(self._clock)
            self._tracer.begin("decided")
            return self._again(claim, "The new version was late, and completed a checkpoint while it was stopped.")
        if ended is None:
            return self._end(claim, JobStatus.CANCELED, "canceled")
        return self._end(claim, JobStatus.FINISHED, ended.reason, on_record=ended.on_record, savepoint=ended.savepoint)

    def _tell(self, heart: Heart, event: Event) -> None:
        if isinstance(event, CheckpointCompleted):
            self._upgrading.completed()
            heart.completed(event.metadata.reference, event.metadata.epoch, is_durable=self._job.filesystem.is_durable)
        elif isinstance(event, CheckpointDue):
            heart.checkpoint_due()
        elif isinstance(event, CheckpointFailed):
            heart.checkpoint_failed(event.number, event.reason, event.consecutive)
        self._emit(event)

    def _start_spark(self) -> SparkSession:
        began = self._clock.monotonic()
        self._jvm()
        let_go_of_lost_jvm()
        self._spark = self._job.session()
        refuse_lost(self._spark, self._job.name)
        refuse_running_tasks(self._spark, self._job.url)
        release_of(self._spark.version)  # another release may mean something else by its files
        self._emit(SparkStarted(self._clock.monotonic() - began, self._spark.sparkContext.uiWebUrl))
        return self._spark

    def _tell_ignored(self, reasons: Sequence[str]) -> None:
        if new := [reason for reason in reasons if reason not in self._state.ignored]:
            self._state.ignored.update(new)
            self._emit(SettingsIgnored(new))

    def _end(
        self,
        claim: Claim,
        status: JobStatus,
        reason: str,
        *,
        refused: bool = False,
        on_record: Callable[[], None] = lambda: None,
        savepoint: str | None = None,
    ) -> RunResult:
        """Record the end and clean up as the policy says; a refused restore has changed nothing and deletes nothing."""
        prepared, config = self._state.prepared, self._job.config
        if status is JobStatus.CANCELED and self._is_interrupted:
            _log.warning("The run is interrupted, and nobody has canceled job %r: it is to be resumed", self._job.name)
            return RunResult(status, None)
        keeps = prepared is None or refused or self._upgrading.back[0] is not None
        discards = not keeps and config.discards(status)
        claim = self._claims.open(claim, is_start=False)
        self._catalog.records.epochs.check(claim.epoch)
        end = End(status.value, reason, discards, iso(self._clock.time()), *self._upgrading.back, savepoint)
        if not self._catalog.records.epochs.record_own_end(claim.epoch, end):
            discards = False  # another end is on record: whoever ends the job does the cleanup
        on_record()
        if prepared is None:
            return RunResult(status, None)
        store = prepared.store
        if discards and store.epoch < claim.epoch:
            store = store_that_ends(self._catalog, claim, prepared.choice, config, self._clock)
        if not keeps:
            why = f"{status.value}: {reason}, and the cleanup policy deletes"
            discarded = discard_within(config.timeout.total_seconds(), store, why) if discards else ()
            self._emit(CheckpointsDiscarded(discarded, store.retained))
        if discards or status is JobStatus.FINISHED:
            # After a cancellation the live location stays, so that the next start can salvage from it.
            shutil.rmtree(prepared.directory, ignore_errors=True)
            prepared.live.remove()
        return RunResult(status, None if discards else next(reversed(store.retained), None))

    def _fail(self, claim: Claim, error: Exception) -> RunResult | None:
        """Record a failure, and wait for a restart within this run; raise if there is none."""
        self._tracer = StartTracer(self._clock)
        self._tracer.begin("decided")
        error = as_loss(error, self._spark, self._job.name)
        if isinstance(error, DriverLost):
            self._spark = None  # the lost session must not explain the errors of the next start
        failures = self._failures.record(claim.series, error, self._state.prepared)
        found = Streak.of(failures)
        decision = restart_after(failures, self._job.restart, self._job.name)
        reason = reason_of(error)
        is_poison = found is not None and found.ends_loop(self._job.poison_batch_attempts)
        final: CheckpointError | None = self._upgrading.given_up(error, retried=decision.allowed and not is_poison)
        if final is None and found is not None and is_poison:
            final = self._failures.poison(found, self._state.prepared)
        if final is not None:
            with contextlib.suppress(OSError):
                self._end(claim, JobStatus.FAILED, final.in_one_line)
            raise final from error
        if not decision.allowed:
            if isinstance(error, QueryNotBuilt):
                error.hint = f"Mend the job's function, and launch again. It is not tried again: {decision.reason}"
            with contextlib.suppress(OSError):
                refused = isinstance(error, (RestoreRefused, MustStop, CorruptCheckpoint))
                self._end(claim, JobStatus.FAILED, f"{reason} ({decision.reason})", refused=refused)
            raise error
        if isinstance(error, DriverLost):
            if error.needs_process:
                self._claims.close(claim, reason)
                raise error
            self._jvm = start_beside(self._job.start_jvm, self._tracer.beside("JVM"))
        delay = self._job.restart.seconds_left(decision, self._clock.time())
        why = f"{decision.reason}{so_far(found, self._job.poison_batch_attempts)}"
        return self._again(claim, reason, why, delay)

    def _again(self, claim: Claim, reason: str, why: str = "It is started again", delay: float = 0) -> RunResult | None:
        """Wait for another start within this run, ``None`` once it is due; returns how the run ended meanwhile."""
        self._emit(Restarting(reason, why, delay))
        if self._cancel.wait(delay) and not self._is_interrupted:
            return self._end(claim, JobStatus.CANCELED, "canceled while it waited for its restart")
        self._claims.close(claim, reason)
        return RunResult(JobStatus.CANCELED, None) if self._is_interrupted else None
