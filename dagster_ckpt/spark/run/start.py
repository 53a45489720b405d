"""One start of a streaming query: salvage, choose, restore, record, roll the sink back, start, watch.

The order is the protocol. Nothing that existed before is touched until the chosen checkpoint has been read and
verified whole, the sink has been found to fit it, and the choice is on record.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import Newest, fallback_of
from dagster_ckpt.checkpoint.cleanup.live_locations import forget_live_locations
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start
from dagster_ckpt.checkpoint.clock import Clock, seconds_of
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim
from dagster_ckpt.checkpoint.control.plan_archive import ArchiveWriter
from dagster_ckpt.checkpoint.format.manifest import FORK, CheckpointMetadata
from dagster_ckpt.checkpoint.processes import this_host
from dagster_ckpt.checkpoint.taking.savepoint_files import claim_savepoint
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.config.recovery import LATEST, RestoreRequest
from dagster_ckpt.errors import CheckpointError, CorruptRecord, QueryMismatch, StorageError
from dagster_ckpt.filesystem.private_directories import share_start
from dagster_ckpt.spark.batches import plans_after, plans_to_replay, refuse_abandoned
from dagster_ckpt.spark.events import CheckpointsUnreadable, Event, Started
from dagster_ckpt.spark.files import prepare_new_location
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live import LOCATION, choose_live
from dagster_ckpt.spark.preflight import Start, pass_preflight
from dagster_ckpt.spark.query import (
    failure_of,
    ignored_settings,
    make_active,
    not_built,
    plan_of,
    streaming_session,
    try_query,
)
from dagster_ckpt.spark.run.fallback import cost_of
from dagster_ckpt.spark.run.fork import ForkPoint, fork_point, lay_out_fork, publish_fork
from dagster_ckpt.spark.run.running_query import Ended, Prepared, RunningQuery
from dagster_ckpt.spark.run.starting_point import Choosing, claimed_by
from dagster_ckpt.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Attempt"]

_log = logging.getLogger(__name__)


class Attempt:
    """One start of a job under one claimed epoch.

    Args:
        job: the job.
        claim: the epoch.
        spark: the session Spark was started with.
        clock: wall and monotonic time.
        emit: is given what happens, on the thread that calls.
    """

    def __init__(
        self,
        job: StreamingJob,
        claim: Claim,
        spark: SparkSession,
        clock: Clock,
        emit: Callable[[Event], None],
    ) -> None:
        self._job = job
        self._claim = claim
        self._spark = spark
        self._clock = clock
        self._emit = emit
        self._catalog = CheckpointCatalog(job.filesystem, job.name)
        self._directory = job.working_directory / f"{claim.epoch:06}-{claim.token[:8]}"
        self._live, self._why_there = choose_live(job, spark, self._directory)
        self._is_recorded = False

    def prepare(self, request: RestoreRequest, cancel: Flag) -> Prepared:
        """Everything up to the start.

        Args:
            request: what to begin with.
            cancel: set when the run is to stop.

        Raises:
            CheckpointNotFound: the pointer names nothing.
            CorruptCheckpoint: the checkpoint is not what was written.
            CheckpointsLost: they were in the memory of a driver that is gone.
            StateBackendMismatch: its state is of another state backend.
            QueryMismatch: the query is not the one the checkpoint was taken of.
            QueryNotBuilt: the job's function raised.
            SinkMismatch: the sink does not hold what the checkpoint says.
            SinkNotEmpty: a start from nothing would write to a sink with data.
            RestoreWithLoss: rows would be lost or doubled, and nobody has accepted that.
            RestoreRefused: it cannot work.
            InvalidConfiguration: the query or an option of the state backend cannot be used.
            StorageError: the storage failed, or does not list what was restored from it.
            Fenced: a newer run has taken the job over.
        """
        prepare_from = self._clock.monotonic()
        self._emit(self._why_there)
        try:
            return self._prepared(request, cancel, prepare_from)
        except BaseException:
            if not self._is_recorded:
                self._live.abandon()
            raise

    def _prepared(self, request: RestoreRequest, cancel: Flag, prepare_from: float) -> Prepared:
        previous = self._previous(request)
        point = None if request.fork_from is None else fork_point(self._catalog, request.fork_from)
        target = (
            self._choosing().target(request, previous)
            if point is None
            else Newest(point.metadata, None, f"a fork of {point}")
        )
        job_id = target.job_id or self._claim.run_id.replace("-", "")
        restored = target.metadata
        session = self._session(restored)
        ignored = ignored_settings(self._job.state_backend, self._spark, restored)
        writer = self._query(session)
        plan = plan_of(writer)
        plan.check(self._job.name, self._job.config.mode)
        sink = plan.sink()
        if plan.query_name is None:
            writer = writer.queryName(self._job.name)
        if point is not None:
            restored = self._lay_out(point, job_id, sink, session)
            target = replace(target, metadata=restored, job_id=job_id)
        elif restored is None:
            self._directory.mkdir(mode=0o700, parents=True)
        share_start(self._directory)
        asked = request.restore_from != LATEST
        claimed = claimed_by(self._catalog, target, None if previous is None else previous[1], asked=asked)
        began = self._sink_began(sink, target)
        known = cache(partial(plans_after, self._catalog, target))
        line, planned = plans_to_replay(request, sink, target, known)
        passed = pass_preflight(
            Start(
                job=self._job,
                catalog=self._catalog,
                claim=self._claim,
                request=request,
                target=target,
                previous=None if previous is None else previous[1],
                directory=self._directory,
                writer=writer,
                plan=plan,
                sink=sink,
                own_sink=began is not None,
                replay=planned,
                known=lambda: known()[1],
                spark_version=self._spark.version,
            ),
            self._clock.time(),
        )
        replay = passed.replay
        if asked and restored is not None and sink is not None and not sink.can_roll_back and not request.allow_loss:
            refuse_abandoned(self._catalog, restored, sink)
        if restored is not None and point is not None:
            restored = self._publish(restored)
        if restored is None and replay:
            prepare_new_location(self._location)
        fell_back = cost_of(self._catalog, target, replay, sink) if target.passed_over else None
        if asked and restored is not None and sink is not None and (sink.newest_batch() or 0) > restored.batch:
            self._try(restored, cancel)
        self._live.lay_out(self._directory)
        complete = self._catalog.completed_at_choice(self._claim.epoch, job_id, restored)
        choice = Choice(
            job_id=job_id,
            restored=restored.reference if restored else None,
            first_id=self._catalog.next_id(job_id, restored),
            last_id=max(complete, default=0),
            live=self._live.url,
            host=this_host(),
            sink=None if sink is None else sink.path,
            reason=target.reason,
            claimed=None if claimed is None else claimed.reference,
            sink_kind=None if sink is None else sink.kind,
            fallback=fallback_of(target),
            accepted_loss=passed.accepted_loss,
            fell_back="" if fell_back is None else str(fell_back),
            forked_from=restored.restored_from if restored is not None and restored.kind == FORK else None,
            complete=complete,
            marks=sink is not None and bool(sink.writer_options(self._claim.token)),
        )
        if claimed is not None and claimed is restored:
            claim_savepoint(claimed, job_id, like=self._job.filesystem)
        self._is_recorded = True  # or may be, when the storage fails
        self._catalog.records.epochs.record_choice(self._claim.epoch, choice)
        if restored is not None and self._catalog.records.quarantine.lift(restored.reference):
            _log.info("%s was asked for and is whole: it is not in quarantine any more", restored.reference)
        rolled_back = ""
        if sink is not None and restored is not None and sink.can_roll_back:
            rolled_back = sink.rollback_to(restored.sink or {}, self._directory / "sink", self._claim.epoch)
        elif sink is not None and began is not None:
            rolled_back = sink.rollback_to_nothing(began, self._claim.epoch)
        store = self._store(job_id, choice.first_id, choice.restored, verified=restored, claimed=claimed)
        store.know(self._live.copied_from())
        self._sweep(store)
        if store.broken:
            self._emit(CheckpointsUnreadable(store.broken, f"{self._job.filesystem.url}/{self._job.name}"))
        archive = self._archive(job_id)
        archive.begin(-1 if restored is None else restored.batch, line, replay)
        started = Started(
            epoch=self._claim.epoch,
            job_id=job_id,
            restored=restored,
            retained=store.retained,
            reason=target.reason,
            sink=rolled_back,
            restore_seconds=self._clock.monotonic() - prepare_from,
            preflight=passed.preflight,
            fell_back=fell_back,
        )
        return Prepared(
            choice,
            restored,
            store,
            self._directory,
            sink,
            writer,
            session,
            started,
            ignored,
            archive,
            replay,
            self._live,
            self._claim.token,
        )

    def _previous(self, request: RestoreRequest) -> tuple[int, Choice] | None:
        """The newest choice before this start's; a damaged one keeps nobody from naming what to go on from."""
        try:
            return self._catalog.choice()
        except CorruptRecord as error:
            if request.restore_from == LATEST:
                raise
            _log.warning("What the start before chose is not known: %s", error.message)
            return None

    def _sweep(self, store: CompletedCheckpointStore) -> None:
        try:
            swept = sweep_start(store)
        except StorageError as error:  # nothing needs the space now; a checkpoint will find out whether it can be taken
            _log.warning("What earlier attempts left unfinished is still there: %s", error.message)
        else:
            if swept:
                _log.info("Swept %d files that earlier attempts had left unfinished: %s", len(swept), ", ".join(swept))

    def forget(self) -> None:
        """Delete what a start has laid out that failed before it was on record: the next one lays out its own."""
        if not self._is_recorded:
            shutil.rmtree(self._directory, ignore_errors=True)

    def run(self, prepared: Prepared, cancel: Flag) -> Ended | None:
        """Start the query and checkpoint it until it ends; see :meth:`RunningQuery.run`."""
        query = RunningQuery(self._job, prepared, self._spark, self._clock, self._emit, self._forget_other_attempts)
        return query.run(cancel)

    def _choosing(self) -> Choosing:
        return Choosing(
            self._job,
            self._catalog,
            self._claim,
            self._clock,
            self._emit,
            live=self._live,
            directory=self._directory,
            store=self._store,
        )

    def _lay_out(self, point: ForkPoint, job_id: str, sink: Sink | None, session: SparkSession) -> CheckpointMetadata:
        laid_out = lay_out_fork(point, self._directory, sink, session, self._job.name, job_id)
        self._live.prepare(self._directory)
        return laid_out

    def _publish(self, laid_out: CheckpointMetadata) -> CheckpointMetadata:
        """The fork passed: make it the first checkpoint of the new lineage."""
        first_id = self._catalog.next_id(laid_out.job_id, laid_out)
        store = self._store(laid_out.job_id, first_id, laid_out.restored_from)
        return publish_fork(laid_out, self._directory, store)

    def _archive(self, job_id: str) -> ArchiveWriter:
        epoch = self._claim.epoch
        return ArchiveWriter(
            self._job.filesystem, self._job.name, job_id, epoch, lambda: self._catalog.records.epochs.check(epoch)
        )

    def _try(self, restored: CheckpointMetadata, cancel: Flag) -> None:
        """Before batches are taken out of the sink, find out on a copy that the query can go on from there.

        Raises:
            QueryMismatch: it is not the query the checkpoint was taken of.
        """
        _log.info("Trying the query on a copy of %s before the sink is rolled back", restored.name)
        with self._live.trial(self._directory) as scratch:
            writer = self._query(self._session(restored))
            failure = try_query(writer, scratch, cancel)
        error = None if failure is None else failure_of(failure, self._job.name, restored)
        if isinstance(error, QueryMismatch):
            raise error from failure

    def _query(self, session: SparkSession) -> DataStreamWriter:
        """The query as the job's own function builds it.

        Raises:
            QueryNotBuilt: the function raised; its exception is the cause.
        """
        try:
            return self._job.query(session)
        except CheckpointError:  # which names itself: a sink, for example, or a storage that the function reads
            raise
        except Exception as error:
            raise not_built(error, self._job.name) from error

    def _session(self, restored: CheckpointMetadata | None) -> SparkSession:
        facts = None if restored is None else restored.facts
        session = streaming_session(self._spark, facts, self._job.state_backend, self._job.partitions)
        make_active(session)  # the query is built and started on this thread
        return session

    def _sink_began(self, sink: Sink | None, target: Newest) -> float | None:
        """When the lineage began to fill this sink, if it did so from nothing and has no checkpoint yet.

        The sink was found empty then, so all it holds is of this lineage and is written again.
        """
        if sink is None or target.metadata is not None or target.job_id is None:
            return None
        for epoch in sorted(self._catalog.records.epochs.names()):
            choice, claim = (
                self._catalog.records.epochs.read_choice(epoch),
                self._catalog.records.epochs.read_claim(epoch),
            )
            if choice is not None and claim is not None and choice.job_id == target.job_id:
                same = choice.restored is None and (choice.sink, choice.sink_kind) == (sink.path, sink.kind)
                return seconds_of(claim.claimed_at) if same else None
        return None

    @property
    def _location(self) -> Path:
        """What is laid out on this machine: the live location, or as much of it as checks without a query need."""
        return self._directory / LOCATION

    def _store(
        self,
        job_id: str,
        first_id: int,
        restored_from: str | None,
        verified: CheckpointMetadata | None = None,
        claimed: CheckpointMetadata | None = None,
    ) -> CompletedCheckpointStore:
        return CompletedCheckpointStore(
            self._catalog,
            self._claim,
            job_id=job_id,
            first_id=first_id,
            restored_from=restored_from,
            mode=self._job.config.mode.value,
            clock=self._clock,
            inline_threshold=self._job.inline_threshold,
            verified=verified,
            max_state_size=self._job.max_state_size,
            claimed=claimed,
            tell=self._emit,
        )

    def _forget_other_attempts(self) -> None:
        """A checkpoint of this attempt is complete: the live locations of earlier ones can help nobody."""
        forget_live_locations(self._job.working_directory, self._job.filesystem, self._job.name, self._claim.epoch)
