"""``dagster_ckpt.run``: one run of a job in this process, without Dagster's instance."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, End, Lease, Submission, last_seen
from dagster_ckpt.clock import Clock, SystemClock
from dagster_ckpt.config import (
    LATEST,
    CheckpointConfig,
    Configuration,
    JobStatus,
    RecoveryClaimMode,
    RestartStrategy,
    StartSources,
    StateBackend,
)
from dagster_ckpt.errors import CheckpointError, NotRestarted, PoisonBatch
from dagster_ckpt.filesystem import unheard
from dagster_ckpt.orchestration import (
    CheckpointedStreamingAsset,
    CheckpointStorage,
    SparkSessionResource,
    going_on,
    own_spark,
    run_drill,
    streaming_job,
)
from dagster_ckpt.spark import Bar, Drilled, Event, RunResult, StreamingRun, describe, no_bar
from dagster_ckpt.standalone.arguments import asset_of, own_fields, resources_of, run_fields
from dagster_ckpt.standalone.pipes import PipesHandler, opened_pipes
from dagster_ckpt.standalone.resumption import Launch, Resumption
from dagster_ckpt.standalone.signals import told_to_end

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Drive", "run"]

_log = logging.getLogger(__name__)

#: Seconds between two looks for a request to cancel the run, where a look costs nothing.
_LOOK = 2.0
#: Seconds by which the query's watch may be late to listen to the bell.
_LATE = 5.0
#: After so many looks of that watch the request is read though nobody has rung: the asker may have died before.
_UNRUNG_LOOKS = 60


def run(
    query: CheckpointedStreamingAsset | Callable[..., DataStreamWriter],
    *,
    storage: CheckpointStorage | None = None,
    spark: SparkSessionResource | None = None,
    resources: Mapping[str, Any] | dg.Definitions | None = None,
    name: str | None = None,
    config: CheckpointConfig | None = None,
    restart: RestartStrategy | None = None,
    state_backend: StateBackend | None = None,
    configuration: Mapping[str, Any] | Configuration | None = None,
    restore_from: str = LATEST,
    claim_mode: RecoveryClaimMode | None = None,
    replay_to: str | int | None = None,
    allow_loss: bool = False,
    fork_from: str | None = None,
    state_partitions: int | None = None,
    start_sources: StartSources | None = None,
    code_version: str | None = None,
    op_config: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run a job in this process until it ends: under checkpoints, and restarted by its own strategy.

    Files and records are those of a run under Dagster, so a job can go from one to the other. A job that is not over
    is resumed: what has failed since its start counts, its delay is waited for, and an interruption counts for
    nothing. Ctrl-C, SIGTERM and SIGHUP interrupt the run: the next run goes on from the newest checkpoint.

    .. code-block:: python

        storage = FileSystemCheckpointStorage(checkpoint_path="/data/checkpoints")
        dagster_ckpt.run(turnover, storage=storage, config=CheckpointConfig(interval="1 min"))

    Args:
        query: a checkpointed streaming asset, or the function of one: takes the context and the session.
        storage: of the checkpoints; by default the one among ``resources``.
        spark: starts Spark; by default the one among ``resources``, else a local Spark.
        resources: by key, as Dagster takes them, or the definitions that have them.
        name: of the job, for a function; by default that of the function.
        config: when checkpoints are taken and kept, for a function; an asset has its own.
        restart: what happens after a failure, for a function; an asset has its own.
        state_backend: keeps the query's state, for a function; an asset has its own.
        configuration: settings by Flink's keys for this run, which win over those of the asset.
        restore_from: ``latest``; ``none``; or a checkpoint or savepoint. These and the next ones are as in the run
            configuration under Dagster.
        claim_mode: whose the restored checkpoint or savepoint becomes.
        replay_to: up to which batch those after the checkpoint are run again as they were.
        allow_loss: restore although rows would be lost or doubled.
        fork_from: a checkpoint or savepoint of any job, to begin with a copy of it.
        state_partitions: the number of partitions that the query's state gets in the restored copy.
        start_sources: where topics of Kafka are read from, in the restored copy.
        code_version: the version of the code that the job runs from now on, of those that the asset has.
        op_config: the fields of the function's own configuration.

    Returns:
        how the job ended, ``FINISHED`` or ``CANCELED``, and its newest checkpoint.

    Raises:
        InvalidConfiguration: an argument cannot be used.
        JobAlreadyRunning: another run of the job is alive, under Dagster or not.
        CheckpointError: the job failed and is not restarted, or only a new process can restart it (``DriverLost``).
    """
    return Drive.of(
        query,
        storage=storage,
        spark=spark,
        resources=resources,
        name=name,
        config=config,
        restart=restart,
        state_backend=state_backend,
        configuration=configuration,
        restore_from=restore_from,
        claim_mode=claim_mode,
        replay_to=replay_to,
        allow_loss=allow_loss,
        fork_from=fork_from,
        state_partitions=state_partitions,
        start_sources=start_sources,
        code_version=code_version,
        op_config=op_config,
    ).run()


