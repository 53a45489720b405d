"""The driver's side of savepoints: looks for requests, takes the savepoints, and answers.

:meth:`SavepointServer.tick` drives the server, on the coordinator's thread but independent of the coordinator: a
savepoint ignores interval, pause and concurrency of checkpoints. A failure is reported to the asker and never counted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from dagster_ckpt.checkpoint.catalog import check_label, gone_with_name, made_by, savepoint_storage
from dagster_ckpt.checkpoint.control import Answer, Asked, SavepointRequest, SavepointRequests, TakenSavepoint
from dagster_ckpt.checkpoint.format import CheckpointMetadata, CheckpointSource, Snapshot
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.taking.attempts import RETRIES, RETRY_AFTER, outcome_of_abandoned, until_whole, writing
from dagster_ckpt.checkpoint.taking.progress import PendingCheckpoint
from dagster_ckpt.checkpoint.taking.requests.answers import Answers, RequestListener, in_words
from dagster_ckpt.checkpoint.taking.requests.checkpoints_at_once import CheckpointsAtOnce
from dagster_ckpt.checkpoint.taking.requests.request_watch import LOOK, RequestWatch
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import Clock, milliseconds
from dagster_ckpt.errors import CaptureIncomplete, CheckpointError, CheckpointExpired, MustStop, SavepointFailed
from dagster_ckpt.filesystem import FileSystem

__all__ = ["SavepointServer"]

_log = logging.getLogger(__name__)
_POLL = 0.01


@dataclass(slots=True)
class _Taking:
    """A request that is being carried out.

    Attributes:
        request: the request.
        storage: where the savepoint goes.
        began: monotonic seconds; the timeout counts from here.
        awaited: the last committed batch when a batch was in flight; the server waits for a later batch to commit.
        incomplete: when, and of which batch, the last capture was incomplete, and how many captures were.
        pending: the attempt, once captured.
        future: the attempt's writing.
    """

    request: SavepointRequest
    storage: FileSystem
    began: float
    awaited: int | None = None
    incomplete: tuple[float, int, int] = (0.0, -1, 0)
    pending: PendingCheckpoint | None = None
    future: Future[CheckpointMetadata] | None = None


class SavepointServer:
    """Answers the requests to one job under one epoch.

    Args:
        requests: the job's requests.
        store: issues ids, and writes savepoints.
        source: captures the job.
        clock: wall and monotonic time.
        executor: runs the writing.
        default: the configured directory for savepoints, ``None`` if there is none.
        timeout: seconds after which an incomplete savepoint fails.
        completed: called with each savepoint, on the thread that ticks.
        checkpoints: has checkpoints taken that are asked for.
        lease: of the run; looks at a bucket follow it.
        told: called on the same thread with each change of a request.

    Attributes:
        stopped_with: the savepoint that stopped the job, once :meth:`finish` has taken one.
    """

    def __init__(
        self,
        requests: SavepointRequests,
        store: CompletedCheckpointStore,
        source: CheckpointSource,
        clock: Clock,
        executor: Executor,
        *,
        default: str | None,
        timeout: float,
        completed: Callable[[CheckpointMetadata], None],
        checkpoints: CheckpointsAtOnce,
        lease: Lease,
        told: RequestListener = lambda *_: None,
    ) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._executor = executor
        self._default = default
        self._timeout = timeout
        self._completed = completed
        self._checkpoints = checkpoints
        self._answers = Answers(requests, store.epoch, clock, told)
        self._watch = RequestWatch(requests, clock, lease.look(LOOK, store.filesystem))
        self._current: _Taking | None = None
        self._stop: SavepointRequest | None = None
        self.stopped_with: str | None = None

    @property
    def stop_asked(self) -> bool:
        """Whether the job is to stop with a savepoint now: stop the query, then call :meth:`finish`."""
        return self._stop is not None

    def tick(self) -> float:
        """Do what is due; returns the seconds until the next call at the latest.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        now = self._clock.monotonic()
        if self._watch.is_due():
            self._look()
        self._answer_checkpoints(over=False)
        if self._current is None:
            return max(self._watch.left, _POLL)
        self._advance(self._current, now)
        return _POLL

    def finish(self) -> None:
        """The query has stopped: take every requested savepoint now, of the last committed batch.

        Raises:
            SavepointFailed: the savepoint that was to stop the job could not be taken; the asker was told.
            Fenced: a newer run has taken the job over.
        """
        current, self._current = self._current, None
        if current is not None and current.future is not None:
            left = self._timeout - (self._clock.monotonic() - current.began)
            with contextlib.suppress(TimeoutError):
                current.future.exception(timeout=max(left, 0))
            if not current.future.done():
                self._expire(current)
            else:
                self._collect(current, current.future)
        if self._stop is not None:
            error = self._take_now(self._stop)
            if error is not None:
                raise SavepointFailed(
                    f"The job was to be stopped with a savepoint, which failed: {in_words(error)}",
                    hint="The job goes on from its newest checkpoint. Mend the cause of the error, and ask again.",
                ) from error
        with contextlib.suppress(OSError):  # the asker waits in vain, but the checkpoints of the job are complete
            for request in self._wanted(self._watch.listed()):
                if request.checkpoint:
                    self._ask_checkpoint(request)
                else:
                    self._take_now(request)
            self._answer_checkpoints(over=True)
            self._answers.pay()

    def job_ended(self) -> None:
        """The end of the job is recorded: now answer the asker who stopped the job with a savepoint.

        An earlier answer would be wrong: the asker may start another job from the savepoint. If this process then died
        before the end was recorded, the stopped job would be resumed beside the other. Without an answer the request
        stays open, and the resumed job takes it up.
        """
        with contextlib.suppress(OSError, MustStop):  # the asker waits in vain, but the savepoint is recorded
            self._answers.pay(job_ended=True)

    def refuse_to_stop(self, error: CheckpointError) -> None:
        """Answer the request to stop the job with ``error``, because the job's last checkpoint failed."""
        if self._stop is not None:
            self._answers.failed(self._stop, error)

    def abandon(self) -> None:
        """Abandon the savepoint in progress without an answer: the next driver takes up the request.

        A savepoint that is being published can no longer be abandoned: once complete, it is the answer.
        """
        current, self._current = self._current, None
        if current is not None and current.pending is not None and current.future is not None:
            current.pending.expire()
            if (metadata := outcome_of_abandoned(current.future)) is not None:
                with contextlib.suppress(MustStop):
                    self._taken(current.request, metadata)

    def _look(self) -> None:
        try:
            self._answers.pay()
            for request in self._wanted(self._watch.look()):
                if request.checkpoint:
                    self._ask_checkpoint(request)
                elif (busy := self._current) is None:
                    self._accept(request)
                elif busy.request.token != request.token:
                    self._answers.waits(request, "another savepoint is being taken")
        except MustStop:
            raise
        except OSError as error:
            _log.warning("Requests for savepoints cannot be read and will be looked for again: %s", error)

    def _wanted(self, found: Sequence[Asked]) -> Iterator[SavepointRequest]:
        """The requests that somebody waits for, and whose answer is not owed already."""
        for asked in found:
            request = asked.request
            if asked.answer is not None:
                self._let_go_of(request)
                self._answers.withdrawn(asked)
            elif not self._answers.owes(request):
                if request.until < self._clock.time():
                    self._let_go_of(request)
                    self._answers.abandoned(request)
                else:
                    yield request

    def _let_go_of(self, request: SavepointRequest) -> None:
        """Do not begin with a savepoint that nobody waits for; one that is being written is completed, and stays."""
        current = self._current
        if current is not None and current.future is None and current.request.token == request.token:
            self._current = None

    def _accept(self, request: SavepointRequest) -> None:
        """Begin with a request, or answer why not."""
        try:
            storage = self._storage_for(request)
            check_label(request.label)  # a record says what its writer wants
            if request.name is not None:
                gone_with_name(self._store.catalog, request.name, request.token)
            made = self._made(request)
            if request.stop:
                storage.probe()  # stop the query only for a savepoint that can be written
        except Exception as error:  # answer whatever the request says, and let the job go on
            self._answers.failed(request, error)
            return
        if made is not None:
            self._taken(request, made)
            return
        _log.info("A savepoint%s is asked for in %s", " to stop with" if request.stop else "", storage.url)
        self._current = _Taking(request, storage, self._clock.monotonic())
        self._source.look_again()
        self._answers.begun(request)

    def _ask_checkpoint(self, request: SavepointRequest) -> None:
        try:
            if self._checkpoints.ask(request):
                self._answers.begun(request)
        except MustStop:
            raise
        except Exception as error:  # the same
            self._answers.failed(request, error)

    def _answer_checkpoints(self, *, over: bool) -> None:
        for request, checkpoint, reason in self._checkpoints.answered(over=over):
            if checkpoint is None:
                self._answers.failed(request, SavepointFailed(reason))
            else:
                self._answers.give(request, Answer(self._clock.time(), TakenSavepoint.of(checkpoint)))

    def _advance(self, current: _Taking, now: float) -> None:
        if current.future is not None and current.future.done():
            self._current = None
            self._collect(current, current.future)
        elif now - current.began > self._timeout:
            if self._expire(current):
                self._current = None
        elif current.future is None:
            self._begin(current, now)

    def _begin(self, current: _Taking, now: float) -> None:
        try:
            batch = self._batch_to_save(current, now)
            if batch is not None and not current.request.stop:
                self._take(current, batch, now)
            elif batch is not None:
                self._require_wanted(current.request)
                # The asker may have stopped waiting since the last look: then the job would end for nobody.
                if not self._answers.has(current.request):
                    self._stop = current.request
                self._current = None
        except MustStop:
            raise
        except Exception as error:  # the same
            self._current = None
            self._answers.failed(current.request, error)

    def _batch_to_save(self, current: _Taking, now: float) -> int | None:
        """The last committed batch, once the batch that was in flight has committed; ``None`` before."""
        progress = self._source.progress()
        committed = -1 if progress.committed is None else progress.committed
        if current.request.stop:
            return progress.committed  # the query is stopped first
        if progress.planned is not None and current.awaited is None:
            current.awaited = committed
        if progress.committed is None or (progress.planned is not None and committed == current.awaited):
            return None
        tried_at, batch, _ = current.incomplete
        return None if batch == committed and now - tried_at < RETRY_AFTER else committed

    def _take(self, current: _Taking, batch: int, now: float) -> None:
        try:
            pending = self._store.begin()
            pin_from = self._clock.monotonic()
            snapshot = self._source.pin(batch)
            # A request may be found after the turn has looked at the clock.
            aligned_for, pinned_for = max(now - current.began, 0.0), self._clock.monotonic() - pin_from
            timings = {"align": milliseconds(aligned_for), "pin": milliseconds(pinned_for)}
            asked = current.request, pending, snapshot, current.storage, timings
            current.future = writing(self._executor, snapshot, lambda: self._write(*asked))
        except MustStop:
            raise
        except CaptureIncomplete as error:
            count = current.incomplete[2] + 1
            current.incomplete = (now, batch, count)
            if count >= RETRIES:
                self._current = None
                self._answers.failed(current.request, error)
            return
        except Exception as error:  # the same
            self._current = None
            self._answers.failed(current.request, error)
            return
        current.pending = pending

    def _write(
        self,
        request: SavepointRequest,
        pending: PendingCheckpoint,
        snapshot: Snapshot,
        storage: FileSystem,
        timings: dict[str, float],
    ) -> CheckpointMetadata:
        try:
            return self._store.write_savepoint(
                pending, snapshot, storage, timings_ms=timings, label=request.label, request=request.token
            )
        finally:
            snapshot.release()

    def _collect(self, current: _Taking, future: Future[CheckpointMetadata]) -> None:
        error = future.exception()
        if error is None:
            self._taken(current.request, future.result())
        elif isinstance(error, Exception) and not isinstance(error, MustStop):
            self._answers.failed(current.request, error)
        else:
            raise error

    def _expire(self, current: _Taking) -> bool:
        """Abandon a savepoint that took too long; ``False`` while it is being published."""
        if current.pending is not None and not current.pending.expire():
            return False
        what = "no batch committed" if current.pending is None else "it was not complete"
        self._answers.failed(current.request, CheckpointExpired(f"{what} within {self._timeout:g} s"))
        return True

    def _take_now(self, request: SavepointRequest) -> Exception | None:
        """Take a savepoint of the last committed batch, and wait for it; returns the error if it failed."""
        try:
            storage = self._storage_for(request)
            metadata = self._made(request)
            if metadata is None:
                batch = self._source.progress().committed
                if batch is None:
                    raise SavepointFailed("No batch has committed yet, so there is nothing to save.")
                metadata = until_whole(lambda: self._pin_and_write(request, batch, storage))
        except MustStop:
            raise
        except Exception as error:  # the same
            self._answers.failed(request, error)
            return error
        if request.stop:
            self.stopped_with = metadata.reference
        self._taken(request, metadata)
        return None

    def _pin_and_write(self, request: SavepointRequest, batch: int, storage: FileSystem) -> CheckpointMetadata:
        pending = self._store.begin()
        pin_from = self._clock.monotonic()
        snapshot = self._source.pin(batch)
        timings = {"pin": milliseconds(self._clock.monotonic() - pin_from)}
        return self._write(request, pending, snapshot, storage, timings)

    def _made(self, request: SavepointRequest) -> CheckpointMetadata | None:
        """The savepoint with a name that a driver before has taken for a request, and has not answered."""
        if request.name is None or request.stop:  # a job that is to stop has gone on since: another one takes the name
            return None
        return made_by(self._store.catalog, request.name, request.token)

    def _require_wanted(self, request: SavepointRequest) -> None:
        if request.until < self._clock.time():
            raise SavepointFailed("The request is older than its timeout.")

    def _storage_for(self, request: SavepointRequest) -> FileSystem:
        self._require_wanted(request)
        return savepoint_storage(request.target, self._default, like=self._store.filesystem)

    def _taken(self, request: SavepointRequest, metadata: CheckpointMetadata) -> None:
        self._completed(metadata)
        self._answers.give(request, Answer(self._clock.time(), TakenSavepoint.of(metadata)))
