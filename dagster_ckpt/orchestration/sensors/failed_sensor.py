"""``on_job_failed``: a sensor that tells of each job that nothing resumes by itself, once.

A look at each job tells whether the job may need help, and only then its state is read. Dagster ends a tick after 60
seconds and forgets whom the tick has told, so the looks end long before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, JobState, job_state
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import JobStatus
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset, only_streams
from dagster_ckpt.orchestration.health import refusal_in, reported, stuck_by
from dagster_ckpt.orchestration.sensors.ticks import Looks, Sights, in_short

__all__ = ["JobFailed", "on_job_failed"]

#: Seconds after which a tick begins no other job: whoever is told last has twice as long before Dagster ends the tick.
_BUDGET = 20.0


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that has ended FAILED: its restart strategy allows no more, or a restart cannot help.

    Or a job that has not ended, and that nothing resumes by itself: its records, or its newest checkpoint, are damaged.

    Attributes:
        job_name: the job.
        reason: why it ended, or what is damaged, for people.
        run_id: the last run, ``None`` if that cannot be read.
        checkpoint: ``{job id}/chk-N`` that the job would go on from, ``None`` if there is none or it cannot be read.
        state: ``FAILED``; ``UNREADABLE`` for damaged records; ``DEAD``, ``INTERRUPTED`` or ``RESTARTING`` for a job
            that cannot be resumed from its newest checkpoint.
        checkpoint_path: the URL of the storage that has the job's checkpoints.
    """

    job_name: str
    reason: str
    run_id: str | None
    checkpoint: str | None
    state: str = JobStatus.FAILED.value
    checkpoint_path: str = ""


def on_job_failed(
    assets: Sequence[CheckpointedStreamingAsset],
    tell: Callable[[JobFailed], object],
    *,
    name: str = "job_failed_sensor",
    minimum_interval_seconds: int = 30,
) -> dg.SensorDefinition:
    """A sensor that calls ``tell`` once for each job that ends FAILED, and not for a run that is resumed.

    It also calls ``tell`` once when nothing can resume a job because its records or its newest checkpoint are damaged.

    If ``tell`` raises, a later tick calls it again. ``tell`` has to return within 30 seconds: Dagster ends a tick after
    60 seconds and forgets whom the tick has told.

    .. code-block:: python

        def page(failed: JobFailed) -> None:
            text = f"{failed.job_name} is {failed.state}: {failed.reason}"
            requests.post(WEBHOOK, json={"text": text}, timeout=10)

        defs = dg.Definitions(sensors=[on_job_failed([delays], page)])

    Args:
        assets: whose jobs are watched.
        tell: sends the message.
        name: of the sensor.
        minimum_interval_seconds: between two looks.

    Raises:
        InvalidConfiguration: something else than a stream is among the assets.
    """
    assets = only_streams(assets, "on_job_failed")
    sights = Sights()

    @dg.sensor(
        name=name,
        description="Tells of each checkpointed Spark job that nothing resumes by itself, once.",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={asset.storage_key for asset in assets},
    )
    def job_failed_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor = _Cursor.of(context.cursor)
        said: list[tuple[str, str]] = []

        def look(storage: FileSystem, asset: CheckpointedStreamingAsset) -> JobState | None:
            return _in_need(context.instance, storage, asset, sights, cursor.ended.get(asset.name))

        with Looks(context.resources, assets, cursor.first, _BUDGET, sights, look) as looks:
            for asset in looks.turns():
                try:
                    found = looks.at(asset)
                    if found is not None and not cursor.has_told(found):
                        newest = None if found.newest is None else found.newest.reference
                        url = looks.storage_of(asset).url
                        tell(JobFailed(asset.name, _why(found), found.run_id, newest, found.state, url))
                        context.log.info("Told of job %s, which is %s: %s", asset.name, found.state, _why(found))
                        said.append((asset.name, f"told that it is {found.state}"))
                except Exception as error:
                    context.log.exception("The message about job %s could not be sent", asset.name)
                    said.append((asset.name, f"{type(error).__name__}: {error}"))
                    continue
                cursor.remember(asset.name, found)
        cursor.first = looks.first
        return dg.SensorResult(
            skip_reason=dg.SkipReason(in_short(said) or "no job has ended FAILED since"), cursor=cursor.text()
        )

    return job_failed_sensor


def _in_need(
    instance: dg.DagsterInstance,
    storage: FileSystem,
    asset: CheckpointedStreamingAsset,
    sights: Sights,
    told: str | int | None,
) -> JobState | None:
    """The state of a job that nothing resumes by itself; ``None`` for any other job, and for an end that was told of.

    Raises:
        StorageError: the storage failed.
    """
    catalog = CheckpointCatalog(storage, asset.name)
    try:
        sight = sights.look(storage, asset)
    except CorruptCheckpoint:
        return job_state(catalog, SystemClock())
    if sight is None:
        return None
    if sight.end is not None and sight.end.is_final:
        is_news = sight.end.status == JobStatus.FAILED.value and sight.claim.token != told
    else:
        is_news = sight.dead is not None
    found = job_state(catalog, SystemClock()) if is_news else None
    config_of = partial(asset.settings.config_now, instance, asset.op_name)
    if found is None or found.needs_help or stuck_by(found, catalog, config_of):
        return found
    refusal = refusal_in(reported(instance, asset.key))  # of the resume sensor, at its last look
    return replace(found, reason=refusal) if found.is_to_be_resumed and refusal else None


def _why(found: JobState) -> str:
    if not found.damage:
        return found.reason
    reason = found.reason and f"{found.reason.removesuffix('.')}. "
    return f"{reason}Its newest checkpoint cannot be restored: {found.damage}"


@dataclass(slots=True)
class _Cursor:
    """What one tick leaves to the next.

    Attributes:
        first: the index of the asset to begin with.
        ended: for each job whose end was told of, the token of its last claim; the number of its epoch where an earlier
            release has told of the end.
        damaged: the jobs of which it was told that they cannot be resumed, and that still cannot.
    """

    first: int = 0
    ended: dict[str, str | int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, text: str | None) -> _Cursor:
        try:
            found: Any = json.loads(text or "{}")
            if all(isinstance(epoch, int) for epoch in found.values()):
                return cls(ended=dict(found))  # of a release that remembered nothing but epochs
            ended = {job: told for job, told in found["ended"].items() if isinstance(told, str | int)}
            return cls(int(found["first"]), ended, {job for job in found["damaged"] if isinstance(job, str)})
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return cls()

    def text(self) -> str:
        return json.dumps({"first": self.first, "ended": self.ended, "damaged": sorted(self.damaged)})

    def has_told(self, found: JobState) -> bool:
        if found.has_failed:
            return self.ended.get(found.job_name) in {found.token, found.epoch}
        return found.job_name in self.damaged

    def remember(self, job_name: str, found: JobState | None) -> None:
        """A job in need was told of, now or before; ``None`` for a job that is in no need."""
        if found is None:
            self.damaged.discard(job_name)
        elif not found.has_failed:
            self.damaged.add(job_name)
        elif found.token is not None:
            self.ended[job_name] = found.token
