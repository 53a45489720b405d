"""The resume sensor: finds jobs whose run has died or failed, and launches a run that continues the job.

At every tick a look at each job tells whether there is anything to do. Jobs are looked at side by side, and what an
earlier look has read and what cannot have changed since is not read again. A tick that finds nothing to do stays a
little, and looks again when the process of a run dies (:mod:`.staying`). For a job with something to do the sensor
reads all facts anew (the storage first, Dagster's runs second), so it may be stopped, doubled or moved to another
instance at any time. In a bucket such jobs are acted on side by side, too. The sensor also launches the runs that
rollbacks wait for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, Sight
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.rollback import pending, requested
from dagster_ckpt.orchestration.sensors.launching import launch_jvm, why_refused
from dagster_ckpt.orchestration.sensors.loaded_code import loaded_code
from dagster_ckpt.orchestration.sensors.standby_runs import StandbyRuns
from dagster_ckpt.orchestration.sensors.staying import (
    AFTER_NEWS,
    AGAIN,
    LONGEST_TICK,
    STAY,
    drivers_here,
    may_stay,
    one_has_died,
)
from dagster_ckpt.orchestration.sensors.ticks import Looks, Sights, in_short
from dagster_ckpt.orchestration.upgrades import is_to_return
from dagster_ckpt.resume import nothing_to_do

if TYPE_CHECKING:
    from dagster_ckpt.orchestration.sensors.job_watch import JobWatch

__all__ = ["build_resume_sensor"]

#: Seconds for one tick, which must end within Dagster's limit of 60 s; the next tick does the rest.
_BUDGET = 40.0


def build_resume_sensor(
    assets: Sequence[CheckpointedStreamingAsset],
    jobs: Sequence[Any],
    *,
    name: str | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dg.SensorDefinition:
    """One sensor for a set of jobs; the sensor runs by default.

    Args:
        assets: the assets whose jobs it watches.
        jobs: the Dagster jobs it launches, one per asset.
        name: of the sensor; ``{first job}_resume_sensor`` by default, so that a code location may have several.
        resources: of the assets, by key: the JVM of a run that resumes a job starts while Dagster launches that run.
    """
    sights = Sights()
    has_standbys = any(asset.standby for asset in assets)
    code = loaded_code(assets) if has_standbys else ""
    # Where no job wants a standby, those that earlier code has left are told to end, and nobody looks any more.
    sees_to_standbys = True

    def turn(context: dg.SensorEvaluationContext, cursor: _Cursor) -> _Turn:
        """Look at the jobs, and act."""
        from dagster_ckpt.orchestration.sensors import job_watch  # noqa: PLC0415 - only for ticks

        nonlocal sees_to_standbys
        found = _Turn(cursor)
        acted: list[tuple[CheckpointedStreamingAsset, JobWatch, Callable[[], dg.RunRequest | str]]] = []

        def failed(asset: CheckpointedStreamingAsset, error: Exception) -> None:
            context.log.error("Job %s could not be looked at", asset.name, exc_info=error)
            found.said.append((asset.name, f"could not be looked at: {type(error).__name__}: {error}"))

        def launch(asset: CheckpointedStreamingAsset, request: dg.RunRequest) -> bool:
            """Ask Dagster for a run, if Dagster takes it."""
            if why := why_refused(context, request):
                found.said.append((asset.name, f"cannot be launched: {why}"))
            else:
                found.requests.append(request)
            return not why

        with Looks(context.resources, assets, cursor.first, _BUDGET, sights, sights.look) as looks:
            rollbacks = pending(context.instance)
            clock = SystemClock()
            standbys = StandbyRuns(context.instance, assets if sees_to_standbys else [], code, clock)
            sees_to_standbys = has_standbys or standbys.has_any
            for asset in looks.turns():
                try:
                    catalog = CheckpointCatalog(looks.storage_of(asset), asset.name)
                    if (rollback := rollbacks.get(asset.name)) is not None:
                        job, op = asset.job_name, asset.op_name
                        launch(asset, requested(context.instance, catalog, rollback, job, op))
                        continue
                    sight = looks.at(asset)
                    returns = sight is not None and is_to_return(asset.versions, sight.end, catalog)
                    finished = None if returns else cursor.finished.get(asset.name)
                    if (why := nothing_to_do(sight, finished)) is not None:
                        found.quiet.append((asset.name, why))
                        if sight is not None:
                            found.alive.append(sight)
                        if (standby := standbys.request(asset, catalog.filesystem, sight)) is not None:
                            launch(asset, standby)
                        continue
                    watch = job_watch.JobWatch(
                        context.instance,
                        asset,
                        catalog,
                        clock,
                        cursor.finished.get(asset.name),
                        context.log,
                        standbys.living(asset, catalog.filesystem),
                        partial(why_refused, context),
                    )
                    acted.append((asset, watch, looks.acted(asset, watch.step_for_another)))
                except Exception as error:
                    failed(asset, error)
            for asset, watch, outcome_of in acted:
                try:
                    outcome = outcome_of()
                except Exception as error:
                    failed(asset, error)
                    continue
                found.has_news |= watch.has_news
                if watch.finished is not None:
                    cursor.finished[asset.name] = watch.finished
                if isinstance(outcome, dg.RunRequest):
                    if launch(asset, outcome):
                        launch_jvm(context.instance, asset, outcome, (resources or {}).get(asset.spark_key))
                else:
                    found.said.append((asset.name, outcome))
        found.cursor = replace(cursor, first=looks.first)
        return found

    @dg.sensor(
        name=name or f"{assets[0].name if assets else 'checkpoint'}_resume_sensor",
        description="Resumes checkpointed Spark jobs after a failure, under their restart strategy.",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={asset.storage_key for asset in assets},
        jobs=list(jobs),
    )
    def resume_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        began = time.monotonic()
        until = began + STAY
        stays = may_stay(context.instance)
        found = turn(context, _Cursor.of(context.cursor))
        stays = stays and (found.has_news or not found.said)
        while stays and not found.requests:
            if found.has_news:
                until = max(until, min(time.monotonic() + AFTER_NEWS, began + LONGEST_TICK))
            if time.monotonic() >= until:
                break
            if found.said:  # a run has died in this tick, and its job waits for what the death brings about
                time.sleep(AGAIN)
            elif not one_has_died(drivers_here(found.alive), until):
                break
            found = turn(context, found.cursor)
        told = dg.SkipReason(in_short([*found.said, *found.quiet]) or "there is no job")
        return dg.SensorResult(
            run_requests=found.requests, skip_reason=None if found.requests else told, cursor=found.cursor.text()
        )

    return resume_sensor


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What one tick leaves to the next, to save time: without a cursor the tick checks everything anew.

    Attributes:
        first: the index of the asset to begin with.
        finished: for each finished job, the token of its last claim: nothing was left to do after that claim ended.
    """

    first: int = 0
    finished: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> _Cursor:
        try:
            found: Any = json.loads(text or "{}")
            finished = {job: token for job, token in found.get("finished", {}).items() if isinstance(token, str)}
            return cls(int(found.get("first", 0)), finished)
        except (AttributeError, OverflowError, TypeError, ValueError):  # anybody can set a cursor in Dagster's UI
            return cls()

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class _Turn:
    """What one look at the jobs has shown, and what was done.

    Attributes:
        cursor: for the next look.
        requests: the runs to launch.
        said: pairs of a job with something to do, and what came of it.
        quiet: pairs of a job with nothing to do, and why.
        alive: what was seen of the latter.
        has_news: whether a run was found to be over that no look had known to be over.
    """

    cursor: _Cursor
    requests: list[dg.RunRequest] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    quiet: list[tuple[str, str]] = field(default_factory=list)
    alive: list[Sight] = field(default_factory=list)
    has_news: bool = False