@dataclass(frozen=True)
class Drive:
    """One run of an asset's job in this process.

    Attributes:
        asset: of the job.
        resources: by key.
        op_config: the run configuration, as under Dagster.
        run_id: 32 hex digits.
        earlier: the drivers that this one replaces, oldest first.
        on_event: called with each event, on the calling thread.
        on_resume: called when the job may be resumed, before the run takes the job over.
        submission: what a Dagster run has submitted this driver for. The run decides when the job is resumed.
    """

    asset: CheckpointedStreamingAsset
    resources: Mapping[str, Any]
    op_config: Mapping[str, Any]
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    earlier: Sequence[Launch] = ()
    on_event: Callable[[Event], object] = unheard
    on_resume: Callable[[], object] = list
    submission: Submission | None = None

    @classmethod
    def of(
        cls,
        query: CheckpointedStreamingAsset | Callable[..., DataStreamWriter],
        *,
        storage: CheckpointStorage | None = None,
        spark: SparkSessionResource | None = None,
        resources: Mapping[str, Any] | dg.Definitions | None = None,
        name: str | None = None,
        config: CheckpointConfig | None = None,
        restart: RestartStrategy | None = None,
        state_backend: StateBackend | None = None,
        configuration: Mapping[str, Any] | Configuration | None = None,
        op_config: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> Drive:
        """The drive for the arguments of :func:`run`.

        Raises:
            InvalidConfiguration: an argument cannot be used.
        """
        asset = asset_of(query, name=name, config=config, restart=restart, state_backend=state_backend)
        given = {**own_fields(asset, op_config or {}), **run_fields(configuration, asked)}
        asset.versions.check_known(asset.settings.of_run(given).request.code_version)
        return cls(asset, resources_of(asset, storage, spark, resources), given)

    def has_failed(self, error: BaseException) -> bool:
        """Whether the job is over, now that the run has raised ``error``: it ended FAILED, which is on record."""
        key = self.asset.storage_key
        with contextlib.suppress(Exception), dg.build_asset_context(resources={key: self.resources[key]}) as context:
            epochs = getattr(context.resources, key).catalog(self.asset.name).records.epochs
            epoch = epochs.highest()
            claim, end = epochs.read_claim(epoch), epochs.read_end(epoch)
            own = isinstance(error, NotRestarted | PoisonBatch) or claim.run_id == self.run_id
            return bool(own and end.status == JobStatus.FAILED.value)
        return False

    def run(self) -> RunResult:
        """Run the job to its end; see :func:`run`."""
        with dg.build_asset_context(resources=dict(self.resources)) as context, told_to_end():
            storage: CheckpointStorage = getattr(context.resources, self.asset.storage_key)
            catalog = storage.catalog(self.asset.name)
            if self.submission is None:
                return self._run(context, catalog, self._tell)
            messages, in_bucket = catalog.records.messages(self.submission.number), catalog.filesystem.is_distant
            with opened_pipes(messages, self.asset.key, self.run_id, in_bucket=in_bucket) as pipes:
                # Before Dagster's own handler, which writes the names of the run into the line.
                context.log.handlers.insert(0, PipesHandler(pipes))
                return self._run(context, catalog, partial(self._tell, dagster=pipes.log))

    def _run(
        self, context: dg.AssetExecutionContext, catalog: CheckpointCatalog, tell: Callable[[Event], None]
    ) -> RunResult:
        clock, given = SystemClock(), self.op_config
        if self.earlier and {launch.run_id for launch in self.earlier} & catalog.records.epochs.runs_with_choice():
            given = going_on(given)
        settings = self.asset.settings.of_run(given)
        for warning in settings.warnings:
            _log.warning("%s", warning)
        job = streaming_job(self.asset, settings, context, given, catalog.filesystem)
        series: int | End | None = None if self.submission is None else self.submission.series
        if self.submission is None and (self.earlier or settings.request.is_plain):
            series = Resumption(job, catalog, self.earlier, clock, time.sleep).series()
        if isinstance(series, End):
            return RunResult.of_job_over(catalog, series)
        self.on_resume()
        asked = _Cancellation(catalog, self.run_id, clock, Lease.of(settings.config))

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            asked.run = StreamingRun(
                job,
                run_id=self.run_id,
                request=settings.request,
                series=series,
                clock=clock,
                emit=emit,
                submission=self.submission,
            )
            return asked.run

        spark = own_spark(getattr(context.resources, self.asset.spark_key))
        return spark.supervise(start, tell, on_turn=asked.look, is_cancellation=lambda: False)

    def drill(self, *, scratch_directory: str | Path | None, timeout: timedelta, bar: Bar = no_bar) -> Drilled:
        """Restore the job's newest checkpoint aside; see :func:`~dagster_ckpt.restore_drill`."""
        with dg.build_asset_context(resources=dict(self.resources)) as context:
            return run_drill(
                self.asset, context, self.op_config, scratch_directory=scratch_directory, timeout=timeout, bar=bar
            )

    def _tell(self, event: Event, dagster: logging.Logger | None = None) -> None:
        for level, text in describe(event):
            _log.log(level, "%s: %s", self.asset.name, text)
            if dagster is not None:
                dagster.log(level, "%s", text)
        self.on_event(event)


class _Cancellation:
    """Cancels a run when somebody asks for that through the storage.

    Args:
        catalog: of the job.
        run_id: of the run.
        clock: monotonic time.
        lease: of the run; looks at a bucket follow it.
    """

    def __init__(self, catalog: CheckpointCatalog, run_id: str, clock: Clock, lease: Lease) -> None:
        self.run: StreamingRun | None = None
        self._requests = catalog.records.savepoint_requests
        self._run_id = run_id
        self._clock = clock
        self._every = lease.look(_LOOK, catalog.filesystem)
        self._looked_at, self._has_read = clock.monotonic(), False

    def look(self) -> None:
        """Look for a request from time to time, and at once when somebody has rung."""
        now = self._clock.monotonic()
        if now - self._looked_at < self._rest(now):
            return
        self._looked_at, self._has_read = now, False
        with contextlib.suppress(OSError, CheckpointError):  # who asks sees that nothing happens, and asks again
            if self.run is not None:
                if self._requests.is_to_cancel(self._run_id):
                    self.run.cancel()
                self._has_read = True

    def _rest(self, now: float) -> float:
        """Seconds from the last look to the next one.

        The query's own watch listens to the bell as often. While it does, another read tells nothing more, except of
        an asker that died before it rang.
        """
        heard = last_seen(self._requests.heard_as)
        if heard is None or not self._has_read:
            return self._every
        rung_at, listened_at = heard
        if rung_at >= self._looked_at:
            return 0.0
        return self._every * (_UNRUNG_LOOKS if now - listened_at <= self._every + _LATE else 1)
