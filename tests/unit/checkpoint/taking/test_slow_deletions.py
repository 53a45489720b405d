"""Nothing waits for a deletion: neither a checkpoint, nor a savepoint, nor the end of the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.taking import discards
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.checkpoint.taking.discards import discard_within
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.errors import Fenced
from dagster_ckpt.testing import Operation
from dagster_ckpt.threads import Threads
from tests.helpers.checkpoint.coordinating import AtInterval, Job
from tests.helpers.checkpoint.driver import JOB, Pins, Run, content, directories, pin, shared, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.serving import Served

#: Seconds that no test waits for; a test that does has found that something hangs.
_NEVER = 60.0


class Hanging:
    """A job on threads of its own, whose storage deletes no file of a checkpoint until told to."""

    def __init__(self, memory: MemoryFileSystem, pins: Pins, *, most: int = 1) -> None:
        self.job = Job(memory, pins)
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.uploads, self.deleter = ThreadPoolExecutor(2), Threads(1, "of the test")
        self.job.coordinator = CheckpointCoordinator(
            self.job.run.store,
            self.job.stream,
            CheckpointConfig(interval="10 s", num_retained=1, max_concurrent_checkpoints=most),
            self.job.clock,
            self.uploads,
            self.deleter,
            self.job.listener,
            AtInterval(),
        )
        self.job.disk.plan = self._plan

    def _plan(self, operation: Operation) -> None:
        if operation.name == "remove" and "/issued/" not in operation.path:
            self.hangs.set()
            assert self.answers.wait(_NEVER)

    def take(self, number: int) -> None:
        """Commit a batch and tick until its checkpoint is reported. Each tick runs on the test's own thread."""
        self.job.stream.committed = number
        self.tick_until(lambda: f"chk-{number}" in self.job.listener.done)

    def tick_until(self, reached: Callable[[], bool]) -> None:
        patience = threading.Event()
        for _ in range(int(_NEVER / 0.001)):
            if reached():
                return
            self.job.clock.advance(self.job.coordinator.tick())
            patience.wait(0.001)  # the uploads have threads of their own
        pytest.fail("it never came to that")

    def close(self) -> None:
        self.answers.set()
        self.uploads.shutdown()
        self.deleter.shutdown()


@pytest.fixture
def hanging(memory: MemoryFileSystem, pins: Pins) -> Iterator[Hanging]:
    hanging = Hanging(memory, pins)
    yield hanging
    hanging.close()


def test_a_completed_checkpoint_is_reported_before_anything_is_deleted(hanging: Hanging) -> None:
    hanging.take(1)
    hanging.take(2)
    assert hanging.hangs.wait(_NEVER)
    assert (hanging.job.listener.done, hanging.job.listener.gone) == (["chk-1", "chk-2"], [])
    hanging.answers.set()
    hanging.tick_until(lambda: hanging.job.listener.gone == [["chk-1"]])


