"""A running query: started as prepared, checkpointed, and saved on request, until the query ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import (
    CheckpointCoordinator,
    CheckpointMetadata,
    CheckpointsAtOnce,
    CompletedCheckpointStore,
    Discarded,
    Lease,
    SavepointServer,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.batches import Archiver, PlannedBatches, replay_batches
from dagster_ckpt.spark.capture import StreamingSource
from dagster_ckpt.spark.events import (
    CheckpointCompleted,
    CheckpointDue,
    CheckpointFailed,
    CheckpointsSubsumed,
    Event,
    Replaying,
    RequestTold,
    SavepointCompleted,
)
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.jvm import loss_of, lost_driver
from dagster_ckpt.spark.query import (
    end_query,
    failure_of,
    flag_of_end,
    has_run,
    keeps_its_input,
    known_providers,
    with_options,
)
from dagster_ckpt.spark.run.chosen import Prepared
from dagster_ckpt.spark.sinks import PositionReader, SinkRun, SinkStart, refusal_of_batch
from dagster_ckpt.spark.start_tracer import StartTracer
from dagster_ckpt.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Ended", "RunningQuery"]

_log = logging.getLogger(__name__)

#: Seconds between two checks whether the query still runs, if nothing tells; each check is a call into the JVM.
_LOOK = 0.25
#: Seconds between two fetches of Spark's progress report, for the numbers of the next checkpoints.
_REPORT = 1.0
#: Seconds between two checks whether another query writes to the sink.
_CHECK = 1.0
#: Seconds between two reports of a replay.
_TELL = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A query that ended without an error.

    Attributes:
        reason: how the query ended, for people.
        on_record: called once the end of the job is on record.
        savepoint: the savepoint that the job was stopped with.
    """

    reason: str
    on_record: Callable[[], None]
    savepoint: str | None


