"""One start of a streaming query: salvage, choose, restore, record, roll the sink back, start, watch.

The order is the protocol. Nothing that existed before is touched until the chosen checkpoint has been read and
verified whole, the sink has been found to fit the checkpoint, and the choice is on record.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import (
    FORK,
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    CodeVersion,
    CompletedCheckpointStore,
    Newest,
    PlanArchiveWriter,
    claim_savepoint,
    fallback_of,
    forget_live_locations,
    sweep_start,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import LATEST, RestoreRequest
from dagster_ckpt.errors import StorageError
from dagster_ckpt.hosts import this_host
from dagster_ckpt.spark.batches import plans_to_replay, refuse_abandoned
from dagster_ckpt.spark.changed_copy import RestoredCopy
from dagster_ckpt.spark.events import CheckpointsUnreadable, Event, Started
from dagster_ckpt.spark.files import prepare_new_location
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.live import LOCATION, QUERY, TOPICS, LocalLive, choose_live
from dagster_ckpt.spark.moved_sources import choose_once, last_move
from dagster_ckpt.spark.plain import PlainLocation, plain_location
from dagster_ckpt.spark.preflight import ProposedStart, pass_preflight
from dagster_ckpt.spark.query import known_providers
from dagster_ckpt.spark.rescale import still_asked, with_partitions
from dagster_ckpt.spark.run.built_query import BuiltQuery, Queries
from dagster_ckpt.spark.run.chosen import Checked, Chosen, Prepared, change_copy, lay_out
from dagster_ckpt.spark.run.fallback import cost_of
from dagster_ckpt.spark.run.fork import fork_point, publish_fork
from dagster_ckpt.spark.run.running_query import Ended, RunningQuery
from dagster_ckpt.spark.run.starting_point import (
    Began,
    Choosing,
    claimed_by,
    last_to_choose,
    previous_choice,
    sink_began,
)
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.start_tracer import StartTracer
from dagster_ckpt.spark.upgrading import starting_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Start"]

_log = logging.getLogger(__name__)


class Start:
    """One start of a job under one claimed epoch.

    Args:
        job: the job.
        claim: the epoch.
        spark: the session that Spark was started with.
        clock: wall and monotonic time.
        emit: called with each event, on the calling thread.
        tracer: measures the steps.
        code: the version of the query.
        why: of a changed version, for people.
    """

    def __init__(
        self,
        job: StreamingJob,
        claim: Claim,
        spark: SparkSession,
        clock: Clock,
        emit: Callable[[Event], None],
        tracer: StartTracer,
        code: CodeVersion,
        why: str,
    ) -> None:
        self._code, self._why = code, why
        self._job, self._claim = job, claim
        self._spark, self._clock = spark, clock
        self._emit, self._tracer = emit, tracer
        self._catalog = CheckpointCatalog(job.filesystem, job.name)
        self._directory = job.working_directory / f"{claim.epoch:06}-{claim.token[:8]}"
        self._live, self._why_there = choose_live(job, spark, self._directory)
        self._queries = Queries(job, spark, is_live_on_disk=isinstance(self._live, LocalLive))
        self._is_recorded = False

    def prepare(self, request: RestoreRequest, cancel: Flag) -> Prepared:
        """Do everything before the query starts.

        Args:
            request: what to begin with.
            cancel: set when the run should stop.

        Raises:
            CheckpointNotFound: the pointer names nothing.
            CorruptCheckpoint: the checkpoint is not what was written.
            CheckpointsLost: the checkpoints were in the memory of a driver that is gone.
            StateBackendMismatch: the checkpoint's state is of another state backend.
            QueryMismatch: the checkpoint was taken of another query.
            QueryNotBuilt: the job's function raised an error.
            SinkMismatch: the sink does not hold what the checkpoint says.
            SinkNotEmpty: a start from nothing would write to a sink with data.
            RestoreWithLoss: rows would be lost or doubled, and the user has not accepted that.
            RestoreRefused: the restore is impossible.
            InvalidConfiguration: the query or an option of the state backend cannot be used.
            StorageError: the storage failed, or does not list the restored files.
            Fenced: a newer run has taken the job over.
        """
        prepare_from = self._clock.monotonic()
        self._tracer.begin("choose")
        self._emit(self._why_there)
        try:
            return self._prepared(request, cancel, prepare_from)
        except BaseException:
            if not self._is_recorded:
                self._live.abandon()
            raise

    def _prepared(self, request: RestoreRequest, cancel: Flag, prepare_from: float) -> Prepared:
        move = request.move
        chosen, request = self._choose(request)
        request = still_asked(request, chosen.target.metadata)
        self._tracer.begin("build the query")
        query = self._queries.build(with_partitions(chosen.target.metadata, request.state_partitions))
        chosen = lay_out(chosen, query, self._live, self._directory, self._job.name)
        self._tracer.begin("preflight")
        inputs = KafkaInputs(query.writer, self._clock)
        with contextlib.closing(inputs):  # a running query opens its clients again
            checked = self._check(request, chosen, query, inputs)
        target, passed = checked.target, checked.passed
        if request.restore_from != LATEST or not chosen.goes_on_with(query):
            self._try(target.metadata, query.sink, cancel)
        self._tracer.begin("record")
        self._live.lay_out(self._directory)
        if request.changes_copy and target.metadata is not None:
            self._tracer.begin("change the copy")
            copy = self._copy(target.metadata, chosen.job_id, passed.accepted_loss)
            with contextlib.closing(inputs):
                checked = change_copy(copy, request, checked, query.session, inputs, move, query.sink)
            target = checked.target
        if noted := inputs.noted():
            self._live.note(TOPICS, noted)
        self._live.note(QUERY, query.facts.model_dump_json(exclude_unset=True).encode())
        choice = self._record_choice(chosen, checked, query)
        self._tracer.begin("sink")
        if query.sink is not None:
            query.sink.adopt(choice.job_id)
        rolled_back = self._roll_back(target.metadata, checked.began, query.sink)
        self._tracer.begin("storage")
        store = self._open_store(choice, target.metadata, chosen.claimed)
        epoch, check = self._claim.epoch, self._catalog.records.epochs.check
        archive = PlanArchiveWriter(self._job.filesystem, self._job.name, choice.job_id, epoch, lambda: check(epoch))
        after = -1 if target.metadata is None else target.metadata.batch
        archive.begin(after, checked.line, passed.replay, choice.restored or "")
        return Prepared(
            choice=choice,
            restored=target.metadata,
            store=store,
            directory=self._directory,
            sink=query.sink,
            writer=query.writer,
            session=query.session,
            started=Started(
                epoch=self._claim.epoch,
                job_id=choice.job_id,
                restored=target.metadata,
                retained=store.retained,
                reason=target.reason,
                sink=rolled_back,
                restore_seconds=self._clock.monotonic() - prepare_from,
                preflight=passed.preflight,
                is_bounded=query.plan.is_bounded,
                fell_back=checked.fell_back,
            ),
            ignored=query.ignored,
            archive=archive,
            replay=passed.replay,
            live=self._live,
            token=self._claim.token,
            inputs=inputs,
            facts=query.facts,
        )

    def _choose(self, request: RestoreRequest) -> tuple[Chosen, RestoreRequest]:
        """Choose what to resume from, and tell what is left to do. A checkpoint of the job itself is unpacked."""
        recorded, pointer = previous_choice(self._catalog, request), request.fork_from
        previous = None if recorded is None else recorded[1]
        if (chose := last_to_choose(self._catalog, recorded)) is not None:
            self._forget_other_starts(chose)  # starts that were killed, one after the other, must not fill the disk
        fork = None if pointer is None else fork_point(self._catalog, pointer, partial(self._plain, pointer))
        if fork is None:
            choose, forget = partial(self._choosing().target, previous=recorded), self.forget
            target, request = choose_once(self._catalog, request, previous, choose, forget)
        else:
            target = Newest(fork.metadata, None, f"a fork of {fork}")
        if self._why:
            target = replace(target, reason=f"{self._why}: {target.reason}")
        claimed = claimed_by(self._catalog, target, previous, asked=request.restore_from != LATEST)
        job_id = target.job_id or self._claim.run_id.replace("-", "")
        return Chosen(previous, fork, target, job_id, claimed), request

    def _plain(self, pointer: str) -> PlainLocation | None:
        job, providers = self._job, known_providers(self._job.state_backend)
        return plain_location(pointer, self._directory, like=job.filesystem, providers=providers, clock=self._clock)

    def _check(self, request: RestoreRequest, chosen: Chosen, query: BuiltQuery, inputs: KafkaInputs) -> Checked:
        """Refuse a start that would lose or double rows. A fork that passes becomes its lineage's first checkpoint."""
        target, sink = chosen.target, query.sink
        began = sink_began(self._catalog, sink, target)
        known = cache(chosen.known_plans(self._catalog, request))
        line, planned = plans_to_replay(request, sink, target, known)
        passed = pass_preflight(
            ProposedStart(
                job=self._job,
                catalog=self._catalog,
                origin=chosen.origin(self._catalog),
                claim=self._claim,
                request=request,
                target=target,
                previous=chosen.previous,
                directory=self._directory,
                writer=query.writer,
                plan=query.plan,
                state_keys=query.facts.state_keys,
                sink=sink,
                own_sink=began is not None,
                replay=planned,
                known=lambda: known()[1],
                inputs=inputs,
                spark_version=self._spark.version,
                elsewhere=chosen.elsewhere,
                removes=chosen.removes,
                on_disk=isinstance(self._live, LocalLive),
            ),
            self._clock.time(),
        )
        restored, asked = target.metadata, request.restore_from != LATEST or bool(target.passed_over)
        if asked and restored is not None and sink is not None and not sink.can_roll_back and not request.allow_loss:
            refuse_abandoned(self._catalog, restored, sink)
        if restored is not None and chosen.fork is not None:
            target = replace(target, metadata=self._publish(restored))
        if restored is None and passed.replay:
            prepare_new_location(self._directory / LOCATION)
        return Checked(target, passed, line, began, cost_of(self._catalog, target, passed.replay, sink))

    def _copy(self, restored: CheckpointMetadata, job_id: str, loss: tuple[str, ...]) -> RestoredCopy:
        """The unpacked checkpoint, to be changed and published in a lineage."""
        store = self._store(job_id, self._catalog.next_id(job_id, restored), restored.reference)
        return RestoredCopy(self._live, self._directory, restored, store, self._clock, loss, self._spark.version)

    def _record_choice(self, chosen: Chosen, checked: Checked, query: BuiltQuery) -> Choice:
        """Put the choice on record: later starts resume from it."""
        job_id, claimed, target, restored = chosen.job_id, chosen.claimed, checked.target, checked.target.metadata
        complete = self._catalog.completed_at_choice(self._claim.epoch, job_id, restored)
        choice = Choice(
            job_id=job_id,
            restored=restored.reference if restored else None,
            first_id=self._catalog.next_id(job_id, restored),
            last_id=max(complete, default=0),
            live=self._live.url,
            host=this_host(),
            sink=None if query.sink is None else query.sink.path,
            reason=target.reason,
            claimed=None if claimed is None else claimed.reference,
            sink_kind=None if query.sink is None else query.sink.kind,
            fallback=fallback_of(target),
            accepted_loss=checked.passed.accepted_loss,
            fell_back="" if checked.fell_back is None else str(checked.fell_back),
            forked_from=restored.restored_from if restored is not None and restored.kind == FORK else None,
            complete=complete,
            marks=query.sink is not None and bool(query.sink.writer_options(self._claim.token)),
            spark_version=self._spark.version,
            sink_position=chosen.sink_position,
            code=starting_from(self._code, restored.reference if restored else None),
            elsewhere=chosen.elsewhere,
            moved=last_move(restored, chosen.previous),
            query=query.fingerprint,
            is_bounded=query.plan.is_bounded,
            others_delete=query.sink is not None and query.sink.others_delete,
        )
        if claimed is not None and restored is not None and claimed.reference == restored.reference:
            claim_savepoint(claimed, job_id, like=self._job.filesystem)
        self._is_recorded = True  # or it may be recorded, when the storage fails
        self._catalog.records.epochs.record_choice(self._claim.epoch, choice)
        if restored is not None and self._catalog.records.quarantine.lift(restored.reference):
            _log.info("%s was asked for and is whole: it is not in quarantine any more", restored.reference)
        return choice

    def _roll_back(self, restored: CheckpointMetadata | None, began: Began | None, sink: Sink | None) -> str:
        """Put the sink back to its position at the checkpoint; returns what was done, for people."""
        if sink is None:
            return ""
        if restored is not None:
            position = restored.sink or {}
            return sink.rollback_to(position, self._directory / "sink", self._claim.epoch) if sink.can_roll_back else ""
        return "" if began is None else sink.rollback_to_nothing(began.time, self._claim.epoch, began.epoch)

    def _open_store(
        self, choice: Choice, restored: CheckpointMetadata | None, claimed: CheckpointMetadata | None
    ) -> CompletedCheckpointStore:
        """The swept store for the checkpoints of this start."""
        store = self._store(choice.job_id, choice.first_id, choice.restored, verified=restored, claimed=claimed)
        store.know(self._live.copied_from())
        self._sweep(store)
        if store.broken:
            self._emit(CheckpointsUnreadable(store.broken, self._job.url))
        return store

    def _sweep(self, store: CompletedCheckpointStore) -> None:
        try:
            swept = sweep_start(store)
        except StorageError as error:  # a full storage shows at the next checkpoint attempt
            _log.warning("What earlier starts left unfinished is still there: %s", error.message)
        else:
            if swept:
                _log.info("Swept %d files that earlier starts had left unfinished: %s", len(swept), ", ".join(swept))

    def forget(self) -> None:
        """Delete what a start laid out if the start failed before it was on record: no later start uses these files."""
        if not self._is_recorded:
            shutil.rmtree(self._directory, ignore_errors=True)

    def run(self, prepared: Prepared, cancel: Flag) -> Ended | None:
        """Start the query and checkpoint it until it ends; see :meth:`RunningQuery.run`."""
        first, tracer = self._forget_other_starts, self._tracer
        return RunningQuery(self._job, prepared, self._spark, self._clock, self._emit, first, tracer).run(cancel)

    def _choosing(self) -> Choosing:
        parts = self._job, self._catalog, self._claim, self._clock, self._emit
        return Choosing(*parts, live=self._live, directory=self._directory, store=self._store, tracer=self._tracer)

    def _publish(self, laid_out: CheckpointMetadata) -> CheckpointMetadata:
        """Make a fork that passed the first checkpoint of the new lineage."""
        store = self._store(laid_out.job_id, self._catalog.next_id(laid_out.job_id, laid_out), laid_out.restored_from)
        return publish_fork(laid_out, self._directory, store)

    def _try(self, restored: CheckpointMetadata | None, sink: Sink | None, cancel: Flag) -> None:
        """Before batches are removed from the sink, check on a copy that the query can resume from the checkpoint.

        Raises:
            QueryMismatch: the checkpoint was taken of another query.
        """
        if restored is None or sink is None or (sink.newest_batch() or 0) <= restored.batch:
            return
        self._tracer.begin("trial")
        _log.info("Trying the query on a copy of %s before the sink is rolled back", restored.name)
        with self._live.trial(self._directory) as scratch:
            self._queries.check_on_copy(restored, scratch, cancel)

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

    def _forget_other_starts(self, choice: int | None = None) -> None:
        """Delete live locations of earlier starts: all after a first checkpoint, before it those that nobody reads."""
        where = self._job.working_directory, self._job.filesystem, self._job.name
        forget_live_locations(*where, self._claim.epoch, choice)
