"""What a run of a checkpointed streaming asset does: drive the query, and report its checkpoints to Dagster.

With a :class:`SparkSubmitResource` a driver of its own drives the query, and the run attends it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, Choice, Claim, FailedCheckpoints, ProcessIdentity
from dagster_ckpt.clock import Clock, SystemClock, seconds_of
from dagster_ckpt.config import JobStatus
from dagster_ckpt.errors import CheckpointError, Fenced, JobAlreadyRunning
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending import (
    OwnRun,
    SparkSubmitResource,
    Told,
    attended,
    interrupts_in_words,
    own_spark,
)
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.events import JobEvents, PipesMessages, RequestEvents, savepoint_observation, say
from dagster_ckpt.orchestration.health import HealthWatch, evaluation
from dagster_ckpt.orchestration.one_run import give_way, tell_of_others
from dagster_ckpt.orchestration.reporting import CheckpointReporter, FirstRows, start_observation
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.orchestration.rollback import Launchpad, check_wanted
from dagster_ckpt.orchestration.run_settings import RunSettings, config_of_run, op_config
from dagster_ckpt.orchestration.standby import StandbyRun, Takeover
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointQuarantined,
    CheckpointsDiscarded,
    CheckpointsSubsumed,
    Earlier,
    EpochClaimed,
    Event,
    RequestTold,
    RunResult,
    SavepointCompleted,
    Started,
    StartTraced,
    StreamingJob,
    StreamingRun,
    describe,
    die_with_parent,
)

__all__ = ["execute", "streaming_job"]

_log = logging.getLogger(__name__)


def streaming_job(
    asset: CheckpointedStreamingAsset,
    run: RunSettings,
    context: dg.AssetExecutionContext,
    op_config: Mapping[str, Any],
    filesystem: FileSystem,
) -> StreamingJob:
    """The job of an asset.

    Args:
        asset: the asset.
        run: the settings of the run.
        context: has the resources, and goes to the asset's function.
        op_config: the run configuration, for the function's own part of it.
        filesystem: of the run's catalog.

    Raises:
        InvalidConfiguration: the storage or the run configuration cannot be used, or the asset has no such version.
    """
    asset.versions.check_known(run.request.code_version)
    spark = own_spark(getattr(context.resources, asset.spark_key))
    arguments = asset.parameters.arguments(context, op_config)
    return StreamingJob.stored_in(
        getattr(context.resources, asset.storage_key),
        filesystem,
        name=asset.name,
        query=lambda session: asset.function(context, session, **arguments),
        session=partial(spark.session, asset.name, asset.launch_conf),
        start_jvm=partial(spark.start_jvm, asset.name, asset.launch_conf) if spark.starts_early else None,
        config=run.config,
        restart=run.restart,
        state_backend=asset.state_backend,
        poison_batch_attempts=run.poison_batch_attempts,
        versions=asset.versions.bound(context, **arguments),
    )


def execute(
    context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset, report_interval: float
) -> Iterator[dg.MaterializeResult[None]]:
    """Run the query of a job until it ends, and report to Dagster; a standby first waits until its turn has come.

    Yields nothing when a standby has not taken the job over.

    Args:
        context: of the run.
        asset: of the job.
        report_interval: the least seconds between two reports.

    Raises:
        CheckpointError: the start was refused, or the job failed and is not restarted within this run.
        DagsterExecutionInterruptedError: the run was canceled, or told to end.
    """
    with interrupts_in_words(context.instance, context.run.run_id):
        result = _run(context, asset, report_interval)
    if result is not None:
        yield _materialized(result)


def _run(
    context: dg.AssetExecutionContext, asset: CheckpointedStreamingAsset, report_interval: float
) -> RunResult | None:
    """Run the query until it ends; ``None`` when a standby has not taken the job over."""
    storage: CheckpointStorage = getattr(context.resources, asset.storage_key)
    catalog = storage.catalog(asset.name)
    tell_of_others(context, asset)
    events = JobEvents(context.instance, partial(_log_event, context), asset.key, catalog, SystemClock())
    if names.stands_by(context.run.tags):
        result = _after_standing_by(context, asset, catalog, events, report_interval)
    else:
        is_resumed = names.is_resumed(context.run, context.instance)
        try:
            check_wanted(context.instance, catalog, context.run)
            result = _drive(context, asset, catalog, events, report_interval)
        except CheckpointError as error:
            if isinstance(error, JobAlreadyRunning) and not is_resumed:
                give_way(context, asset, error, SystemClock())
            events.ended(error, context.run.run_id, is_resumed=is_resumed)
            raise
    if result is not None and result.status is JobStatus.CANCELED:
        # A driver of its own was canceled through the storage. Dagster calls a run failed that ends so unasked.
        run = context.instance.get_run_by_id(context.run.run_id)
        if run is not None and not run.is_finished and run.status is not dg.DagsterRunStatus.CANCELING:
            context.instance.report_run_canceling(run, "dagster_ckpt: the job was canceled outside of Dagster")
        raise dg.DagsterExecutionInterruptedError
    return result


def _after_standing_by(
    context: dg.AssetExecutionContext,
    asset: CheckpointedStreamingAsset,
    catalog: CheckpointCatalog,
    events: JobEvents,
    report_interval: float,
) -> RunResult | None:
    """Wait beside the job, and drive it when its run is dead; ``None`` when there was nothing to take over."""
    own_run, given = OwnRun(context.instance, context.run.run_id, SystemClock()), op_config(context.run, asset.op_name)

    def job() -> StreamingJob:
        return streaming_job(asset, asset.settings.of_run(given), context, given, catalog.filesystem)

    waiting = StandbyRun(context, asset, catalog, SystemClock(), own_run.look, job)
    try:
        while (takeover := waiting.wait()) is not None:
            try:
                return _drive(context, asset, catalog, events, report_interval, (waiting, takeover))
            except CheckpointError as error:
                is_beaten = isinstance(error, (Fenced, JobAlreadyRunning)) and not waiting.has_claimed
                if not is_beaten or not waiting.waits_on(error.message):
                    events.ended(error, context.run.run_id, is_resumed=True)
                    raise
        return None
    finally:
        waiting.leave()


def _drive(
    context: dg.AssetExecutionContext,
    asset: CheckpointedStreamingAsset,
    catalog: CheckpointCatalog,
    events: JobEvents,
    report_interval: float,
    standby: tuple[StandbyRun, Takeover] | None = None,
) -> RunResult:
    """Start the query and supervise it until it ends; ``standby`` is what this run has been, and goes on from."""
    clock = SystemClock()
    spark: SparkSessionResource | SparkSubmitResource = getattr(context.resources, asset.spark_key)
    waiting, takeover = standby or (None, None)
    resumed = context.run.tags.get(names.SERIES_TAG) if names.is_resumed(context.run, context.instance) else None
    series = takeover.series if takeover is not None else None if resumed is None else int(resumed)
    given = config_of_run(context, catalog) if takeover is None else takeover.given
    run = asset.settings.of_run(given)
    for warning in run.warnings:
        say(context.log, logging.WARNING, warning)
    is_step_process = _is_step_process(context)
    if is_step_process:
        die_with_parent()
    if waiting is None:
        context.instance.add_run_tags(context.run.run_id, {names.JOB_TAG: asset.name})
    tell = partial(_log_event, context)
    launchpad = Launchpad.of_run(context.run, asset.name)
    reporter = CheckpointReporter(
        context.instance, tell, asset.checkpoints_key, asset.partitions_name, catalog, clock, report_interval, launchpad
    )
    own_run = OwnRun(context.instance, context.run.run_id, clock)
    health = HealthWatch(
        lambda: evaluation(asset.key, catalog, clock, lambda _: run.config, asset.most_restarts_per_hour),
        context.instance.report_runless_asset_event,
        clock,
    )
    requests = RequestEvents(context.instance, tell, asset.savepoints_key, asset.checkpoints_key, catalog, clock)
    has_own_driver = isinstance(spark, SparkSubmitResource) or names.attends(context.run.tags) is not None

    def on_turn() -> None:
        own_run.look()
        if waiting is not None:
            waiting.settle()
        events.tick()
        reporter.tick()
        health.tick()
        if has_own_driver:
            requests.tick()

    health.hears_all(catalog.filesystem)
    first_rows = FirstRows(context.instance, asset.get_asset_spec(), context.asset_key)
    if isinstance(spark, SparkSubmitResource) or has_own_driver:
        told = _told(context, on_turn, own_run, events, health, first_rows)
        with requests.to_the_end():
            return attended(context, asset, spark, catalog, reporter, told, given, series)
    job = streaming_job(asset, run, context, given, catalog.filesystem)
    job = replace(job, ahead=None if waiting is None else waiting.ahead)
    earlier = _earlier(context, clock) if takeover is None else takeover.earlier

    def start(emit: Callable[[Event], None]) -> StreamingRun:
        return StreamingRun(
            job,
            run_id=context.run.run_id,
            request=run.request,
            series=series,
            clock=clock,
            emit=emit,
            worker=os.getppid() if is_step_process else None,
            earlier=earlier,
            after=None if takeover is None else takeover.after,
        )

    def on_event(event: Event) -> None:
        if waiting is not None:
            waiting.happened(event)
        health.happened(event)
        try:
            _on_event(context, reporter, asset.savepoints_key, event)
        finally:  # one report that fails costs no other
            events.happened(event)
            first_rows.happened(event)
            if isinstance(event, RequestTold):
                requests.changed(event.request, event.state, event.reason, event.next_step)

    try:
        return spark.supervise(start, on_event, on_turn=on_turn, is_cancellation=own_run.is_canceled)
    finally:
        _last_report(context, reporter)


def _told(
    context: dg.AssetExecutionContext,
    on_turn: Callable[[], None],
    own_run: OwnRun,
    events: JobEvents,
    health: HealthWatch,
    first_rows: FirstRows,
) -> Told:
    """Who is told of a driver that a run attends: Dagster, as of a query that the run drives itself."""

    def claimed(claim: Claim) -> None:
        if claim.epoch != claim.series:
            health.began()  # a start has failed
            events.look(goes_on=True)
        events.happened(EpochClaimed(claim.epoch))

    def started(choice: Choice) -> None:
        health.began()
        first_rows.began(is_bounded=choice.is_bounded)
        _tag(context, choice.job_id, choice.restored)
        events.look(goes_on=True)

    def failed(checkpoints: FailedCheckpoints) -> None:
        events.happened(CheckpointFailed(checkpoints.number, checkpoints.reason, checkpoints.in_a_row))

    return Told(
        on_turn,
        own_run.is_canceled,
        claimed,
        started,
        first_rows.completed,
        lambda trace: _log_event(context, start_observation(context.asset_key, trace)),
        failed,
        health.beaten,
        partial(say, context.log),
        PipesMessages(context, partial(_log_event, context)).tell,
    )


def _earlier(context: dg.AssetExecutionContext, clock: Clock) -> Earlier | None:
    """What happened before this call: from the failure, if the sensor launched the run, else from the launch."""
    try:
        record = context.instance.get_run_record_by_id(context.run.run_id)
        now, tags = clock.time(), context.run.tags
        began = now - ProcessIdentity.current().age(now)
        ended = [("process", began), ("imports", now)]
        if record is None:
            return Earlier(began, ended[1:])
        launched = record.create_timestamp.timestamp()
        if not names.is_resume(tags) or names.DETECTED_AT_TAG not in tags:
            return Earlier(launched, ended)
        detected = [("detected", seconds_of(tags[names.DETECTED_AT_TAG])), ("decided", launched)]
        return Earlier(seconds_of(tags[names.FAILED_AT_TAG]), [*detected, *ended])
    except Exception as error:  # the trace is no reason for a run to fail
        _log.warning("What happened before this run is not in its trace: %s", error)
        return None


def _is_step_process(context: dg.AssetExecutionContext) -> bool:
    """Whether this process runs a single step, below the process of the run."""
    executor = context.op_execution_context.job_def.executor_def.name
    if executor == dg.multi_or_in_process_executor.name:
        run_config: dict[str, Any] = dict(context.run.run_config)
        return "in_process" not in run_config.get("execution", {}).get("config", {})
    return executor == dg.multiprocess_executor.name


def _tag(context: dg.AssetExecutionContext, job_id: str, restored: str | None) -> None:
    tags = {names.JOB_ID_TAG: job_id, names.RESTORED_FROM_TAG: restored or "nothing"}
    try:
        context.instance.add_run_tags(context.run.run_id, tags)
    except Exception as error:  # the run was deleted: its checkpoints are reported all the same
        say(context.log, logging.WARNING, f"This run does not get the tags {', '.join(tags)}: {redacted(str(error))}")


def _log_event(
    context: dg.AssetExecutionContext, event: dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
) -> None:
    context.log_event(event)
    # The event log has the event now. Dagster would also keep it in memory until the asset ends: months, for a stream.
    for _ in context.op_execution_context.consume_events():
        pass


def _last_report(context: dg.AssetExecutionContext, reporter: CheckpointReporter) -> None:
    try:
        reporter.flush()
    except Exception as error:  # a failed report must not hide how the run ended
        say(context.log, logging.WARNING, f"The last checkpoints could not be reported: {redacted(str(error))}")


def _on_event(
    context: dg.AssetExecutionContext, reporter: CheckpointReporter, savepoints_key: dg.AssetKey, event: Event
) -> None:
    for level, text in describe(event):
        say(context.log, level, text)
    match event:
        case EpochClaimed(epoch):
            reporter.holds(epoch)
        case Started():
            _tag(context, event.job_id, event.restored.reference if event.restored else None)
            reporter.began(event.retained)
            if event.fell_back is not None:
                reporter.fell_back(event.fell_back)
        case SavepointCompleted(metadata):
            _log_event(context, savepoint_observation(savepoints_key, metadata))
        case StartTraced(trace):
            _log_event(context, start_observation(context.asset_key, trace))
        case CheckpointQuarantined(record):
            reporter.quarantined(record)
        case CheckpointCompleted(_, retained):
            reporter.completed(retained)
        case CheckpointsSubsumed(discarded, retained):
            reporter.subsumed(discarded, retained)
        case CheckpointsDiscarded(discarded, retained):
            reporter.discarded(discarded, retained)


def _materialized(result: RunResult) -> dg.MaterializeResult[None]:
    if (newest := result.newest) is None:
        return dg.MaterializeResult()
    return dg.MaterializeResult(
        metadata={
            "batch": newest.batch,
            "checkpoint": newest.reference,
            "lineage": newest.job_id,
            "sink": dg.MetadataValue.json(dict(newest.sink or {})),
        }
    )
