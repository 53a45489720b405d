"""``on_job_failed``: a sensor that tells of each job that has ended FAILED, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import job_state
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.storages import CheckpointStorage

__all__ = ["JobFailed", "on_job_failed"]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that has ended FAILED: its restart strategy allows no more, or a restart cannot help.

    Attributes:
        job_name: the job.
        reason: why it ended, for people.
        run_id: the last run.
        checkpoint: ``{job id}/chk-N`` that the job would go on from, ``None`` if there is none.
    """

    job_name: str
    reason: str
    run_id: str | None
    checkpoint: str | None


def on_job_failed(
    assets: Sequence[CheckpointedStreamingAsset],
    tell: Callable[[JobFailed], object],
    *,
    name: str = "job_failed_sensor",
    minimum_interval_seconds: int = 30,
) -> dg.SensorDefinition:
    """A sensor that calls ``tell`` once for each job that ends FAILED; runs that are resumed are no such end.

    If ``tell`` raises, the next tick calls it again.

    .. code-block:: python

        def page(failed: JobFailed) -> None:
            requests.post(WEBHOOK, json={"text": f"{failed.job_name} ended FAILED: {failed.reason}"}, timeout=10)

        defs = dg.Definitions(sensors=[on_job_failed([delays], page)])

    Args:
        assets: whose jobs are watched.
        tell: sends the message.
        name: of the sensor.
        minimum_interval_seconds: between two looks.
    """

    @dg.sensor(
        name=name,
        description="Tells of each checkpointed Spark job that has ended FAILED, once.",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={asset.storage_key for asset in assets},
    )
    def job_failed_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        told = _epochs(context.cursor)
        said = []
        for asset in assets:
            try:
                storage: CheckpointStorage = getattr(context.resources, asset.storage_key)
                found = job_state(storage.catalog(asset.name), SystemClock())
                if not found.has_failed or told.get(asset.name) == found.epoch:
                    continue
                newest = None if found.newest is None else found.newest.reference
                tell(JobFailed(asset.name, found.reason, found.run_id, newest))
            except Exception as error:
                context.log.exception("Nobody could be told of job %s", asset.name)
                said.append(f"{asset.name}: {type(error).__name__}: {error}")
                continue
            told[asset.name] = found.epoch
            context.log.info("Told of job %s, which ended FAILED: %s", asset.name, found.reason)
            said.append(f"{asset.name}: told that it ended FAILED")
        return dg.SensorResult(
            skip_reason=dg.SkipReason("; ".join(said) or "no job has ended FAILED since"), cursor=json.dumps(told)
        )

    return job_failed_sensor


def _epochs(cursor: str | None) -> dict[str, int]:
    """The epoch of each job's end that was told of."""
    try:
        found: Any = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
