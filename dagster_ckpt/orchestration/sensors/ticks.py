"""What the ticks of the sensors have in common: looks at many jobs within bounded time, and a text of bounded length.

Dagster ends a tick after 60 seconds and forgets what the tick has done. So a tick begins where the tick before it had
to stop, looks at jobs side by side, and begins no other job when its time is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from dagster_ckpt.checkpoint import JobRecords, Sight, look
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration.checkpointed_asset import CheckpointedStreamingAsset
from dagster_ckpt.shown_text import shortened

__all__ = ["Looks", "Sights", "in_short"]

_Seen = TypeVar("_Seen")
_Found = TypeVar("_Found")
_Done = TypeVar("_Done")

#: Jobs that are looked at side by side in a distant storage: at 30 ms a request, 1,000 looks take half a second.
_AT_ONCE = 64
#: Jobs that are acted on side by side in a distant storage: each may have a connection to Dagster's database.
_ACTED_ON_AT_ONCE = 8
#: Most jobs that a tick names for one reason, and most reasons.
_MOST_TOLD = 20


class Sights:
    """What the looks of earlier ticks have shown, by storage and job."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Sight] = {}

    def look(self, storage: FileSystem, asset: CheckpointedStreamingAsset) -> Sight | None:
        """Look at a job, and read only what may have changed; ``None`` for a job that has never run.

        Raises:
            CorruptCheckpoint: a record cannot be read.
            StorageError: the storage failed.
        """
        key = (storage.url, asset.name)
        sight = look(JobRecords(storage, asset.name), SystemClock(), self._seen.pop(key, None))
        if sight is not None:
            self._seen[key] = sight
        return sight

    def knows(self, storage: FileSystem, asset: CheckpointedStreamingAsset) -> bool:
        """Whether the last look has seen that the job was started."""
        return (storage.url, asset.name) in self._seen

    def forget(self, storage: FileSystem, asset: CheckpointedStreamingAsset) -> None:
        """A job has no records: the job was swept, and may begin with epoch 1 again."""
        self._seen.pop((storage.url, asset.name), None)


class Looks(Generic[_Seen]):
    """The looks of one tick at the jobs.

    A storage is listed at most once, and only for jobs that no earlier tick has seen: a job without a directory has
    never run.

    Jobs in a distant storage are looked at side by side, and in the order in which they are asked for. A look that has
    not ended with the tick ends by itself; it changes nothing. Jobs are acted on side by side, too.

    Args:
        resources: of the tick.
        assets: whose jobs are looked at.
        first: the index of the asset to begin with: a slow storage cannot starve the last jobs.
        seconds: after which :meth:`turns` ends.
        sights: what earlier ticks have seen.
        look: looks at a job, on any thread.

    Attributes:
        first: the index of the asset that the next tick begins with.
    """

    def __init__(
        self,
        resources: Any,
        assets: Sequence[CheckpointedStreamingAsset],
        first: int,
        seconds: float,
        sights: Sights,
        look: Callable[[FileSystem, CheckpointedStreamingAsset], _Seen | None],
    ) -> None:
        self._deadline = time.monotonic() + seconds
        self.first = first % max(len(assets), 1)
        self._assets = [*assets[self.first :], *assets[: self.first]]
        self._resources = resources
        self._sights, self._look = sights, look
        self._storages: dict[str, FileSystem | Exception] = {}
        self._names: dict[str, frozenset[str] | Exception] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "dagster-ckpt-look")
        self._acting = ThreadPoolExecutor(_ACTED_ON_AT_ONCE, "dagster-ckpt-act")
        self._looks: dict[str, Future[_Seen | None]] = {}
        for asset in self._assets:
            with contextlib.suppress(Exception):  # raised again where the job is asked for
                storage = self.storage_of(asset)
                if storage.is_distant and self._is_there(asset):
                    self._looks[asset.name] = self._pool.submit(look, storage, asset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._pool, self._acting):
            pool.shutdown(wait=False, cancel_futures=True)

    def turns(self) -> Iterator[CheckpointedStreamingAsset]:
        """The assets one after the other, until all had their turn or the tick has no time left."""
        for asset in self._assets:
            if time.monotonic() > self._deadline:
                return
            self.first = (self.first + 1) % len(self._assets)
            yield asset

    def storage_of(self, asset: CheckpointedStreamingAsset) -> FileSystem:
        """The storage of a job."""
        return _once(
            self._storages, asset.storage_key, lambda: getattr(self._resources, asset.storage_key).filesystem()
        )

    def at(self, asset: CheckpointedStreamingAsset) -> _Seen | None:
        """What a look at the job shows; ``None`` for a job that has never run.

        Raises:
            TimeoutError: the storage does not answer in time.
        """
        if asset.name in self._looks:
            return self._looks[asset.name].result(max(0.0, self._deadline - time.monotonic()))
        storage = self.storage_of(asset)
        if not self._is_there(asset):
            self._sights.forget(storage, asset)
            return None
        return self._look(storage, asset)

    def acted(self, asset: CheckpointedStreamingAsset, act: Callable[[], _Done]) -> Callable[[], _Done]:
        """Act on a job: at once, or, in a distant storage, beside other jobs.

        Args:
            asset: whose job it is.
            act: does all that is to be done. It may be ended at any point, and may go on beside the next tick.

        Returns:
            what waits for the result, and raises what ``act`` has raised, or ``TimeoutError`` when the tick is over.
        """
        if self.storage_of(asset).is_distant:
            acting = self._acting.submit(act)
            return lambda: acting.result(max(0.0, self._deadline - time.monotonic()))
        done = act()
        return lambda: done

    def _is_there(self, asset: CheckpointedStreamingAsset) -> bool:
        storage = self.storage_of(asset)
        return self._sights.knows(storage, asset) or asset.name in _once(
            self._names, asset.storage_key, lambda: frozenset(entry.name for entry in storage.list(""))
        )


def _once(found: dict[str, _Found | Exception], key: str, find: Callable[[], _Found]) -> _Found:
    """What ``find`` has found for ``key``, or raised, at its only call."""
    if key not in found:
        try:
            found[key] = find()
        except Exception as error:
            found[key] = error
    result = found[key]
    if isinstance(result, Exception):
        raise result
    return result


def in_short(said: Sequence[tuple[str, str]]) -> str:
    """What a tick tells of jobs. Dagster stores the text of every tick, so its length is bounded.

    Args:
        said: pairs of a job and what is told of the job.
    """
    jobs: dict[str, list[str]] = {}
    for name, outcome in said:
        jobs.setdefault(outcome, []).append(name)
    told = [f"{', '.join(shortened(names, _MOST_TOLD))}: {outcome}" for outcome, names in jobs.items()]
    left = len(said) - sum(len(names) for names in list(jobs.values())[:_MOST_TOLD])
    return "; ".join([*told[:_MOST_TOLD], *([f"and {left} more jobs"] if left else [])])
