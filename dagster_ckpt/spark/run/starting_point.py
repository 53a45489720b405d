"""What a start resumes from: the newest checkpoint, the requested one, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    CompletedCheckpointStore,
    Gauge,
    Newest,
    RestoreInProgress,
    claimed_savepoint,
    find_newest,
    refuse_half_deleted,
)
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.config import LATEST, NONE, RecoveryClaimMode, RestoreRequest
from dagster_ckpt.errors import CheckpointsLost, CorruptRecord
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark.events import Event
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.live import LiveLocation, recorded_live
from dagster_ckpt.spark.query import known_providers
from dagster_ckpt.spark.run.fallback import FallbackChain
from dagster_ckpt.spark.run.salvage import Salvaging
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.start_tracer import StartTracer

__all__ = ["Began", "Choosing", "claimed_by", "last_to_choose", "previous_choice", "sink_began"]

_log = logging.getLogger(__name__)


class Began(NamedTuple):
    """The first start of a lineage with a sink: when that was, in seconds, and its epoch, 0 if unknown."""

    time: float
    epoch: int


class Choosing:
    """Chooses what one start resumes from, and unpacks it.

    Args:
        job: the job.
        catalog: the job's checkpoints.
        claim: the epoch of the start.
        clock: wall and monotonic time.
        emit: called with each event.
        live: the new live location, into which the checkpoint is unpacked.
        directory: the start's directory in the working directory.
        store: opens the store for a salvaged checkpoint.
        tracer: measures the steps.
    """

    def __init__(
        self,
        job: StreamingJob,
        catalog: CheckpointCatalog,
        claim: Claim,
        clock: Clock,
        emit: Callable[[Event], None],
        *,
        live: LiveLocation,
        directory: Path,
        store: Callable[[str, int, str | None], CompletedCheckpointStore],
        tracer: StartTracer,
    ) -> None:
        self._job = job
        self._catalog = catalog
        self._claim = claim
        self._clock = clock
        self._emit = emit
        self._live = live
        self._directory = directory
        self._store = store
        self._tracer = tracer

    def target(self, request: RestoreRequest, previous: tuple[int, Choice] | None) -> Newest:
        """What to resume from, verified and unpacked.

        Args:
            request: what the start was asked to begin with.
            previous: the choice of the newest earlier start, and its epoch.

        Raises:
            CheckpointNotFound: the pointer names nothing.
            CorruptCheckpoint: the checkpoint is not what was written.
            CheckpointsLost: the checkpoints were in the memory of a driver that is gone.
            RestoreRefused: the history of a series is deleting the savepoint.
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        if request.restore_from == LATEST:
            return self._newest(previous)
        target = self._asked(request)
        if target.metadata is not None:
            self._unpack(target.metadata)
        return target

    def _newest(self, previous: tuple[int, Choice] | None) -> Newest:
        if previous is None:
            return find_newest(self._catalog)
        self._refuse_if_lost(previous[0])
        config, providers = self._job.config, known_providers(self._job.state_backend)
        pins = self._directory.with_suffix(".salvage")
        chain = FallbackChain(
            self._catalog,
            self._claim,
            self._clock,
            self._emit,
            opted_in=config.fallback_to_older,
            newest=lambda: find_newest(self._catalog, prefer_checkpoint=config.prefer_checkpoint_for_recovery),
            unpack=self._unpack,
            salvaging=Salvaging(
                self._catalog,
                providers,
                previous,
                recorded_live(previous[1], self._job.filesystem),
                pins,
                self._store,
            ),
        )
        return chain.newest()

    def _unpack(self, metadata: CheckpointMetadata) -> None:
        def tell(restored: int, total: int, seconds: float) -> None:
            self._emit(RestoreInProgress(metadata.reference, restored, total, seconds))

        gauge = Gauge(self._clock, tell)
        gauge.begin(metadata.size)
        self._tracer.begin("unpack")
        self._live.unpack(self._catalog, metadata, self._directory, gauge.add)

    def _asked(self, request: RestoreRequest) -> Newest:
        if request.restore_from == NONE:
            return Newest(None, None, "a start from nothing was asked for")
        metadata = self._catalog.resolve(request.restore_from)
        refuse_half_deleted(self._catalog, metadata)
        claim_mode = request.claim_mode
        if claim_mode is None:
            claim_mode = RecoveryClaimMode.CLAIM if metadata.location is None else RecoveryClaimMode.NO_CLAIM
        job_id = metadata.job_id if claim_mode is RecoveryClaimMode.CLAIM else None
        return Newest(metadata, job_id, f"{metadata.name} was asked for ({claim_mode})")

    def _refuse_if_lost(self, epoch: int) -> None:
        """Refuse checkpoints in the memory of another run's driver: only the run that took them can use them."""
        if self._job.filesystem.is_durable or self._catalog.given_up() is not None:
            return
        before = self._catalog.records.epochs.read_claim(epoch)
        if before is not None and before.run_id != self._claim.run_id:
            raise CheckpointsLost(
                f"The checkpoints of job {self._job.name!r} were in the memory of the driver of run {before.run_id}, "
                "and are gone with it: JobManagerCheckpointStorage without a checkpoint_path restarts a "
                "failing query inside its run only.",
                hint="To begin again, empty the sink and launch with restore_from: none. To keep checkpoints from now "
                "on, give the storage a checkpoint_path, or use FileSystemCheckpointStorage.",
            )


