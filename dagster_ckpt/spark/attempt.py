"""One start of a streaming query: salvage, choose, restore, record, roll the sink back, start, watch.

The order is the protocol. Nothing that existed before is touched until the chosen checkpoint has been read and
verified whole, the sink has been found to fit it, and the choice is on record.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, Newest
from dagster_ckpt.checkpoint.clock import Clock
from dagster_ckpt.checkpoint.epochs import Choice, Claim
from dagster_ckpt.checkpoint.liveness import this_host
from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.checkpoint.savepoints import claimed_savepoint
from dagster_ckpt.checkpoint.store import CompletedCheckpointStore, next_id
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.errors import CheckpointsLost, Fenced, QueryMismatch, SinkMismatch, SinkNotEmpty
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.file_sink import FileSink, SinkRollback
from dagster_ckpt.spark.job import Event, Started, StreamingJob
from dagster_ckpt.spark.partitions import set_partitions
from dagster_ckpt.spark.query_errors import failure_of
from dagster_ckpt.spark.restore import prepare_location
from dagster_ckpt.spark.running import Prepared, RunningQuery
from dagster_ckpt.spark.session import streaming_session
from dagster_ckpt.spark.state_backend import check_state_backend, ignored_settings, known_providers
from dagster_ckpt.spark.streaming_source import StreamingSource
from dagster_ckpt.spark.trial import try_query
from dagster_ckpt.spark.writer import WriterPlan, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LATEST", "NONE", "Attempt"]

_log = logging.getLogger(__name__)

LATEST = "latest"
NONE = "none"

#: Directories of attempts in the working directory: ``{epoch}-{token}``.
_ATTEMPT = re.compile(r"(\d{6,})-[0-9a-f]{8}(?:\.salvage)?")


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

    def prepare(self, restore_from: str, claim_mode: RecoveryClaimMode | None, cancel: Flag) -> Prepared:
        """Everything up to the start.

        Args:
            restore_from: ``latest``, ``none``, or a pointer.
            claim_mode: whose a checkpoint or savepoint becomes that is pointed to; ``None`` claims checkpoints of the
                job's own storage and leaves savepoints to the user.
            cancel: set when the run is to stop.

        Raises:
            CheckpointNotFound: the pointer names nothing.
            CorruptCheckpoint: the checkpoint is not what was written.
            CheckpointsLost: they were in the memory of a driver that is gone.
            StateBackendMismatch: its state is of another state backend.
            RestoreRefused: restoring it would lose or double data.
            InvalidConfiguration: the query or an option of the state backend cannot be used.
            Fenced: a newer run has taken the job over.
        """
        prepare_from = self._clock.monotonic()
        previous = self._catalog.choice()
        if restore_from == LATEST and previous is not None:
            self._refuse_if_lost(previous[0])
            if self._gone_on_from(previous[1]):
                self._salvage(previous[1])
        target = self._target(restore_from, claim_mode)
        job_id = target.job_id or self._claim.run_id.replace("-", "")
        restored = target.metadata
        if restored is not None:
            check_state_backend(self._job.state_backend, restored)
        session = self._session(restored)
        ignored = ignored_settings(self._job.state_backend, self._spark, restored)
        writer = self._job.query(session)
        plan = plan_of(writer)
        plan.check(self._job.name, self._job.config.mode)
        sink = plan.file_sink()
        if plan.query_name is None:
            writer = writer.queryName(self._job.name)
        if restored is not None:
            self._catalog.materialize(restored, self._directory)
            prepare_location(self._directory / "checkpoint")
        else:
            self._directory.mkdir(parents=True)
        claimed = self._claimed(target, None if previous is None else previous[1])
        began = self._sink_began(sink, target)
        if began is None:
            self._check_sink(plan, sink, target, asked=restore_from)
        asked = restore_from != LATEST
        if asked and restored is not None and sink is not None and (sink.last_batch() or 0) > restored.batch:
            self._try(restored, cancel)
        choice = Choice(
            job_id=job_id,
            restored=restored.reference if restored else None,
            first_id=next_id(self._catalog, job_id, restored),
            last_id=self._catalog.last_completed(job_id),
            live=str(self._directory / "checkpoint"),
            host=this_host(),
            sink=None if sink is None else str(sink.path),
            reason=target.reason,
            claimed=None if claimed is None else claimed.reference,
        )
        self._catalog.epochs.record_choice(self._claim.epoch, choice)
        rolled_back = ""
        if sink is not None and restored is not None:
            rolled_back = _describe(sink.rollback_to(self._position, restored.batch))
        elif sink is not None and began is not None:
            rolled_back = _describe(sink.rollback_to_nothing(began))
        store = self._store(job_id, choice.first_id, choice.restored, verified=restored, claimed=claimed)
        for error in store.broken:
            _log.warning("A checkpoint cannot be read and is left alone: %s", error)
        started = Started(
            epoch=self._claim.epoch,
            job_id=job_id,
            restored=restored,
            retained=store.retained,
            reason=target.reason,
            sink=rolled_back,
            restore_seconds=self._clock.monotonic() - prepare_from,
        )
        return Prepared(choice, restored, store, self._directory, sink, writer, session, started, ignored)

    def run(self, prepared: Prepared, cancel: Flag) -> str | None:
        """Start the query and checkpoint it until it ends; see :meth:`RunningQuery.run`."""
        query = RunningQuery(self._job, prepared, self._spark, self._clock, self._emit, self._forget_other_attempts)
        return query.run(cancel)

    def _target(self, restore_from: str, claim_mode: RecoveryClaimMode | None) -> Newest:
        if restore_from == LATEST:
            return self._catalog.newest()
        if restore_from == NONE:
            return Newest(None, None, "a start from nothing was asked for")
        metadata = self._catalog.resolve(restore_from)
        if claim_mode is None:
            claim_mode = RecoveryClaimMode.CLAIM if metadata.location is None else RecoveryClaimMode.NO_CLAIM
        job_id = metadata.job_id if claim_mode is RecoveryClaimMode.CLAIM else None
        return Newest(metadata, job_id, f"{metadata.name} was asked for ({claim_mode})")

    def _claimed(self, target: Newest, previous: Choice | None) -> CheckpointMetadata | None:
        """The savepoint that is the lineage's own to delete: the one that is claimed now, or was before."""
        restored = target.metadata
        if previous is not None and previous.claimed is not None and previous.job_id == target.job_id:
            before = claimed_savepoint(self._catalog, previous.claimed)
        else:
            before = None
        if restored is None or restored.location is None or restored.job_id != target.job_id:
            return before
        return restored

    def _refuse_if_lost(self, epoch: int) -> None:
        """Checkpoints in a driver's memory are for the run alone that took them: only it can go on from them."""
        if self._job.filesystem.is_durable or self._catalog.given_up() is not None:
            return
        before = self._catalog.epochs.read_claim(epoch)
        if before is not None and before.run_id != self._claim.run_id:
            raise CheckpointsLost(
                f"The checkpoints of job {self._job.name!r} were in the memory of the driver of run {before.run_id}, "
                "and are gone with it: JobManagerCheckpointStorage without a checkpoint_path restarts a "
                "failing query inside its run only.",
                hint="To begin again, empty the sink and launch with restore_from: none. To keep checkpoints from now "
                "on, give the storage a checkpoint_path, or use FileSystemCheckpointStorage.",
            )

    def _gone_on_from(self, choice: Choice) -> bool:
        """Whether the live location of the run before is still there and its state was not given up."""
        return choice.host == this_host() and Path(choice.live).is_dir() and self._catalog.newest().job_id is not None

    def _salvage(self, choice: Choice) -> None:
        """Take a last checkpoint from the live location a dead run left behind, so that no work is lost."""
        location = CheckpointLocation(Path(choice.live), known_providers(self._job.state_backend))
        batch = location.last_committed()
        newest = self._catalog.newest().metadata
        if batch is None or (newest is not None and newest.batch >= batch):
            return
        sink = None if choice.sink is None else FileSink(choice.sink)
        source = StreamingSource(location, self._directory.with_suffix(".salvage"), sink, None, lambda: None)
        ancestor = choice.restored if newest is None else newest.reference
        store = self._store(choice.job_id, next_id(self._catalog, choice.job_id, newest), ancestor)
        try:
            pending = store.begin()
            snapshot = source.pin(batch)
            try:
                metadata = store.write(pending, snapshot, kind="salvage")
            finally:
                snapshot.release()
        except Fenced:
            raise
        except Exception as error:  # whatever is wrong with what a dead run left, the retained checkpoints are there
            _log.warning(
                "Batch %d of the run before could not be salvaged from %s, going on from the newest checkpoint: %s",
                batch,
                choice.live,
                error,
            )
        else:
            _log.info("Salvaged batch %d of the run before as %s", batch, metadata.name)
        finally:
            shutil.rmtree(self._directory.with_suffix(".salvage"), ignore_errors=True)

    def _try(self, restored: CheckpointMetadata, cancel: Flag) -> None:
        """Before batches are taken out of the sink, find out on a copy that the query can go on from there.

        Raises:
            QueryMismatch: it is not the query the checkpoint was taken of.
        """
        _log.info("Trying the query on a copy of %s before the sink is rolled back", restored.name)
        scratch = self._directory / "trial"
        shutil.copytree(self._directory / "checkpoint", scratch)
        try:
            writer = self._job.query(self._session(restored))
            failure = try_query(writer, scratch, cancel)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        error = None if failure is None else failure_of(failure, self._job.name, restored)
        if isinstance(error, QueryMismatch):
            raise error from failure

    def _session(self, restored: CheckpointMetadata | None) -> SparkSession:
        facts = None if restored is None else restored.facts
        session = streaming_session(self._spark, facts, self._job.state_backend)
        set_partitions(session, self._job.partitions, restored)
        return session

    def _sink_began(self, sink: FileSink | None, target: Newest) -> float | None:
        """When the lineage began to fill this sink, if it did so from nothing and has no checkpoint yet.

        The sink was found empty then, so all it holds is of this lineage and is written again.
        """
        if sink is None or target.metadata is not None or target.job_id is None:
            return None
        for epoch in sorted(self._catalog.epochs.names()):
            choice, claim = self._catalog.epochs.read_choice(epoch), self._catalog.epochs.read_claim(epoch)
            if choice is not None and claim is not None and choice.job_id == target.job_id:
                same = choice.restored is None and choice.sink == str(sink.path)
                return datetime.fromisoformat(claim.claimed_at).timestamp() if same else None
        return None

    def _check_sink(self, plan: WriterPlan, sink: FileSink | None, target: Newest, *, asked: str) -> None:
        """Make sure, touching nothing, that the sink can be brought to where the checkpoint says it was."""
        restored = target.metadata
        if restored is None:
            if sink is not None and (present := sink.first_data()) is not None:
                go_on = "" if asked == LATEST else " To go on instead, launch with restore_from: latest."
                raise SinkNotEmpty(
                    f"Job {self._job.name!r} would start from nothing ({target.reason}), but its sink {sink.path} has "
                    f"data, {present} for example: the file sink would skip every batch id it has seen, and lose rows.",
                    hint=f"To start from nothing, empty {sink.path} (with its _spark_metadata) or write elsewhere."
                    f"{go_on}",
                )
            return
        recorded = None if restored.sink is None else str(restored.sink.get("path"))
        now = None if sink is None else str(sink.path)
        if recorded != now:
            before = "another kind of sink" if recorded is None else f"the file sink {recorded}"
            raise SinkMismatch(
                f"{restored.name} was taken with {before}, and the query now writes to {now or plan.format}.",
                hint=f"Write to {recorded or before} again, or start from nothing into an empty sink with "
                "restore_from: none.",
            )
        if sink is not None:
            sink.check(self._position)

    @property
    def _position(self) -> Path:
        return self._directory / "sink" / "_spark_metadata"

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
        )

    def _forget_other_attempts(self) -> None:
        """A checkpoint of this attempt is complete: the live locations of earlier ones can help nobody."""
        with contextlib.suppress(OSError):
            for directory in self._job.working_directory.iterdir():
                match = _ATTEMPT.fullmatch(directory.name)
                if match is not None and int(match[1]) < self._claim.epoch:
                    shutil.rmtree(directory, ignore_errors=True)


def _describe(rollback: SinkRollback) -> str:
    if not (rollback.log_entries_removed or rollback.data_files_removed or rollback.log_entries_restored):
        return ""
    return (
        f"{rollback.log_entries_removed} log entries removed and {rollback.log_entries_restored} put back, "
        f"{rollback.data_files_removed} uncommitted data files ({rollback.bytes_removed} bytes) removed"
    )
