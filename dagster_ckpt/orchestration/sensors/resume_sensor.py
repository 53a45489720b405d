"""The resume sensor: finds jobs whose run has died or failed, and launches a run that continues the job.

At every tick a look at each job tells whether there is anything to do. Jobs are looked at side by side, and what an
earlier look has read and what cannot have changed since is not read again. For a job with something to do the sensor
reads all facts anew (the storage first, Dagster's runs second), so it may be stopped, doubled or moved to another
instance at any time. It also launches the runs that rollbacks wait for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, JobRecords, Sight, look
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.orchestration.rollback import pending, requested
from dagster_ckpt.resume import nothing_to_do

__all__ = ["build_resume_sensor"]

#: Seconds for one tick, which must end within Dagster's limit of 60 s; the next tick does the rest.
_BUDGET = 40.0
#: Jobs that are looked at side by side in a distant storage: at 30 ms a request, 1,000 looks take half a second.
_AT_ONCE = 64
#: Most jobs that a tick names for one reason, and most reasons.
_MOST_TOLD = 20


def build_resume_sensor(
    assets: Sequence[CheckpointedStreamingAsset],
    jobs: Sequence[Any],
    *,
    name: str | None = None,
) -> dg.SensorDefinition:
    """One sensor for a set of jobs; the sensor runs by default.

    Args:
        assets: the assets whose jobs it watches.
        jobs: the Dagster jobs it launches, one per asset.
        name: of the sensor; ``{first job}_resume_sensor`` by default, so that a code location may have several.
    """
    seen: dict[tuple[str, str], Sight] = {}

    @dg.sensor(
        name=name or f"{assets[0].name if assets else 'checkpoint'}_resume_sensor",
        description="Resumes checkpointed Spark jobs after a failure, under their restart strategy.",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={asset.storage_key for asset in assets},
        jobs=list(jobs),
    )
    def resume_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dagster_ckpt.orchestration.sensors.job_watch import JobWatch  # noqa: PLC0415 - only for ticks

        requests: list[dg.RunRequest] = []
        quiet: list[tuple[str, str]] = []
        said: list[tuple[str, str]] = []
        deadline = time.monotonic() + _BUDGET
        cursor = _Cursor.of(context.cursor)
        # Begin where the last tick had to stop, so that a slow storage cannot starve the last jobs.
        first = cursor.first % max(len(assets), 1)
        next_first = first
        rollbacks = pending(context.instance)
        with _Looks(context.resources, [*assets[first:], *assets[:first]], seen) as looks:
            for asset in [*assets[first:], *assets[:first]]:
                if time.monotonic() > deadline:
                    break
                next_first = (next_first + 1) % len(assets)
                try:
                    if (rollback := rollbacks.get(asset.name)) is not None:
                        catalog = CheckpointCatalog(looks.storage_of(asset), asset.name)
                        job, op = asset.job_name, asset.op_name
                        requests.append(requested(context.instance, catalog, rollback, job, op))
                        continue
                    sight = looks.at(asset, deadline)
                    if (why := nothing_to_do(sight, cursor.finished.get(asset.name))) is not None:
                        quiet.append((asset.name, why))
                        continue
                    watch = JobWatch(
                        context.instance,
                        asset,
                        CheckpointCatalog(looks.storage_of(asset), asset.name),
                        SystemClock(),
                        cursor.finished.get(asset.name),
                        context.log,
                    )
                    outcome = watch.step()
                    if watch.finished is not None:
                        cursor.finished[asset.name] = watch.finished
                except Exception as error:
                    context.log.exception("Job %s could not be looked after", asset.name)
                    said.append((asset.name, f"could not be looked after: {type(error).__name__}: {error}"))
                    continue
                if isinstance(outcome, dg.RunRequest):
                    requests.append(outcome)
                else:
                    said.append((asset.name, outcome))
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else dg.SkipReason(_told([*said, *quiet])),
            cursor=replace(cursor, first=next_first).text(),
        )

    return resume_sensor


class _Looks:
    """The looks of one tick at the jobs, each storage listed once: a job without a directory has never run.

    Jobs in a distant storage are looked at side by side, and in the order in which they are asked for. A look that has
    not ended with the tick ends by itself; it changes nothing.

    Args:
        resources: of the tick.
        assets: in the order in which :meth:`at` is called.
        seen: what earlier ticks have seen, by storage and job.
    """

    def __init__(
        self, resources: Any, assets: Sequence[CheckpointedStreamingAsset], seen: dict[tuple[str, str], Sight]
    ) -> None:
        self._resources = resources
        self._seen = seen
        self._clock = SystemClock()
        self._storages: dict[str, tuple[FileSystem, frozenset[str]] | Exception] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "dagster-ckpt-look")
        self._looks: dict[str, Future[Sight | None]] = {}
        for asset in assets:
            with contextlib.suppress(Exception):  # raised again where the job is asked for
                if self.storage_of(asset).is_distant and self._is_there(asset):
                    self._looks[asset.name] = self._pool.submit(self._look, asset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def storage_of(self, asset: CheckpointedStreamingAsset) -> FileSystem:
        """The storage of a job."""
        return self._listed(asset.storage_key)[0]

    def at(self, asset: CheckpointedStreamingAsset, deadline: float) -> Sight | None:
        """What a look at the job shows; ``None`` for a job that has never run.

        Raises:
            TimeoutError: the storage does not answer in time.
        """
        if not self._is_there(asset):
            return None
        if asset.name not in self._looks:
            return self._look(asset)
        return self._looks[asset.name].result(max(0.0, deadline - time.monotonic()))

    def _look(self, asset: CheckpointedStreamingAsset) -> Sight | None:
        storage = self.storage_of(asset)
        key = (storage.url, asset.name)
        sight = look(JobRecords(storage, asset.name), self._clock, self._seen.pop(key, None))
        if sight is not None:
            self._seen[key] = sight
        return sight

    def _is_there(self, asset: CheckpointedStreamingAsset) -> bool:
        return asset.name in self._listed(asset.storage_key)[1]

    def _listed(self, storage_key: str) -> tuple[FileSystem, frozenset[str]]:
        """A storage, and the names in its root."""
        if storage_key not in self._storages:
            try:
                storage: FileSystem = getattr(self._resources, storage_key).filesystem()
                self._storages[storage_key] = storage, frozenset(entry.name for entry in storage.list(""))
            except Exception as error:
                self._storages[storage_key] = error
        listed = self._storages[storage_key]
        if isinstance(listed, Exception):
            raise listed
        return listed


def _told(said: Sequence[tuple[str, str]]) -> str:
    """What a tick tells that launches nothing. Dagster stores the text of every tick, so its length is bounded."""
    jobs: dict[str, list[str]] = {}
    for name, outcome in said:
        jobs.setdefault(outcome, []).append(name)
    told = [f"{_some(names)}: {outcome}" for outcome, names in jobs.items()]
    left = len(said) - sum(len(names) for names in list(jobs.values())[:_MOST_TOLD])
    return "; ".join([*told[:_MOST_TOLD], *([f"and {left} more jobs"] if left else [])]) or "there is no job"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


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
