"""A coordinator with a clock, a stream, an executor and a storage that do what the test says."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Progress, Snapshot, StoredSource
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.errors import (
    CaptureIncomplete,
)
from dagster_ckpt.filesystem import Stored
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import CopyingMemory, MemoryFileSystem


class HeldExecutor(Executor):
    """Runs what is submitted when it is told to, or at once; ``is_full``: there can be no thread for it."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.is_full = False
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_full:
            raise OSError(errno.EAGAIN, "no room for a thread")
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        if self.at_once:
            work()
        else:
            self.held.append(work)
        return future

    def let(self, index: int = 0) -> None:
        self.held.pop(index)()


@dataclass
class Stream:
    """A source: batches commit when the test says so; ``seen`` is what was seen of it a while ago."""

    clock: ManualClock
    pins: Pins
    committed: int | None = None
    planned: int | None = None
    incomplete: int = 0
    vanishing: int = 0
    error: Exception | None = None
    unknown: Exception | None = None
    seen: Progress | None = None
    pinned: list[tuple[float, int]] = field(default_factory=list)
    #: How long it takes to pin a batch.
    pinning: float = 0.0

    def progress(self) -> Progress:
        if self.unknown is not None:
            raise self.unknown
        return self.seen or Progress(self.committed, self.planned)

    def look_again(self) -> None:
        self.seen = None

    def pin(self, batch: int) -> Snapshot:
        if self.error is not None:
            raise self.error
        if self.incomplete:
            self.incomplete -= 1
            raise CaptureIncomplete(f"batch {batch} is not all there")
        self.pinned.append((self.clock.now, batch))
        self.clock.advance(self.pinning)
        snapshot = self.pins.snapshot(batch, state(batch))
        if self.vanishing:
            self.vanishing -= 1
            # Pinned in a store by its version, and deleted there before it is copied.
            gone = StoredSource(CopyingMemory(), "gone", Stored(100, "1", "AAAAAA=="))
            snapshot = replace(snapshot, files=(PinnedFile("state/gone.sst", "", 100, source=gone), *snapshot.files))
        return snapshot


@dataclass
class Listener:
    done: list[str] = field(default_factory=list)
    gone: list[list[str]] = field(default_factory=list)
    failures: list[tuple[int, str, int]] = field(default_factory=list)

    def completed(self, metadata: CheckpointMetadata) -> None:
        self.done.append(metadata.name)

    def subsumed(self, discarded: Sequence[Discarded]) -> None:
        self.gone.append([item.metadata.name for item in discarded])

    def failed(self, number: int, reason: str, consecutive: int) -> None:
        self.failures.append((number, reason, consecutive))


class AtInterval(random.Random):
    """Draws the longest initial delay, so that the turns are at multiples of the interval."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class Job:
    """A coordinator with everything around it."""

    def __init__(
        self, memory: MemoryFileSystem, pins: Pins, *, at_once: bool = True, deletes: bool = True, **config: Any
    ) -> None:
        self.memory = memory
        self.disk = FaultInjectingFileSystem(memory)
        self.clock = ManualClock()
        self.run = Run(self.disk, Ledger(), pins, self.clock).start()
        self.stream = Stream(self.clock, pins)
        self.listener = Listener()
        self.executor = HeldExecutor(at_once=at_once)
        self.deleter = HeldExecutor(at_once=deletes)
        self.began = self.clock.now
        options = {"interval": "10 s", "tolerable_failed_checkpoints": 100, **config}
        self.coordinator = CheckpointCoordinator(
            self.run.store,
            self.stream,
            CheckpointConfig(**options),
            self.clock,
            self.executor,
            self.deleter,
            self.listener,
            AtInterval(),
        )

    @property
    def now(self) -> float:
        """Seconds since the coordinator was made."""
        return self.clock.now - self.began

    def pass_time(self, until: float, commit_every: float | None = None) -> None:
        """Tick as the coordinator asks for, until so many seconds have passed since it was made."""
        while self.now < until:
            wait = self.coordinator.tick()
            assert 0 < wait <= 0.2
            self.clock.advance(min(wait, until - self.now) + 1e-9)
            if commit_every is not None:
                self.stream.committed = int(self.now / commit_every)

    @property
    def captures(self) -> list[int]:
        """When captures were made, in seconds."""
        return [round(at - self.began) for at, _ in self.stream.pinned]

    def refuse(self, *names: str) -> None:
        """Let the storage refuse these operations."""

        def plan(operation: Operation) -> Action | None:
            return Fail() if operation.name in names else None

        self.disk.plan = plan

    def stored(self) -> list[str]:
        return sorted(name for name in self.memory.files if f"{JOB}/{1:032x}/" in name)
