"""How often a live location in the storage is looked at: seldom while nothing happens, and anew where it matters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive, PlanArchiveWriter
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import Progress
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.spark.batches.archiver import Archiver
from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.spark.capture.source import StreamingSource
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing import FaultInjectingFileSystem
from tests.helpers.checkpoint.coordinating import AtInterval, HeldExecutor, Listener
from tests.helpers.checkpoint.memory import CopyingMemory
from tests.helpers.spark.stored_starts import JOB, Promised, Start


class Idle:
    """A start of a job whose live location is in the storage, checkpointed and archived, on a clock held by hand."""

    def __init__(self, home: Path) -> None:
        beneath = CopyingMemory()
        self.disk = FaultInjectingFileSystem(beneath)
        self.start = Start(self.disk, beneath, Promised(), home).start()
        self.query, self.clock = self.start.query, self.start.clock
        self.listener = Listener()
        config = CheckpointConfig(interval="10 s")
        self.coordinator = CheckpointCoordinator(
            self.start.store,
            self.start.source,
            config,
            self.clock,
            HeldExecutor(at_once=True),
            HeldExecutor(at_once=True),
            self.listener,
            AtInterval(),
        )
        location = self.start.live.location()
        writer = PlanArchiveWriter(self.disk, JOB, self.start.store.job_id, self.start.claim.epoch, lambda: None)
        self.archiver = Archiver(PlannedBatches(location, -1), writer, self._retained, self.clock, location.pauses[1])

    def _retained(self) -> Sequence[CheckpointMetadata]:
        return self.start.store.retained

    def pass_time(self, seconds: float) -> int:
        """Tick as a run does; how many listings of the live location it took."""
        before = self.looks
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.archiver.tick()
            if self.archiver._running is not None:
                self.archiver._running.exception(timeout=60)
            self.clock.advance(self.coordinator.tick())
        return self.looks - before

    def until(self, seen: Callable[[], object], wanted: object) -> float:
        """Tick until that is seen; how many seconds it took."""
        began = self.clock.now
        while seen() != wanted:
            assert self.clock.now - began < 60
            self.pass_time(0.01)
        return self.clock.now - began

    @property
    def looks(self) -> int:
        return sum(item.name == "list" and "/checkpoint/" in item.path for item in self.disk.operations)

    @property
    def archived(self) -> list[int]:
        return PlanArchive(self.disk, JOB, self.start.store.job_id).batches()


@pytest.fixture
def idle(tmp_path: Path) -> Idle:
    return Idle(tmp_path)


def test_an_idle_stream_is_looked_at_less_and_less(idle: Idle) -> None:
    idle.query.run(3)
    idle.pass_time(11)
    assert len(idle.listener.done) == 1
    idle.pass_time(60)
    assert idle.pass_time(600) <= 2 * 2 * (600 / 5 + 1), "two logs each, for checkpoints and for the archive"


def test_a_stream_in_a_long_batch_is_too(idle: Idle) -> None:
    idle.query.run(3)
    idle.pass_time(11)
    idle.query.plan()
    idle.pass_time(60)
    assert idle.pass_time(600) <= 2 * 2 * (600 / 5 + 1)
    idle.query.commit()
    idle.pass_time(6)
    assert idle.start.store.retained[-1].batch == 3
    assert idle.archived == [0, 1, 2, 3]


def test_what_happens_is_seen_and_then_it_is_looked_at_often_again(idle: Idle) -> None:
    idle.query.run(3)
    for batch in range(3, 6):
        idle.pass_time(60)
        idle.query.plan()
        assert idle.until(lambda: idle.start.source.progress().planned, batch) <= 5.5
        idle.query.commit()
        assert idle.until(lambda: idle.start.store.retained[-1].batch, batch) <= 0.5


def test_so_is_what_is_planned(idle: Idle) -> None:
    idle.query.run(3)
    for batch in range(3, 9, 2):
        idle.pass_time(60)
        idle.query.run(1)
        assert idle.until(lambda: idle.archived[-1], batch) <= 5.5
        idle.query.run(1)
        assert idle.until(lambda: idle.archived[-1], batch + 1) <= 1.5


def test_each_log_is_listed_once_a_look(idle: Idle) -> None:
    idle.query.run(3)
    location = idle.start.live.location()
    plans = PlannedBatches(location, 2)
    before = idle.looks
    assert location.how_far() == (2, None)
    assert idle.looks - before == 2
    assert plans.new() == []
    assert idle.looks - before == 4


def test_a_batch_that_is_about_to_run_is_archived_whenever_that_is(idle: Idle) -> None:
    idle.query.run(3)
    idle.pass_time(600)
    idle.query.plan()
    idle.archiver.archive(3)
    assert idle.archived == [0, 1, 2, 3]


def test_whoever_asks_for_it_is_told_what_is_there_now(idle: Idle) -> None:
    idle.query.run(3)
    idle.pass_time(600)
    idle.query.run(2)
    source = idle.start.source
    assert source.progress() == Progress(2, None)
    source.look_again()
    assert source.progress() == Progress(4, None)


def test_a_location_on_a_disk_is_looked_at_each_time(idle: Idle, tmp_path: Path) -> None:
    location = CheckpointLocation(tmp_path / "location")
    source = StreamingSource(location, tmp_path / "pins", None, None, lambda: None, idle.clock)
    for log in ("offsets", "commits"):
        (location.path / log).mkdir(parents=True)
    for batch in range(20):
        (location.path / f"offsets/{batch}").touch()
        assert source.progress() == Progress(batch - 1 if batch else None, batch)
        (location.path / f"commits/{batch}").touch()
        assert source.progress() == Progress(batch, None)
        for _ in range(5):
            source.progress()


def _no_room(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_host_without_room_for_a_thread_archives_later(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    idle.query.run(3)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _no_room)
        idle.pass_time(5)
        idle.archiver.completed()
        idle.pass_time(5)
        assert idle.archived == []
    idle.pass_time(2)
    assert idle.archived == [0, 1, 2]
    idle.archiver.close()


def test_nor_does_the_end_of_a_run_fail_there(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    idle.query.run(3)
    monkeypatch.setattr(threading.Thread, "start", _no_room)
    idle.archiver.close()
    assert idle.archived == []
