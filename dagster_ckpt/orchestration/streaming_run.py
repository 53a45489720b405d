"""What a run of a checkpointed streaming asset does: drive the query, and report its checkpoints to Dagster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog
from dagster_ckpt.clock import Clock, SystemClock
from dagster_ckpt.config import JobStatus, StateBackend
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.run_settings import RunSettings
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.spark import (
    CheckpointCompleted,
    CheckpointQuarantined,
    CheckpointsDropped,
    EpochClaimed,
    Event,
    RunResult,
    Started,
    StreamingJob,
    StreamingRun,
    describe,
    die_with_parent,
    supervise,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["OwnRun", "execute"]

_log = logging.getLogger(__name__)

#: Seconds between two checks of a run's own status in Dagster.
_LOOK = 10.0


def execute(
    context: dg.AssetExecutionContext,
    run: RunSettings,
    query: Callable[[SparkSession], DataStreamWriter],
    *,
    name: str,
    storage: CheckpointStorage,
    spark: SparkSessionResource,
    state_backend: StateBackend | None,
    checkpoints_key: dg.AssetKey,
    partitions: str,
    report_interval: float,
) -> dg.MaterializeResult[None]:
    """Run the query of a job until it ends, and report to Dagster.

    Args:
        context: of the run.
        run: the settings of the run.
        query: makes the query in the given session.
        name: of the job.
        storage: of the job's checkpoints.
        spark: starts Spark.
        state_backend: keeps the query's state; ``None`` for Spark's configuration.
        checkpoints_key: the asset that stands for the checkpoints.
        partitions: name of the asset's dynamic partitions.
        report_interval: the least seconds between two reports.

    Raises:
        DagsterExecutionInterruptedError: the run was canceled.
    """
    for warning in run.warnings:
        context.log.warning(warning)
    required = None if state_backend is None else state_backend.launch_conf()
    clock = SystemClock()
    filesystem = storage.filesystem()
    catalog = CheckpointCatalog(filesystem, name)
    is_step_process = _is_step_process(context)
    if is_step_process:
        die_with_parent()
    context.instance.add_run_tags(context.run.run_id, {names.JOB_TAG: name})
    reporter = CheckpointReporter(
        context.instance,
        partial(_log_event, context),
        checkpoints_key,
        partitions,
        catalog,
        clock,
        report_interval,
    )
    job = StreamingJob(
        name=name,
        query=query,
        session=lambda: spark.session(name, required),
        config=run.config,
        restart=run.restart,
        filesystem=filesystem,
        working_directory=storage.live_directory(name),
        deployment=storage.deployment,
        inline_threshold=storage.inline_threshold,
        savepoint_path=storage.savepoint_path,
        max_state_size=storage.size_limit,
        state_backend=state_backend,
        poison_batch_attempts=run.poison_batch_attempts,
        live_location=storage.live_place,
        shares_disk=storage.working_directory is not None,
        private_from=storage.private_from,
    )
    series = context.run.tags.get(names.SERIES_TAG)

    def start(emit: Callable[[Event], None]) -> StreamingRun:
        return StreamingRun(
            job,
            run_id=context.run.run_id,
            request=run.request,
            series=None if series is None else int(series),
            clock=clock,
            emit=emit,
            worker=os.getppid() if is_step_process else None,
        )

    own_run = OwnRun(context.instance, context.run.run_id, clock)

    def on_turn() -> None:
        own_run.look()
        reporter.tick()

    try:
        result = supervise(
            start,
            lambda event: _on_event(context, reporter, event),
            on_turn=on_turn,
            is_cancellation=own_run.is_canceled,
        )
    finally:
        _last_report(context, reporter)
    if result.status is JobStatus.CANCELED:
        # Only an interrupt of this thread cancels a run, and `supervise` raises the interrupt.
        raise dg.DagsterExecutionInterruptedError
    return _materialized(result)


class OwnRun:
    """A Dagster run, as the run's own process sees it.

    Args:
        instance: the Dagster instance.
        run_id: of the run.
        clock: monotonic time.
    """

    def __init__(self, instance: dg.DagsterInstance, run_id: str, clock: Clock) -> None:
        self._instance = instance
        self._run_id = run_id
        self._clock = clock
        self._looked_at = clock.monotonic()

    def is_canceled(self) -> bool:
        """Whether a user has canceled the run: Dagster records that before it interrupts the run.

        Any other interrupt ends the process (its host is drained or shut down, ``dagster dev`` is stopped by Ctrl-C),
        and Dagster calls the run failed.
        """
        return self._status() in {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}

    def look(self) -> None:
        """Check the run's status in Dagster from time to time, and end the run when Dagster counts it as over.

        The run was marked as over while it showed no sign of life. Then nobody can terminate the run in
        Dagster any more, and no other run can continue the job while this one lives.

        Raises:
            DagsterExecutionInterruptedError: Dagster counts the run as over.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        status = self._status()
        if status in {dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE}:
            _log.warning("Dagster has this run down as %s already, so it stops", status.value)
            raise dg.DagsterExecutionInterruptedError

    def _status(self) -> dg.DagsterRunStatus | None:
        run = self._instance.get_run_by_id(self._run_id)
        return None if run is None else run.status


def _is_step_process(context: dg.AssetExecutionContext) -> bool:
    """Whether this process runs a single step, below the process of the run."""
    executor = context.op_execution_context.job_def.executor_def.name
    if executor == dg.multi_or_in_process_executor.name:
        run_config: dict[str, Any] = dict(context.run.run_config)
        return "in_process" not in run_config.get("execution", {}).get("config", {})
    return executor == dg.multiprocess_executor.name


def _log_event(context: dg.AssetExecutionContext, event: dg.AssetMaterialization | dg.AssetObservation) -> None:
    context.log_event(event)
    # The event log has the event now. Dagster would also keep it in memory until the asset ends: months, for a stream.
    for _ in context.op_execution_context.consume_events():
        pass


def _last_report(context: dg.AssetExecutionContext, reporter: CheckpointReporter) -> None:
    try:
        reporter.flush()
    except Exception as error:  # a failed report must not hide how the run ended
        context.log.warning(f"The last checkpoints could not be reported: {error}")


def _on_event(context: dg.AssetExecutionContext, reporter: CheckpointReporter, event: Event) -> None:
    for level, text in describe(event):
        context.log.log(level, text)
    match event:
        case EpochClaimed(epoch):
            reporter.holds(epoch)
        case Started():
            context.instance.add_run_tags(
                context.run.run_id,
                {
                    names.JOB_ID_TAG: event.job_id,
                    names.RESTORED_FROM_TAG: event.restored.reference if event.restored else "nothing",
                },
            )
            reporter.began(event.retained)
            if event.fell_back is not None:
                reporter.fell_back(event.fell_back)
        case CheckpointQuarantined(record):
            reporter.quarantined(record)
        case CheckpointCompleted(_, dropped, retained):
            reporter.completed(dropped, retained)
        case CheckpointsDropped(dropped, retained):
            reporter.dropped(dropped, retained)


def _materialized(result: RunResult) -> dg.MaterializeResult[None]:
    newest = result.newest
    return dg.MaterializeResult(
        metadata={}
        if newest is None
        else {
            "batch": newest.batch,
            "checkpoint": newest.reference,
            "lineage": newest.job_id,
            "sink": dg.MetadataValue.json(dict(newest.sink or {})),
        }
    )