class RunningQuery:
    """The query of one start of a job.

    Args:
        job: the job.
        prepared: the prepared start.
        spark: the session that Spark was started with.
        clock: wall and monotonic time.
        emit: called with each event, on the calling thread.
        first_completed: called when the first checkpoint of this start is complete.
        tracer: measures the steps of the start.
    """

    def __init__(
        self,
        job: StreamingJob,
        prepared: Prepared,
        spark: SparkSession,
        clock: Clock,
        emit: Callable[[Event], None],
        first_completed: Callable[[], None],
        tracer: StartTracer,
    ) -> None:
        self._job = job
        self._prepared = prepared
        self._spark = spark
        self._clock = clock
        self._emit = emit
        self._first_completed = first_completed
        self._tracer = tracer
        #: The run ids that Spark gave the query in this start: one for each replayed batch, then one for the rest.
        self._runs: set[str] = set()
        #: The newest of them, until it is stopped.
        self._query: StreamingQuery | None = None

    def run(self, cancel: Flag) -> Ended | None:
        """Start the query and checkpoint it until the query ends; ``None`` when it was canceled.

        Raises:
            QueryFailed: the query ended with an error.
            QueryMismatch: the state belongs to another query.
            DriverLost: the JVM is gone.
            ToleranceExceeded: too many checkpoint attempts failed in a row.
            SavepointFailed: the job should stop with a savepoint, which could not be taken.
            Fenced: a newer run has taken the job over.
            CheckpointError: what the sink refused a batch with, where no restart can help.
        """
        prepared = self._prepared
        writer = prepared.writer.option("checkpointLocation", prepared.live.spark_url)
        archiver = self._archiver()
        if prepared.sink is not None:
            restored = None if prepared.restored is None else prepared.restored.sink
            if prepared.restored is not None and restored is not None:
                # After a repartition of the state the position is that of an earlier batch: nothing was written since.
                restored = {**restored, "batch": prepared.restored.batch}
            store = prepared.store
            prepared.sink.begin(
                SinkRun(
                    prepared.directory,
                    store.epoch,
                    restored,
                    store.check_owner,
                    archiver.archive,
                    lambda: store.retained,
                    keeps_its_input(prepared.writer),
                )
            )
            writer = with_options(writer, prepared.sink.writer_options(prepared.token))
        try:
            if not self._replay(writer, cancel):
                return None
            self._tracer.begin("start the query")
            query = self._in_jvm(writer.start)
            self._tracer.pause()
            self._begun(query)
            if len(prepared.replay) < 2:
                self._emit(prepared.started)
            return self._watch(query, archiver, cancel)
        finally:
            self._stop()
            archiver.close()
            prepared.inputs.close()

    def _replay(self, writer: DataStreamWriter, cancel: Flag) -> bool:
        """Replay the batches that must run again as they were; ``False`` when the replay was canceled."""
        plans = self._prepared.replay
        if len(plans) >= 2:
            self._tracer.begin("replay")
            self._emit(self._prepared.started)
            self._emit(Replaying(plans[0].batch, plans[-1].batch, 0))
        told = began = self._clock.monotonic()

        def progress(batch: int) -> None:
            nonlocal told
            if self._clock.monotonic() - told >= _TELL:
                told = self._clock.monotonic()
                self._emit(Replaying(batch + 1, plans[-1].batch, told - began))

        done: bool = self._in_jvm(
            lambda: replay_batches(
                self._prepared.session,
                writer,
                self._prepared.live,
                plans,
                cancel,
                self._raise_failure,
                self._begun,
                progress,
            )
        )
        return done

    def _begun(self, query: StreamingQuery) -> None:
        self._query = query
        self._runs.add(str(query.runId))
        self._prepared.live.mark_begun()

    def _archiver(self) -> Archiver:
        prepared = self._prepared
        after = -1 if prepared.restored is None else prepared.restored.batch
        known = prepared.replay[-1].batch if prepared.replay else after
        location = prepared.live.location(known_providers(self._job.state_backend))
        plans = PlannedBatches(location, known)
        return Archiver(plans, prepared.archive, lambda: prepared.store.retained, self._clock, location.pauses[1])

    def _watch(self, query: StreamingQuery, archiver: Archiver, cancel: Flag) -> Ended | None:
        prepared, config = self._prepared, self._job.config
        # Fetched between pins and not during one, because each fetch is a call into the JVM.
        report: Mapping[str, Any] | None = None
        location = prepared.live.location(known_providers(self._job.state_backend))
        positions = self._positions(location)
        source = StreamingSource(
            location,
            prepared.directory / "pins",
            positions,
            self._spark.version,
            lambda: report,
            self._clock,
            prepared.choice.accepted_loss,
            prepared.inputs.observed,
            prepared.facts,
        )
        # A writer that hangs in the storage keeps its thread: two more are for checkpoints, a third for a savepoint.
        uploads = Threads(config.max_concurrent_checkpoints + 3, "dagster-ckpt-upload")
        told = [lambda _: archiver.completed()]
        if prepared.sink is not None:
            told.insert(0, prepared.sink.completed)
        failed: list[Callable[[str], None]] = []
        listener = _Listener(self._emit, prepared.store, self._first_completed, told, failed)
        deleter = Threads(1, "dagster-ckpt-delete")
        coordinator = CheckpointCoordinator(
            prepared.store, source, config, self._clock, uploads, deleter, listener, Random()
        )
        if prepared.restored is not None:
            coordinator.already_have(prepared.restored.batch)
        at_once = CheckpointsAtOnce(coordinator, source, prepared.restored)
        told.append(at_once.completed)
        failed.append(at_once.failed)
        savepoints = self._savepoints(source, uploads, coordinator, at_once)
        over = flag_of_end(query)
        try:
            looked = reported = checked = float("-inf")
            while not cancel.is_set():
                if time.monotonic() - reported >= (_LOOK if report is None else _REPORT):
                    reported = time.monotonic()
                    report = self._tracer.report(query)
                if time.monotonic() - looked >= _LOOK:
                    looked = time.monotonic()
                    if not self._in_jvm(lambda: query.isActive):
                        self._raise_failure(query)
                        report = self._tracer.report(query)
                        source.look_again()
                        coordinator.finish()
                        savepoints.finish()
                        return Ended("the query ended", savepoints.job_ended, savepoints.stopped_with)
                if savepoints.stop_asked:
                    self._stop()
                    report = self._tracer.report(query)
                    source.look_again()
                    _finish_stopped(coordinator, savepoints)
                    return Ended("stopped with a savepoint", savepoints.job_ended, savepoints.stopped_with)
                if positions is not None and time.monotonic() - checked >= _CHECK:
                    checked = time.monotonic()
                    _look_at_sink(positions, source)
                archiver.tick()
                pause = min(coordinator.tick(), savepoints.tick())
                if coordinator.became_due():
                    self._emit(CheckpointDue())
                if over.wait(pause):  # a cancellation waits no longer than this
                    over.clear()
                    looked = float("-inf")
            self._stop()
        finally:
            coordinator.abandon()
            savepoints.abandon()
            uploads.shutdown(wait=False)
            deleter.shutdown(wait=False)
        return None

    def _positions(self, location: CheckpointLocation) -> PositionReader | None:
        prepared = self._prepared
        if prepared.sink is None:
            return None
        if not prepared.choice.marks:
            return prepared.sink.position_reader(prepared.directory, location)
        after = -1 if prepared.restored is None else prepared.restored.batch
        start = SinkStart(prepared.token, after, lambda batch: has_run(self._spark, self._runs, batch))
        return prepared.sink.position_reader(prepared.directory, location, start)

    def _savepoints(
        self,
        source: StreamingSource,
        uploads: Threads,
        coordinator: CheckpointCoordinator,
        at_once: CheckpointsAtOnce,
    ) -> SavepointServer:
        def completed(metadata: CheckpointMetadata) -> None:
            coordinator.savepoint_completed()
            self._emit(SavepointCompleted(metadata))

        requests = self._prepared.store.catalog.records.savepoint_requests
        with contextlib.suppress(OSError, CheckpointError):  # the next start will clear up what remains
            requests.forget_old(self._clock.time())
        return SavepointServer(
            requests,
            self._prepared.store,
            source,
            self._clock,
            uploads,
            default=self._job.savepoint_path,
            timeout=self._job.config.timeout.total_seconds(),
            completed=completed,
            checkpoints=at_once,
            lease=Lease.of(self._job.config),
            told=lambda *told: self._emit(RequestTold(*told)),
        )

    def _in_jvm(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except CheckpointError:
            raise
        except Exception as error:
            if (lost := loss_of(self._spark, after=error)) is not None:
                raise lost_driver(self._job.name, lost) from error
            raise failure_of(error, self._job.name, self._prepared.restored) from error

    def _stop(self) -> None:
        """Stop the newest query, if running, and wait for its tasks, because the next start may use the same JVM."""
        query, self._query = self._query, None
        if query is not None:
            try:
                end_query(self._spark, self._job.url, query)
            except Exception as error:
                _log.info("The query did not stop in order: %s", error)

    def _raise_failure(self, query: StreamingQuery) -> None:
        error = self._in_jvm(query.exception)
        if error is not None:
            if (refusal := refusal_of_batch(self._prepared.writer)) is not None:
                raise refusal
            raise failure_of(error, self._job.name, self._prepared.restored) from error


class _Listener:
    def __init__(
        self,
        emit: Callable[[Event], None],
        store: CompletedCheckpointStore,
        first_completed: Callable[[], None],
        completed: Sequence[Callable[[CheckpointMetadata], None]],
        failed: Sequence[Callable[[str], None]],
    ) -> None:
        self._emit = emit
        self._store = store
        self._first_completed: Callable[[], None] | None = first_completed
        self._completed = completed
        self._failed = failed

    def completed(self, metadata: CheckpointMetadata) -> None:
        for tell in self._completed:
            tell(metadata)
        self._emit(CheckpointCompleted(metadata, self._store.retained))
        if self._first_completed is not None:
            self._first_completed()
            self._first_completed = None

    def subsumed(self, discarded: Sequence[Discarded]) -> None:
        self._emit(CheckpointsSubsumed(discarded, self._store.retained))

    def failed(self, number: int, reason: str, consecutive: int) -> None:
        for tell in self._failed:
            tell(reason)
        self._emit(CheckpointFailed(number, reason, consecutive))


def _look_at_sink(positions: PositionReader, source: StreamingSource) -> None:
    try:
        committed = source.progress().committed
        positions.look(-1 if committed is None else committed)
    except OSError as error:  # harmless, because no checkpoint completes without this check
        _log.warning("What is new in the sink cannot be looked at now: %s", error)


def _finish_stopped(coordinator: CheckpointCoordinator, savepoints: SavepointServer) -> None:
    """Finish a query that was stopped for a savepoint: checkpoint its last batch, then take the savepoint."""
    try:
        coordinator.finish()
    except CheckpointError as error:
        savepoints.refuse_to_stop(error)
        raise
    savepoints.finish()
