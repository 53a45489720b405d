"""``<job>_drill``: an asset whose materialization is a restore drill, and the check that is red without a good one."""

# No `from __future__ import annotations`: Dagster must find real types on the nested op functions.

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import duration_of
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, only_stream
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["DRILLED", "build_restore_drill"]

#: The name of the check.
DRILLED = "drilled"
_HAS_FAILED = "The last restore drill failed: "
#: What the observations of a drill tell, and how many are looked at: each drill leaves two at most.
_BEGUN, _FAILED, _INTERRUPTED = "begun", "failed", "interrupted"
_LOOKS = 100


def build_restore_drill(
    asset: CheckpointedStreamingAsset,
    *,
    cron_schedule: str | None = None,
    check_schedule: str | None = None,
    max_age: str | timedelta = "7 d",
    timeout: str | timedelta = "30 min",
    spark: SparkSessionResource | None = None,
    scratch_directory: str | Path | None = None,
    op_config: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """An asset that proves that a job can be restored, to be merged with the definitions of the job.

    Materializing ``<name>_drill`` copies the newest checkpoint aside, restores it there, and computes one batch of the
    job's own query, whose rows go nowhere. The job may be running; nothing of it is touched. The materialization has
    the recovery time and the recovery point as numbers. The asset check ``drilled`` is red when the last drill failed,
    was killed or does not end, or is older than ``max_age``.

    .. code-block:: python

        defs = dg.Definitions.merge(
            build_checkpoint_definitions([turnover], resources=resources),
            build_restore_drill(turnover, cron_schedule="0 4 * * *", check_schedule="0 * * * *", max_age="2 d"),
        )

    Args:
        asset: of the job. Its definitions, with the storage and Spark as resources, are in the same code location.
        cron_schedule: when drills run, such as ``0 4 * * *``; ``None`` leaves that to you.
        check_schedule: when the checks ``restorable``, ``fresh`` and ``drilled`` of the job are evaluated; ``None``
            leaves that to you.
        max_age: how old the last good drill may be.
        timeout: how long the batch of a drill may take; a drill that has not ended by then is one that failed, until
            it ends.
        spark: starts Spark for drills; by default as for the job. A local Spark leaves a cluster alone.
        scratch_directory: where the copy lies: a directory that driver and executors share. By default the temporary
            directory of the machine, for a local Spark.
        op_config: the fields of the function's own configuration, for ``<name>_drill_job``.

    Raises:
        InvalidConfiguration: a duration cannot be read, or the asset is not a stream.
    """
    only_stream(asset, "build_restore_drill")
    longest, oldest = duration_of("timeout", timeout, "2 d"), duration_of("max_age", max_age, "2 d")
    key = dg.AssetKey([*asset.key.path[:-1], f"{asset.key.path[-1]}_drill"])

    @dg.asset(
        key=key,
        deps=[asset.checkpoints_key],
        group_name=next(iter(asset.group_names_by_key.values())),
        kinds={"spark"},
        description=f"Materialize it for a restore drill of {asset.key.to_user_string()}: its newest checkpoint is "
        "restored aside, and the query computes one batch from it that goes nowhere. Nothing of the job is touched.",
        required_resource_keys={asset.storage_key, asset.spark_key, *asset.parameters.resources},
        config_schema=dict(asset.parameters.config_fields()),
    )
    def drill(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dagster_ckpt.orchestration.proof.drilling import run_drill  # noqa: PLC0415 - Spark, only for runs

        def tell(what: str, description: str) -> None:
            # At once: Dagster stores what a function logs when the function has ended.
            told = {"drill": what, "run_id": context.run.run_id}
            observation = dg.AssetObservation(key, description=description, metadata=told)
            context.instance.report_runless_asset_event(observation)

        given = context.op_execution_context.op_config or {}
        tell(_BEGUN, "A restore drill began.")
        try:
            done = run_drill(asset, context, given, spark=spark, scratch_directory=scratch_directory, timeout=longest)
        except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
            tell(_INTERRUPTED, "The restore drill was interrupted, which tells nothing of the checkpoint.")
            raise
        except Exception as error:  # whatever has failed, so has the drill
            told = in_one_line(redacted(error.message if isinstance(error, CheckpointError) else repr(error)))
            tell(_FAILED, told)
            # Dagster skips the check of an asset that was not materialized.
            red = _red(f"{_HAS_FAILED}{told}")
            context.instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=DRILLED,
                    passed=False,
                    severity=red.severity,
                    metadata={},
                    description=red.description,
                )
            )
            raise
        metadata = {name: value for name, value in asdict(done).items() if value is not None}
        return dg.MaterializeResult(metadata={**metadata, "recovery_seconds": done.recovery_seconds})

    drilled = _drilled_check(key, oldest, longest)
    jobs = [
        dg.define_asset_job(
            f"{asset.name}_drill_job",
            selection=dg.AssetSelection.assets(key),  # with its check
            config={"ops": {drill.op.name: {"config": dict(op_config)}}} if op_config else None,
            description=f"A restore drill of {asset.name}.",
            executor_def=dg.in_process_executor,
        ),
        dg.define_asset_job(
            f"{asset.name}_checks_job",
            selection=dg.AssetSelection.checks(asset.restorable, asset.fresh, drilled),
            description=f"Whether {asset.name} can be restored: its newest checkpoint, and its last drill.",
            executor_def=dg.in_process_executor,
        ),
    ]
    schedules = [
        dg.ScheduleDefinition(job=job, cron_schedule=cron, default_status=dg.DefaultScheduleStatus.RUNNING)
        for job, cron in zip(jobs, (cron_schedule, check_schedule), strict=True)
        if cron is not None
    ]
    return dg.Definitions(assets=[drill], asset_checks=[drilled], jobs=jobs, schedules=schedules)