@pytest.mark.parametrize("most", [1, 3])
def test_checkpoints_go_on_until_more_deletions_wait_than_are_allowed(
    memory: MemoryFileSystem, pins: Pins, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Flink; no checkpoint fails meanwhile, and one is due as soon as there is something to take."""
    hanging = Hanging(memory, pins, most=most)
    try:
        for number in range(1, most + 3):
            hanging.take(number)
        for committed in (most + 2, most + 3):
            hanging.job.stream.committed = committed
            for _ in range(1000):
                hanging.job.clock.advance(hanging.job.coordinator.tick())
            assert hanging.job.coordinator.became_due() == (committed == most + 3)
        assert len(hanging.job.stream.pinned) == most + 2
        assert hanging.job.listener.failures == []
        assert caplog.text.count(f"while more than {most} deletions of old ones wait") == 1
        hanging.answers.set()
        hanging.take(most + 3)
        gone = [f"chk-{number}" for number in range(1, most + 3)]
        hanging.tick_until(lambda: sorted(chain(*hanging.job.listener.gone)) == gone)
        assert directories(memory) == {f"chk-{most + 3}"}
    finally:
        hanging.close()


def test_a_savepoint_starts_at_once(hanging: Hanging, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        hanging.take(number)
    assert hanging.hangs.wait(_NEVER)
    served = Served(hanging.job, tmp_path, str(tmp_path))
    token = served.ask()
    served.pass_time(3)
    assert served.holds(token) == 3


def test_a_job_that_is_canceled_waits_a_moment_at_most(
    hanging: Hanging, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discards, "_LONGEST", 0.01)
    for number in (1, 2, 3):
        hanging.take(number)
    assert hanging.hangs.wait(_NEVER)
    hanging.job.coordinator.abandon()
    assert "are still being deleted" in caplog.text
    assert discard_within(0.01, hanging.job.run.store, "canceled") == ()
    assert "the job ends without waiting for more" in caplog.text
    assert [deletion.checkpoints for deletion in DeletionLog(memory, JOB).pending()] == [(1,)]
    again = Run(memory, hanging.job.run.ledger, hanging.job.run.pins).start()
    assert directories(memory) == {"chk-2", "chk-3"}, "the next start has finished the deletion that hangs"
    hanging.answers.set()
    newest = again.checkpoint(state(3), 4)
    assert content(memory, newest) == state(3), "whatever the thread of the start before still deletes"


def test_a_deletion_that_ends_as_the_wait_for_it_does_has_ended(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Future[Any]):
        """The deletion ends after the time is up, and before anybody asks again whether it has ended."""

        def result(self, timeout: float | None = None) -> Any:
            try:
                return super().result(timeout)
            except TimeoutError:
                hanging.answers.set()
                self.exception(_NEVER)
                raise

    hanging.take(1)
    monkeypatch.setattr("dagster_ckpt.threads.Future", Late)
    discarded = discard_within(0.01, hanging.job.run.store, "canceled")
    assert [item.metadata.name for item in discarded] == ["chk-1"]


def test_a_job_that_ends_waits_for_its_deletions(hanging: Hanging, memory: MemoryFileSystem) -> None:
    hanging.answers.set()
    hanging.take(1)
    hanging.job.stream.committed = 2
    hanging.job.coordinator.finish()
    hanging.job.coordinator.abandon()
    assert hanging.job.listener.gone == [["chk-1"]]
    assert directories(memory) == {"chk-2"}


def test_a_fenced_run_deletes_nothing_that_had_waited(memory: MemoryFileSystem, pins: Pins) -> None:
    job = Job(memory, pins, deletes=False, num_retained=1, max_concurrent_checkpoints=3)
    job.pass_time(35, commit_every=1)
    assert job.listener.done == ["chk-1", "chk-2", "chk-3"]
    Run(memory, job.run.ledger, pins).start("chk-1")
    before = dict(memory.files)
    job.deleter.let()
    assert memory.files == before
    with pytest.raises(Fenced):
        job.coordinator.tick()
    job.coordinator.abandon()
    while job.deleter.held:
        job.deleter.let()
    assert memory.files == before


def test_what_is_pinned_while_a_deletion_waits_stays(memory: MemoryFileSystem, pins: Pins) -> None:
    job = Job(memory, pins, deletes=False, num_retained=1, max_concurrent_checkpoints=3)
    job.pass_time(25, commit_every=1)
    pin(memory, job.run.ledger, "chk-1")
    while job.deleter.held:
        job.deleter.let()
    assert directories(memory) == {"chk-1", "chk-2"}


def test_what_crashed_before_it_was_deleted_is_subsumed_by_the_next_run(memory: MemoryFileSystem, pins: Pins) -> None:
    job = Job(memory, pins, deletes=False, num_retained=1, max_concurrent_checkpoints=3)
    job.pass_time(35, commit_every=1)
    again = Run(memory, job.run.ledger, pins).start()
    assert [item.name for item in again.store.retained] == ["chk-1", "chk-2", "chk-3"]
    newest = again.checkpoint(state(9), 9)
    again.subsume(1)
    assert directories(memory) == {newest.name}
    assert shared(memory) == {name.rpartition("/")[2] for name in newest.references}


def test_a_deletion_that_failed_is_repeated_though_no_checkpoint_completes(
    memory: MemoryFileSystem, pins: Pins, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full storage none does before something is deleted."""
    job = Job(memory, pins, num_retained=1)
    job.pass_time(15, commit_every=1)
    job.refuse("remove")
    job.pass_time(25, commit_every=1)
    assert "Old checkpoints could not be deleted" in caplog.text
    job.refuse("write")
    job.pass_time(35, commit_every=1)
    assert job.listener.done == ["chk-1", "chk-2"]
    assert directories(memory) == {"chk-2"}


def test_no_tick_asks_the_storage_to_delete(memory: MemoryFileSystem, pins: Pins) -> None:
    """Whatever the storage is asked on the thread that ticks: deletions are for other threads."""
    job = Job(memory, pins, at_once=False, deletes=False, num_retained=1, max_concurrent_checkpoints=2)
    asked: list[str] = []
    job.disk.plan = lambda operation: asked.append(operation.name)
    for turn in range(1, 4):
        job.pass_time(10 * turn + 1, commit_every=1)
        quiet, job.disk.plan = job.disk.plan, lambda _: None
        job.executor.let()
        job.disk.plan = quiet
    assert asked.count("create") >= 3
    assert not {"remove", "remove_directory"} & set(asked)
