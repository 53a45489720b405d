"""A storage that is full for a while: the stream goes on, the checkpoints fail and are counted, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import StorageError, StorageUnusable, ToleranceExceeded
from dagster_ckpt.spark.events import Started
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.helpers.mounts import fill, mounted
from tests.jobs.harness import OFTEN, Bench, eventually

if TYPE_CHECKING:
    from dagster_ckpt.filesystem import FileSystem

_PATIENT = OFTEN.model_copy(update={"tolerable_failed_checkpoints": 1_000_000})


class Space(Protocol):
    """A storage that can be full."""

    filesystem: FileSystem

    def fill(self) -> None: ...

    def free(self) -> None: ...


@dataclass
class SmallDisk:
    """A real file system of four megabytes."""

    filesystem: FileSystem
    ballast: Path

    def fill(self) -> None:
        fill(self.ballast)

    def free(self) -> None:
        self.ballast.unlink(missing_ok=True)


@dataclass
class Refusing:
    """A storage that stores nothing more, not even a name, while it is full."""

    inner: FileSystem
    full: bool = False
    filesystem: FileSystem = field(init=False)

    def __post_init__(self) -> None:
        self.filesystem = FaultInjectingFileSystem(self.inner, self._plan)

    def fill(self) -> None:
        self.full = True

    def free(self) -> None:
        self.full = False

    def _plan(self, operation: Operation) -> Action | None:
        stores = operation.name in {"create", "replace", "write"}
        return Fail(StorageError(f"{operation}: No space left on device")) if self.full and stores else None


@pytest.fixture(params=["small disk", "refusing"])
def space(request: pytest.FixtureRequest, bench: Bench) -> Iterator[Space]:
    if request.param == "refusing":
        yield Refusing(bench.filesystem)
        return
    bench.storage.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(bench.storage)))
        yield SmallDisk(bench.filesystem, bench.storage / "ballast")


def test_the_stream_outlives_a_full_store(bench: Bench, space: Space) -> None:
    job = bench.job(config=_PATIENT, filesystem=space.filesystem)
    bench.tick(1, job)
    bench.until_done = False
    launch = bench.launch(job)
    bench.land(1)
    eventually("a checkpoint completes", lambda: bool(launch.completed), unless=launch.check)
    space.fill()
    bench.land(2)
    bench.await_in_sink(launch)  # the stream goes on
    eventually("checkpoints fail", lambda: len(launch.failed) >= 4, unless=launch.check)
    consecutive = [event.consecutive for event in launch.failed]
    assert consecutive == list(range(1, len(consecutive) + 1))
    assert all("No space left on device" in event.reason for event in launch.failed)
    numbers = [event.number for event in launch.failed if event.number]
    assert numbers == sorted(set(numbers))
    before = len(launch.completed)

    space.free()
    eventually("a checkpoint completes again", lambda: len(launch.completed) > before, unless=launch.check)
    assert launch.completed[-1].batch == 3  # of the batch that was idle since
    bench.land(1)
    bench.await_in_sink(launch)
    eventually("the count begins anew", lambda: launch.completed[-1].batch == 4, unless=launch.check)
    assert len(launch.of(Started)) == 1
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED

    completed = bench.checkpoints()
    assert [metadata.key for metadata in completed] == sorted({metadata.key for metadata in completed})
    _assert_nothing_left_behind(bench)
    shutil.rmtree(bench.live())
    bench.until_done = True
    bench.tick(1, job)
    bench.assert_exact()


def test_tolerance_exceeded_fails_over(bench: Bench, space: Space) -> None:
    config = OFTEN.model_copy(update={"tolerable_failed_checkpoints": 1})
    restart = FixedDelayRestart(1_000_000, timedelta(milliseconds=200))
    job = bench.job(config=config, filesystem=space.filesystem, restart=restart)
    bench.tick(1, job)
    bench.until_done = False
    launch = bench.launch(job)
    bench.land(1)
    bench.await_in_sink(launch)
    eventually("a checkpoint completes", lambda: bool(launch.completed), unless=launch.check)
    space.fill()
    bench.land(2)
    eventually("the job fails over", lambda: bool(launch.restarts), unless=launch.check)
    assert "2 checkpoints in a row failed, 1 are tolerated" in launch.restarts[0].error
    assert "No space left on device" in launch.restarts[0].error
    eventually("the restart fails as well", lambda: len(launch.restarts) > 1, unless=launch.check)
    space.free()
    bench.land(1)
    eventually("the query starts again", lambda: len(launch.of(Started)) > 1, unless=launch.check)
    bench.await_in_sink(launch)
    last = bench.landed - 1
    eventually("it is checkpointed", lambda: launch.completed[-1].batch == last, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    again = launch.of(Started)[-1]
    assert again.restored is not None
    bench.checkpoints()
    _assert_nothing_left_behind(bench)
    bench.until_done = True
    bench.tick(1, job)
    bench.assert_exact()


def test_without_restarts_an_exceeded_tolerance_ends_the_job(bench: Bench, space: Space) -> None:
    job = bench.job(config=OFTEN.model_copy(update={"tolerable_failed_checkpoints": 0}), filesystem=space.filesystem)
    bench.tick(1, job)
    bench.until_done = False
    launch = bench.launch(job)
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    space.fill()
    bench.land(2)
    with pytest.raises(ToleranceExceeded, match="1 checkpoints in a row failed, 0 are tolerated") as exceeded:
        launch.result()
    assert "tolerable_failed_checkpoints" in exceeded.value.hint
    space.fill()  # what the end of the job has given back of its reserve, too
    with pytest.raises(StorageUnusable, match="No space left on device") as unusable:
        bench.launch(job).result()
    assert str(bench.storage) in unusable.value.message
    assert "has space left" in unusable.value.hint
    space.free()
    bench.until_done = True
    bench.tick(1, job)
    bench.assert_exact()


def _assert_nothing_left_behind(bench: Bench) -> None:
    """What failed attempts wrote is gone: every chk directory is complete, every shared file is needed."""
    completed = bench.checkpoints()
    directory = bench.storage / "tiny" / completed[0].job_id
    assert sorted(path.name for path in directory.glob("chk-*")) == sorted(metadata.name for metadata in completed)
    needed = {name.rpartition("/")[2] for metadata in completed for name in metadata.references}
    assert {path.name for path in (directory / "shared").iterdir()} == needed
    assert not list(bench.storage.rglob("*.tmp"))
