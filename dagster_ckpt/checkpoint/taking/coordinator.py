"""The coordinator: decides when a checkpoint is taken, drives checkpoint attempts, and counts failures.

:meth:`CheckpointCoordinator.tick` and the given clock drive the coordinator. Writing is slow and runs on an executor,
and so do deletions, on another; the job never waits for them. A completed checkpoint is reported before older ones are
deleted. As in Flink, no checkpoint begins while more deletions wait than checkpoints may be taken at once, so that a
storage that deletes slowly does not fill up. The coordinator knows neither Spark nor Dagster.

The same failures count as in Flink: a source that cannot tell its progress, an id that cannot be issued, a pin that
fails, data that cannot be written, ``_metadata`` that cannot be published, an attempt that expires. Each attempt counts
once, and only failures in a row count: a completed checkpoint resets the count, and so does each start, for a
coordinator belongs to one start. Five incomplete captures without a completed checkpoint between them count as one
failure; fewer do not count, because the next batch may be complete. The last checkpoint of a job is not borne: its
failure is raised at once (:meth:`CheckpointCoordinator.finish`).

These do not count: a turn without an attempt (no new batch, the pause, too many attempts at once), an attempt that a
newer checkpoint overtook, an attempt in progress when the job ends, old checkpoints that cannot be deleted, and
savepoints. In Flink a completed savepoint resets the count too; here it does not, because a savepoint says nothing
about the checkpoint storage.

A run that is fenced stops at once.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping
from concurrent.futures import Executor

from dagster_ckpt.checkpoint.format import CheckpointMetadata, CheckpointSource, Progress, Snapshot
from dagster_ckpt.checkpoint.taking.attempts import (
    RETRIES,
    RETRY_AFTER,
    Attempt,
    CheckpointListener,
    outcome_of_abandoned,
    until_whole,
    writing,
)
from dagster_ckpt.checkpoint.taking.discards import Discards
from dagster_ckpt.checkpoint.taking.progress import PendingCheckpoint
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import Clock, milliseconds
from dagster_ckpt.config import CheckpointConfig
from dagster_ckpt.errors import (
    CaptureIncomplete,
    CheckpointError,
    CheckpointExpired,
    CheckpointFailure,
    MustStop,
    ToleranceExceeded,
)
from dagster_ckpt.filesystem import Stopped

__all__ = ["CheckpointCoordinator"]

_log = logging.getLogger(__name__)

#: Seconds between two looks: while a batch is awaited, while nothing is awaited, and at most before the next turn.
_POLL = 0.01
_IDLE_POLL = 0.05
_LONGEST = 0.2


class CheckpointCoordinator:
    """Takes checkpoints of one source.

    Args:
        store: writes the checkpoints.
        source: captures the job.
        config: interval, timeout, pause, concurrency, tolerance, alignment, retention.
        clock: monotonic time decides.
        executor: runs the writing.
        deleter: runs the deletions, one at a time in the order of their submission.
        listener: is told what happened.
        rng: draws the delay before the first checkpoint, from ``min_pause`` to the interval, so that jobs that start
            together do not checkpoint together.
    """

    def __init__(
        self,
        store: CompletedCheckpointStore,
        source: CheckpointSource,
        config: CheckpointConfig,
        clock: Clock,
        executor: Executor,
        deleter: Executor,
        listener: CheckpointListener,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._source = source
        self._config = config
        self._clock = clock
        self._executor = executor
        self._discards = Discards(store, config.retention, deleter)
        self._listener = listener
        interval = config.effective_interval
        self._interval = math.inf if interval is None else interval.total_seconds()
        self._pause = config.effective_min_pause.total_seconds()
        self._next = math.inf if interval is None else clock.monotonic() + rng.uniform(self._pause, self._interval)
        self._at_once = False
        self._last_completion = -math.inf
        self._attempts: list[Attempt] = []
        self._last_succeeded = 0
        self._captured: int | None = None
        self._waiting: tuple[float, int] | None = None
        self._incomplete: tuple[float, int] | None = None
        self._incomplete_in_a_row = 0
        self._consecutive_failures = 0
        self._was_due = self._is_held_up = False

    @property
    def captured(self) -> int | None:
        """The batch of the newest capture, completed or in progress."""
        return self._captured

    def became_due(self) -> bool:
        """Whether since the last call a checkpoint became due that is not complete; an idle stream owes none."""
        before = self._was_due
        waits = self._waiting is not None or self._incomplete is not None or self._consecutive_failures > 0
        self._was_due = waits or self._is_held_up or bool(self._attempts)
        return self._was_due and not before

    def already_have(self, batch: int) -> None:
        """Take no checkpoint of ``batch``: the restored checkpoint covers it."""
        self._captured = batch

    def take_at_once(self) -> None:
        """Begin the next checkpoint before its turn: neither interval nor pause holds it up, as in Flink."""
        self._at_once = True

    def savepoint_completed(self) -> None:
        """Begin the pause anew, as after a checkpoint. The number of failed checkpoints in a row stays.

        A savepoint may lie in another storage, so that it says nothing of the storage of the checkpoints.
        """
        self._last_completion = self._clock.monotonic()

    def tick(self) -> float:
        """Do what is due; returns the seconds until the next call at the latest.

        Raises:
            ToleranceExceeded: too many checkpoints failed in a row.
            Fenced: a newer run has taken the job over.
        """
        self._collect()
        self._expire()
        now = self._clock.monotonic()
        wake = max(self._next, self._last_completion + self._pause)
        if now < wake and not self._at_once:
            return min(wake - now, _LONGEST)
        if len(self._attempts) >= (most := self._config.max_concurrent_checkpoints):
            return _IDLE_POLL
        try:
            batch = self._batch_to_take(now)
            self._is_held_up = batch is not None and self._discards.are_behind(most)
            if self._is_held_up:
                return _IDLE_POLL
            if batch is not None:
                # Look again, so that the newest committed batch is captured.
                self._source.look_again()
                batch = self._batch_to_take(now)
        except MustStop:
            raise
        except (CheckpointError, OSError) as error:
            self._schedule_next(now)
            self._count_failure(0, error)
            return _POLL
        if batch is not None:
            self._take(batch, now)
        elif self._waiting is None and self._incomplete is None:
            return _IDLE_POLL
        return _POLL

    def finish(self) -> None:
        """Wait for the attempts in progress, then take a last checkpoint if a batch was committed since the newest.

        Raises:
            CheckpointFailure: the last batch could not be checkpointed.
            Fenced: a newer run has taken the job over.
        """
        self.drain()
        last = ""
        try:
            committed = self._source.progress().committed
            if committed is None or committed == self._captured:
                return
            last = f", {committed},"
            metadata = until_whole(lambda: self._pin_and_write(committed))
        except MustStop:
            raise
        except (CheckpointError, OSError, Stopped) as error:
            raise CheckpointFailure(f"The last batch{last} could not be checkpointed: {error}") from error
        self._captured = committed
        self._completed(metadata)

    def _pin_and_write(self, batch: int) -> CheckpointMetadata:
        pending = self._store.begin()
        pin_from = self._clock.monotonic()
        snapshot = self._source.pin(batch)
        return self._write(pending, snapshot, {"pin": milliseconds(self._clock.monotonic() - pin_from)})

    def drain(self) -> None:
        """Wait for the attempts in progress.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        while self._attempts:
            attempt = self._attempts[0]
            left = self._config.timeout.total_seconds() - (self._clock.monotonic() - attempt.pending.started)
            try:
                attempt.future.exception(timeout=max(left, _POLL))  # one that is being published does not expire
            except TimeoutError:
                self._expire()
            self._collect()

    def abandon(self) -> None:
        """Abandon the attempts and the deletions in progress, at the end of a start however it ended.

        An attempt that is being published can no longer be abandoned: it may complete, and is then reported like any
        other. Deletions have a few seconds to end. An error of the listener does not change how the job ends.
        """
        for attempt in self._attempts:
            attempt.pending.expire()
        for attempt in self._attempts:
            if (metadata := outcome_of_abandoned(attempt.future)) is not None:
                try:
                    self._completed(metadata)
                except Exception as error:
                    _log.warning("%s completed while the job ended, but: %s", metadata.name, error)
        self._attempts.clear()
        self._discards.end()
        try:
            self._collect_discards()
        except Exception as error:
            _log.info("Subsumed checkpoints are left to the next start of the job: %s", error)

    def _batch_to_take(self, now: float) -> int | None:
        """The last committed batch if a checkpoint of it is due now, else ``None``."""
        progress = self._source.progress()
        if progress.committed is None or progress.committed == self._captured:
            # No batch was committed since: an idle stream does not fail. But wait for a batch in flight.
            if progress.planned is None:
                self._waiting = None
            elif self._waiting is None:
                self._waiting = (now, -1 if progress.committed is None else progress.committed)
            return None
        if not self._is_aligned(progress, now):
            return None
        if self._incomplete is not None:
            tried_at, batch = self._incomplete
            if progress.committed == batch and now - tried_at < RETRY_AFTER:
                return None
        return progress.committed

    def _is_aligned(self, progress: Progress, now: float) -> bool:
        """Whether to capture now: no batch is in flight, the awaited batch committed, or alignment timed out."""
        committed = progress.committed or 0
        if progress.planned is None:
            return True
        if self._waiting is None:
            self._waiting = (now, committed)
        since, batch = self._waiting
        limit = self._config.longest_alignment
        return committed > batch or (limit is not None and now - since >= limit.total_seconds())

    def _take(self, batch: int, now: float) -> None:
        aligned_for = now - self._waiting[0] if self._waiting is not None else 0.0
        number = 0
        try:
            pending = self._store.begin()
            number = pending.number
            pin_from = self._clock.monotonic()
            snapshot = self._source.pin(batch)
            timings = {"align": milliseconds(aligned_for), "pin": milliseconds(self._clock.monotonic() - pin_from)}
            future = writing(self._executor, snapshot, lambda: self._write(pending, snapshot, timings))
        except MustStop:
            raise
        except CaptureIncomplete as error:
            if self._incomplete_in_a_row + 1 >= RETRIES:
                self._schedule_next(now)
            self._count_incomplete(batch, number, now, error)
            return
        except (CheckpointError, OSError) as error:
            self._schedule_next(now)
            self._count_failure(number, error)
            return
        self._waiting, self._incomplete, self._captured = None, None, batch
        self._schedule_next(now)
        self._attempts.append(Attempt(pending, snapshot, future))

    def _write(
        self, pending: PendingCheckpoint, snapshot: Snapshot, timings: Mapping[str, float]
    ) -> CheckpointMetadata:
        try:
            return self._store.write(pending, snapshot, timings_ms=timings)
        finally:
            snapshot.release()

    def _completed(self, metadata: CheckpointMetadata) -> None:
        """Report a checkpoint, then have the checkpoints deleted that it subsumes."""
        self._was_due = False
        self._listener.completed(metadata)
        self._discards.ask()

    def _collect_discards(self) -> None:
        for discarded in self._discards.collect():
            self._listener.subsumed(discarded)

    def _collect(self) -> None:
        self._collect_discards()
        done = [attempt for attempt in self._attempts if attempt.future.done()]
        # Completed attempts first: an older attempt that failed does not count then.
        for attempt in sorted(done, key=lambda attempt: attempt.future.exception() is not None):
            self._attempts.remove(attempt)
            error = attempt.future.exception()
            if error is None:
                metadata = attempt.future.result()
                self._consecutive_failures = self._incomplete_in_a_row = 0
                self._last_succeeded = max(self._last_succeeded, metadata.checkpoint_id)
                self._last_completion = self._clock.monotonic()
                self._completed(metadata)
            elif isinstance(error, CaptureIncomplete):
                self._vanished(attempt, error)
            elif isinstance(error, (CheckpointError, OSError)) and not isinstance(error, MustStop):
                self._failed(attempt, error)
            else:
                raise error

    def _expire(self) -> None:
        timeout = self._config.timeout.total_seconds()
        for attempt in list(self._attempts):
            too_old = self._clock.monotonic() - attempt.pending.started > timeout
            if too_old and attempt.pending.expire():
                # Its writer may hang in the storage for good, and must not block the next attempt.
                self._attempts.remove(attempt)
                self._failed(
                    attempt,
                    CheckpointExpired(f"it was not complete {timeout:g} s after its pin and was discarded"),
                )

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        if attempt.pending.number < self._last_succeeded:
            return  # a newer checkpoint is complete: as in Flink, nothing is lost and nothing counts
        self._captured_again(attempt)
        self._count_failure(attempt.pending.number, error)

    def _vanished(self, attempt: Attempt, error: CaptureIncomplete) -> None:
        """Handle a pinned object that was deleted from its bucket before the bucket had copied it."""
        if attempt.pending.number < self._last_succeeded:
            return
        self._captured_again(attempt)
        now = self._clock.monotonic()
        if not self._count_incomplete(attempt.snapshot.batch, attempt.pending.number, now, error):
            self._next = min(self._next, now)  # repeat this turn, because its attempt came to nothing

    def _count_incomplete(self, batch: int, number: int, now: float, error: CaptureIncomplete) -> bool:
        """Note an incomplete capture; returns whether so many in a row now count as a failure."""
        self._incomplete = (now, batch)
        self._incomplete_in_a_row += 1
        _log.info("Capture of batch %d was incomplete and is taken again: %s", batch, error.message)
        if self._incomplete_in_a_row < RETRIES:
            return False
        self._incomplete_in_a_row = 0
        self._count_failure(number, error)
        return True

    def _captured_again(self, attempt: Attempt) -> None:
        """Allow another checkpoint of the batch of a failed attempt, even if no other batch follows."""
        if self._captured == attempt.snapshot.batch:
            self._captured = None

    def _schedule_next(self, now: float) -> None:
        """Schedule the next turn at a fixed rate; turns missed during a long wait for a batch are not made up for."""
        self._at_once = False
        if self._next > now:
            return  # this checkpoint was asked for between two turns
        self._next += self._interval
        if self._next <= now:
            self._next = now + self._interval

    def _count_failure(self, number: int, error: BaseException) -> None:
        if not len(self._discards):
            self._discards.ask()  # on a full storage nothing completes before something is deleted
        self._consecutive_failures += 1
        reason = error.message if isinstance(error, CheckpointError) else str(error)
        _log.warning("Checkpoint %d failed (%d in a row): %s", number, self._consecutive_failures, reason)
        self._listener.failed(number, reason, self._consecutive_failures)
        tolerable = self._config.tolerable_failures
        if tolerable is not None and self._consecutive_failures > tolerable:
            count, self._consecutive_failures = self._consecutive_failures, 0
            raise ToleranceExceeded(
                f"Exceeded checkpoint tolerable failure threshold: {count} checkpoints in a row failed, "
                f"{tolerable} are tolerated. The latest checkpoint failed due to: {reason}",
                hint="The job fails over to its newest completed checkpoint. Mend the storage, or raise "
                f"tolerable_failed_checkpoints. {getattr(error, 'hint', '')}".rstrip(),
            ) from error