def previous_choice(catalog: CheckpointCatalog, request: RestoreRequest) -> tuple[int, Choice] | None:
    """The choice of the start before; a damaged choice does not matter if the request names a checkpoint."""
    try:
        return catalog.choice()
    except CorruptRecord as error:
        if request.restore_from == LATEST:
            raise
        _log.warning("What the start before chose is not known: %s", error.message)
        return None


def last_to_choose(catalog: CheckpointCatalog, previous: tuple[int, Choice] | None) -> int | None:
    """The epoch of the newest choice, 0 if no start has come to choose; ``None`` if it is not known."""
    if previous is not None:
        return previous[0]
    return None if any("choice" in kinds for kinds in catalog.records.epochs.names().values()) else 0


def claimed_by(
    catalog: CheckpointCatalog, target: Newest, previous: Choice | None, *, asked: bool
) -> CheckpointMetadata | None:
    """The savepoint that the lineage owns and may delete: claimed now, or by an earlier start."""
    restored = target.metadata
    if previous is not None and previous.claimed is not None and previous.job_id == target.job_id:
        before = claimed_savepoint(catalog, previous)
    else:
        before = None
    if not asked or restored is None or restored.location is None or restored.job_id != target.job_id:
        return before
    return restored


def sink_began(catalog: CheckpointCatalog, sink: Sink | None, target: Newest) -> Began | None:
    """The lineage's first start with this sink, if the lineage began from nothing and has no checkpoint yet.

    The sink was empty at that time, so all its data belongs to this lineage and is written again. The query may have
    been given the sink later than at the first start of the lineage; then nobody knows that a sink was empty which does
    not tell what it has.
    """
    if sink is None or target.metadata is not None or target.job_id is None:
        return None
    epochs, is_first = catalog.records.epochs, True
    known = sorted(epochs.names())
    for epoch in known:
        choice = epochs.read_choice(epoch)
        if choice is None or (choice.job_id, choice.restored) != (target.job_id, None):
            continue
        claim = epochs.read_claim(epoch)
        is_this = choice.sink_kind == sink.kind and choice.sink is not None and is_same_place(choice.sink, sink.path)
        if claim is not None and is_this:
            is_known = is_first or sink.tells_data or not sink.can_roll_back
            # Of very many starts the oldest are forgotten, and the lineage may be older than what is left.
            first = epoch if epoch > known[0] else 0
            return Began(seconds_of(claim.claimed_at), first) if is_known else None
        is_first = False
    return None