def _drilled_check(key: dg.AssetKey, oldest: timedelta, longest: timedelta) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=DRILLED,
        description=f"Red when the last restore drill failed, or when there was none within {oldest}.",
    )
    def drilled(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        instance = context.instance
        good = instance.fetch_materializations(key, limit=1).records
        if (failure := _failure_after(good[0].storage_id if good else -1, instance, key, longest)) is not None:
            return _red(f"{_HAS_FAILED}{failure}")
        if not good:
            return _red("There was no restore drill yet: materialize this asset.")
        age = max(SystemClock().time() - good[0].timestamp, 0.0)
        if age > oldest.total_seconds():
            return _red(f"The last good restore drill is {timedelta(seconds=int(age))} old.", age_seconds=round(age, 1))
        return dg.AssetCheckResult(
            passed=True,
            metadata={"age_seconds": round(age, 1)},
            description=f"The last restore drill was good, {timedelta(seconds=int(age))} ago.",
        )

    return drilled


def _failure_after(good: int, instance: dg.DagsterInstance, key: dg.AssetKey, longest: timedelta) -> str | None:
    """Why the newest drill after the event ``good`` has failed, of those that tell anything; ``None`` if none has.

    A drill that was killed has told that it began, and nothing more.
    """
    interrupted: dict[str, float] = {}
    for record in instance.fetch_observations(key, limit=_LOOKS).records:
        observation = record.asset_observation
        if record.storage_id < good or observation is None:
            break
        told = {name: value.value for name, value in observation.metadata.items()}
        what, run_id = told.get("drill"), str(told.get("run_id", ""))
        run = instance.get_run_by_id(run_id)
        if run is None and what == _BEGUN:
            continue  # and what it has told is deleted, too
        status = None if run is None else run.status
        if status in {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}:
            continue  # its user has ended it
        if what == _INTERRUPTED:
            interrupted[run_id] = record.timestamp
        elif what != _BEGUN:
            return str(observation.description)
        else:
            if status is dg.DagsterRunStatus.FAILURE and run_id not in interrupted:
                return f"run {run_id} ended without a word: it was killed, perhaps for its memory, or its host is lost."
            # Whoever ends a run that takes too long, as run_monitoring does, has not made the drill a good one.
            age = interrupted.get(run_id, SystemClock().time()) - record.timestamp
            if age > longest.total_seconds():
                return f"run {run_id} has not ended in {timedelta(seconds=int(age))}."
    return None


def _red(why: str, **metadata: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.ERROR, metadata=metadata, description=why)
