"""The resume sensor: finds jobs whose run has died or failed, and launches a run that continues the job.

The sensor reads the facts anew at every tick (the storage first, Dagster's runs second), so it may be stopped, doubled
or moved to another instance at any time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dagster as dg

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.orchestration.streaming_asset import CheckpointedStreamingAsset

__all__ = ["build_resume_sensor"]

_log = logging.getLogger(__name__)

#: Seconds for one tick, which must end within Dagster's limit of 60 s; the next tick does the rest.
_BUDGET = 40.0


def build_resume_sensor(
    assets: Sequence[CheckpointedStreamingAsset],
    jobs: Sequence[Any],
    *,
    name: str = "checkpoint_resume_sensor",
) -> dg.SensorDefinition:
    """One sensor for all jobs of a code location; the sensor runs by default.

    Args:
        assets: the assets whose jobs it watches.
        jobs: the Dagster jobs it launches, one per asset.
        name: of the sensor.
    """

    @dg.sensor(
        name=name,
        description="Resumes checkpointed Spark jobs after a failure, under their restart strategy.",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={asset.storage_key for asset in assets},
        jobs=list(jobs),
    )
    def resume_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dagster_ckpt.orchestration.job_watch import JobWatch  # noqa: PLC0415 - only for ticks

        requests: list[dg.RunRequest] = []
        said: list[str] = []
        began = time.monotonic()
        cursor = _Cursor.of(context.cursor)
        # Begin where the last tick had to stop, so that a slow storage cannot starve the last jobs.
        first = cursor.first % max(len(assets), 1)
        next_first = first
        for asset in [*assets[first:], *assets[:first]]:
            if time.monotonic() - began > _BUDGET:
                break
            next_first = (next_first + 1) % len(assets)
            storage: CheckpointStorage = getattr(context.resources, asset.storage_key)
            try:
                watch = JobWatch(
                    context.instance,
                    asset,
                    storage.catalog(asset.name),
                    SystemClock(),
                    cursor.finished.get(asset.name),
                )
                outcome = watch.step()
                if watch.finished is not None:
                    cursor.finished[asset.name] = watch.finished
            except Exception as error:
                _log.exception("Job %s could not be looked after", asset.name)
                said.append(f"{asset.name}: could not be looked after: {type(error).__name__}: {error}")
                continue
            if isinstance(outcome, dg.RunRequest):
                requests.append(outcome)
            else:
                said.append(f"{asset.name}: {outcome}")
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else dg.SkipReason("; ".join(said) or "there is no job"),
            cursor=replace(cursor, first=next_first).text(),
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
            return cls(**json.loads(text)) if text else cls()
        except (TypeError, ValueError):  # written by a release with fewer fields
            return cls()

    def text(self) -> str:
        return json.dumps(asdict(self))
