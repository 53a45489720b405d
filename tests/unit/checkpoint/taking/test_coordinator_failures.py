"""What becomes of attempts that fail, take too long, or are under way when the job ends."""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking import attempts
from dagster_ckpt.errors import CheckpointFailure, Fenced, StorageError, ToleranceExceeded
from dagster_ckpt.testing import Operation
from tests.helpers.checkpoint.coordinating import Job
from tests.helpers.checkpoint.driver import Ledger, Pins, Run
from tests.helpers.checkpoint.memory import MemoryFileSystem


class TestTimeout:
    def test_an_attempt_that_takes_too_long_is_discarded(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False, timeout="30 s")
        job.stream.committed = 1
        job.pass_time(40)
        assert job.listener.failures == []
        job.pass_time(40.5)
        ((number, reason, consecutive),) = job.listener.failures
        assert (number, consecutive) == (1, 1)
        assert "30 s" in reason
        job.executor.let()  # the writer comes back, too late
        assert job.stored() == []
        assert pins.released == 1
        assert job.run.store.retained == []

    def test_it_counts_from_the_pin_not_from_the_turn(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, timeout="5 s")
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(60)
        job.stream.committed = 5
        job.pass_time(61)
        assert job.listener.done == ["chk-1"]
        assert job.listener.failures == []

    def test_its_batch_is_checkpointed_again_even_if_no_other_follows(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False, timeout="5 s")
        job.stream.committed = 1
        job.pass_time(16)
        job.executor.let()
        job.executor.at_once = True
        job.pass_time(25)
        assert [batch for _, batch in job.stream.pinned] == [1, 1]
        assert job.listener.done == ["chk-2"]

    def test_an_attempt_that_is_being_published_is_not_discarded(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False, timeout="5 s")
        job.stream.committed = 1
        job.pass_time(11)

        def slow_publish(operation: Operation) -> None:
            if operation.path.endswith("_metadata") and operation.name == "create":
                job.clock.advance(60)
                job.coordinator.tick()

        job.disk.plan = slow_publish
        job.executor.let()
        job.coordinator.tick()
        assert job.listener.done == ["chk-1"]
        assert job.listener.failures == []

    def test_a_storage_that_hangs_does_not_silence_the_coordinator(self, memory: MemoryFileSystem, pins: Pins) -> None:
        """Each turn's attempt expires and counts, although the first writer never comes back."""
        job = Job(memory, pins, at_once=False, timeout="5 s", tolerable_failed_checkpoints=2)
        with pytest.raises(ToleranceExceeded):
            job.pass_time(200, commit_every=1)
        assert len(job.listener.failures) == 3


class TestTolerance:
    @pytest.mark.parametrize("tolerable", [0, 2])
    def test_the_job_fails_over_after_one_more_than_tolerated(
        self, memory: MemoryFileSystem, pins: Pins, tolerable: int
    ) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=tolerable)
        job.refuse("write")
        with pytest.raises(ToleranceExceeded, match="Exceeded checkpoint tolerable failure threshold") as raised:
            job.pass_time(1000, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == list(range(1, tolerable + 2))
        assert f"{tolerable} are tolerated" in str(raised.value)
        assert "tolerable_failed_checkpoints" in raised.value.hint
        assert job.stored() == []

    @pytest.mark.parametrize("unlimited", [None, 2_147_483_647])
    def test_without_a_limit_the_job_never_fails_over(
        self, memory: MemoryFileSystem, pins: Pins, unlimited: int | None
    ) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=unlimited)
        job.refuse("write")
        job.pass_time(300, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == list(range(1, 30)), "each is told"
        job.refuse()
        job.pass_time(305, commit_every=1)
        assert job.listener.done == ["chk-30"]

    def test_a_success_forgives(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=2)
        for start in range(0, 150, 30):
            job.refuse("write")
            job.pass_time(start + 25, commit_every=1)
            job.refuse()
            job.pass_time(start + 35, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == [1, 2] * 5
        assert len(job.listener.done) == 5

    def test_a_savepoint_does_not_forgive(self, memory: MemoryFileSystem, pins: Pins) -> None:
        """A savepoint may lie in another storage."""
        job = Job(memory, pins)
        job.refuse("write")
        job.pass_time(25, commit_every=1)
        job.coordinator.savepoint_completed()
        job.pass_time(35, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == [1, 2, 3]

    @pytest.mark.parametrize("operation", ["list", "write", "sync_directories", "create"])
    def test_whatever_the_storage_refuses_counts_and_the_job_goes_on(
        self, memory: MemoryFileSystem, pins: Pins, operation: str
    ) -> None:
        job = Job(memory, pins)
        job.refuse(operation)
        job.pass_time(35, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == [1, 2, 3]
        job.refuse()
        job.pass_time(45, commit_every=1)
        assert len(job.listener.done) == 1

    @pytest.mark.parametrize("error", [StorageError("no space for pins"), OSError(28, "No space left")])
    def test_a_pin_that_fails_counts_too(self, memory: MemoryFileSystem, pins: Pins, error: Exception) -> None:
        job = Job(memory, pins)
        job.stream.error = error
        job.pass_time(25, commit_every=1)
        assert [consecutive for *_, consecutive in job.listener.failures] == [1, 2]

    @pytest.mark.parametrize("error", [StorageError("the bucket cannot be listed"), OSError(5, "Input/output error")])
    def test_so_does_a_source_that_cannot_tell_how_far_it_is(
        self, memory: MemoryFileSystem, pins: Pins, error: Exception
    ) -> None:
        job = Job(memory, pins)
        job.stream.unknown = error
        job.pass_time(35, commit_every=1)
        assert [(number, consecutive) for number, _, consecutive in job.listener.failures] == [(0, 1), (0, 2), (0, 3)]
        job.stream.unknown = None
        job.pass_time(45, commit_every=1)
        assert job.captures == [40]
        assert job.listener.done == ["chk-1"]

    def test_beyond_the_tolerance_the_job_fails_over_for_that_too(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=1)
        job.stream.unknown = StorageError("the bucket cannot be listed")
        with pytest.raises(ToleranceExceeded, match="the bucket cannot be listed"):
            job.pass_time(100, commit_every=1)
        assert job.now == pytest.approx(20, abs=0.5)

    def test_unless_what_it_tells_is_that_the_run_must_stop(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.unknown = Fenced("a newer run has taken the job over")
        with pytest.raises(Fenced):
            job.pass_time(15)
        with pytest.raises(Fenced):
            job.coordinator.finish()
        assert job.listener.failures == []

    def test_what_a_newer_checkpoint_overtook_does_not_count(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False, max_concurrent_checkpoints=2, tolerable_failed_checkpoints=0)
        job.pass_time(21, commit_every=1)
        job.executor.let(1)
        job.pass_time(22, commit_every=1)
        job.executor.let(0)
        job.pass_time(23, commit_every=1)
        assert job.listener.done == ["chk-2"]
        assert job.listener.failures == []

    def test_nor_when_both_are_found_done_at_once(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False, max_concurrent_checkpoints=2, tolerable_failed_checkpoints=0)
        job.pass_time(21, commit_every=1)
        job.executor.let(1)
        job.executor.let(0)
        job.coordinator.tick()
        assert job.listener.done == ["chk-2"]
        assert job.listener.failures == []

    def test_an_attempt_that_expired_counts_once_whatever_becomes_of_it(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False, timeout="5 s", interval="1 h")
        job.stream.committed = 1
        job.pass_time(3606)
        assert [(number, consecutive) for number, _, consecutive in job.listener.failures] == [(1, 1)]
        job.refuse("write")
        job.executor.let()  # its writer fails as well, later
        job.pass_time(3700)
        assert len(job.listener.failures) == 1

    def test_a_turn_that_is_not_taken_does_not_count(self, memory: MemoryFileSystem, pins: Pins) -> None:
        """No new batch, the pause after the last one, and as many attempts as may be: in Flink requests that fail."""
        job = Job(memory, pins, at_once=False, min_pause="25 s", tolerable_failed_checkpoints=0)
        job.pass_time(100)
        job.stream.committed = 1
        job.pass_time(150)
        job.stream.committed = 2
        job.pass_time(200)
        assert len(job.executor.held) == 1, "one at a time"
        job.executor.let()
        job.pass_time(220)
        assert len(job.stream.pinned) == 1, "within the pause"
        assert job.listener.failures == []

    def test_a_fenced_run_stops(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.pass_time(15, commit_every=1)
        Run(memory, Ledger(), pins).start()
        with pytest.raises(Fenced):
            job.pass_time(1000, commit_every=1)

    def test_a_run_that_is_fenced_while_it_writes_stops(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False)
        job.pass_time(15, commit_every=1)
        Run(memory, Ledger(), pins).start()
        job.executor.let()
        with pytest.raises(Fenced):
            job.coordinator.tick()


class TestIncompleteCaptures:
    def test_they_are_taken_again_and_not_counted(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=0)
        job.stream.committed, job.stream.incomplete = 1, 4
        job.pass_time(14.5)
        assert job.listener.failures == []
        assert job.listener.done == ["chk-5"], "each try takes an id"
        assert job.captures == [14]

    def test_the_next_batch_is_tried_at_once(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed, job.stream.incomplete = 1, 1
        job.pass_time(10.2)
        assert job.captures == []
        job.stream.committed = 2
        job.pass_time(10.4)
        assert [batch for _, batch in job.stream.pinned] == [2]

    def test_five_in_a_row_are_one_failure(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=0)
        job.stream.committed, job.stream.incomplete = 1, 5
        with pytest.raises(ToleranceExceeded, match="not all there"):
            job.pass_time(100)
        assert len(job.listener.failures) == 1
        assert job.now == pytest.approx(14, abs=0.5)

    @pytest.mark.parametrize("at_once", [True, False])
    def test_what_vanishes_from_its_store_before_it_is_copied_is_captured_again(
        self, memory: MemoryFileSystem, pins: Pins, at_once: bool
    ) -> None:
        job = Job(memory, pins, at_once=at_once)
        job.stream.committed, job.stream.vanishing = 1, 4
        for second in range(11, 30):
            job.pass_time(second)
            while job.executor.held:
                job.executor.let()
        assert job.listener.failures == []
        assert job.listener.done == ["chk-5"]
        assert pins.released == 5
        assert job.run.store.retained[-1].batch == 1

    def test_what_vanishes_is_no_matter_once_a_newer_checkpoint_is_complete(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False, max_concurrent_checkpoints=2)
        job.stream.vanishing = 1
        job.pass_time(21, commit_every=1)
        job.executor.let(1)
        job.executor.let(0)
        job.pass_time(29, commit_every=1)
        assert job.listener.done == ["chk-2"]
        assert job.captures == [10, 20], "the turn is not repeated"

    def test_five_that_vanish_in_a_row_are_one_failure(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=0)
        job.stream.committed, job.stream.vanishing = 1, 5
        with pytest.raises(ToleranceExceeded, match="deleted or replaced"):
            job.pass_time(100)
        assert len(job.listener.failures) == 1
        assert job.stored() == []


class TestEnding:
    def test_finish_covers_the_last_batch(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.pass_time(15, commit_every=1)
        job.stream.committed = 99
        job.coordinator.finish()
        assert job.run.store.retained[-1].batch == 99
        assert job.listener.done == ["chk-1", "chk-2"]
        job.coordinator.finish()
        assert len(job.listener.done) == 2, "nothing new, nothing to do"
        assert pins.released == 2

    def test_finish_waits_for_what_is_under_way(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False)
        job.stream.committed = 1
        job.pass_time(11)
        job.executor.let()
        job.coordinator.finish()
        assert job.listener.done == ["chk-1"]

    def test_finish_gives_up_an_attempt_that_is_too_old_and_takes_its_own(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False, timeout="30 s")
        job.stream.committed = 1
        job.pass_time(11)
        job.clock.advance(60)
        job.coordinator.finish()
        assert job.listener.done == ["chk-2"]
        assert [number for number, *_ in job.listener.failures] == [1]

    def test_finish_tries_an_incomplete_capture_again(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed, job.stream.incomplete = 1, 3
        job.coordinator.finish()
        assert len(job.listener.done) == 1

    @pytest.mark.parametrize("refused", ["write", "create", "pin", "incomplete"])
    def test_finish_says_when_the_last_batch_is_not_covered(
        self, memory: MemoryFileSystem, pins: Pins, refused: str
    ) -> None:
        job = Job(memory, pins)
        job.stream.committed = 41
        if refused == "pin":
            job.stream.error = OSError(28, "No space left on device")
        elif refused == "incomplete":
            job.stream.incomplete = 100
        else:
            job.refuse(refused)
        with pytest.raises(CheckpointFailure, match="41"):
            job.coordinator.finish()
        assert job.stored() == []

    @pytest.mark.parametrize("error", [StorageError("the bucket cannot be listed"), OSError(5, "Input/output error")])
    def test_nor_when_nobody_can_tell_which_it_is(self, memory: MemoryFileSystem, pins: Pins, error: Exception) -> None:
        job = Job(memory, pins)
        job.stream.unknown = error
        with pytest.raises(
            CheckpointFailure, match=f"The last batch could not be checkpointed: {re.escape(str(error))}"
        ):
            job.coordinator.finish()

    def test_a_fenced_run_cannot_finish(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed = 1
        Run(memory, Ledger(), pins).start()
        with pytest.raises(Fenced):
            job.coordinator.finish()

    def test_a_job_without_batches_finishes(self, memory: MemoryFileSystem, pins: Pins) -> None:
        Job(memory, pins).coordinator.finish()

    def test_the_end_waits_at_its_leisure_for_a_publish_in_a_storage_that_hangs(
        self, memory: MemoryFileSystem, pins: Pins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = Job(memory, pins, timeout="5 s")
        job.stream.committed = 1
        publishing, released = threading.Event(), threading.Event()
        looks = 0
        expire = job.coordinator._expire

        def look() -> None:
            nonlocal looks
            looks += 1
            expire()

        def hang(operation: Operation) -> None:
            if operation.name == "create" and operation.path.endswith("_metadata"):
                publishing.set()
                assert released.wait(60)

        job.disk.plan = hang
        with ThreadPoolExecutor(1) as pool:
            job.coordinator._executor = pool
            job.pass_time(11)
            assert publishing.wait(60)
            job.clock.advance(60)
            monkeypatch.setattr(job.coordinator, "_expire", look)
            threading.Timer(0.5, released.set).start()
            job.coordinator.drain()
        assert job.listener.done == ["chk-1"]
        assert 1 <= looks <= 60, "a look takes at least 10 ms"

    def test_abandon_gives_up_what_is_under_way(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed = 1
        at_work, submitted = threading.Event(), threading.Event()

        def write_until_given_up(operation: Operation) -> None:
            if operation.name == "write":
                at_work.set()
                assert submitted.wait(60)
                while not job.coordinator._attempts[0].pending.expired:
                    os.sched_yield()

        job.disk.plan = write_until_given_up
        with ThreadPoolExecutor(1) as pool:
            job.coordinator._executor = pool
            job.pass_time(11)
            assert at_work.wait(60)
            submitted.set()
            job.coordinator.abandon()
        assert job.stored() == []
        assert (job.listener.done, job.listener.failures) == ([], [])
        assert pins.released == 1

    @pytest.mark.parametrize("broken", [False, True], ids=["", "the listener raises"])
    def test_abandon_tells_of_what_was_published_already(
        self, memory: MemoryFileSystem, pins: Pins, caplog: pytest.LogCaptureFixture, *, broken: bool
    ) -> None:
        """One attempt is complete, which no tick has seen yet; one is being published, and one has not begun."""
        job = Job(memory, pins, at_once=False, max_concurrent_checkpoints=3)
        for batch in (1, 2, 3):
            job.stream.committed = batch
            job.pass_time(10 * batch + 1)
        told = job.listener.completed

        def refuse(metadata: CheckpointMetadata) -> None:
            told(metadata)
            raise OSError("the sink cannot be reached")

        if broken:
            job.listener.completed = refuse  # type: ignore[method-assign]
        publishing = threading.Event()

        def publish_when_all_are_given_up(operation: Operation) -> None:
            if operation.name == "create" and operation.path.endswith("chk-2/_metadata"):
                publishing.set()
                while not job.coordinator._attempts[2].pending.expired:
                    os.sched_yield()

        job.disk.plan = publish_when_all_are_given_up
        job.executor.let()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job.executor.let)
            pool.submit(job.executor.let)
            assert publishing.wait(60)
            job.coordinator.abandon()
        assert [item.name for item in job.run.store.retained] == ["chk-1", "chk-2"]
        assert job.listener.done == ["chk-1", "chk-2"]
        assert job.listener.failures == []
        assert caplog.text.count("the sink cannot be reached") == (2 if broken else 0)

    def test_abandon_does_not_wait_for_a_storage_that_hangs(
        self, memory: MemoryFileSystem, pins: Pins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attempts, "_ABANDON", 0.01)
        job = Job(memory, pins, at_once=False)
        job.stream.committed = 1
        job.pass_time(11)
        job.coordinator.abandon()
        job.executor.let()  # it comes back at last, and finds that nobody wants its checkpoint
        assert job.stored() == []


class TestNoRoomForAThread:
    """The query goes on: a checkpoint that no thread writes is one that failed, and a deletion can wait."""

    def test_it_is_a_checkpoint_that_failed(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed = 1
        job.executor.is_full = True
        job.pass_time(25)
        assert [(number, in_a_row) for number, _, in_a_row in job.listener.failures] == [(1, 1), (2, 2)]
        assert "no room for a thread" in job.listener.failures[0][1]
        assert pins.released == 2
        job.executor.is_full = False
        job.pass_time(35)
        assert job.listener.done == ["chk-3"]

    def test_beyond_the_tolerance_it_fails_the_job(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=1)
        job.stream.committed = 1
        job.executor.is_full = True
        with pytest.raises(ToleranceExceeded, match="no room for a thread"):
            job.pass_time(35)

    def test_old_checkpoints_go_later(
        self, memory: MemoryFileSystem, pins: Pins, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = Job(memory, pins, num_retained=1)
        job.deleter.is_full = True
        job.pass_time(35, commit_every=1)
        assert job.listener.failures == []
        assert len(job.listener.done) == len(job.run.store.retained) == 3
        assert "could not be deleted and will be tried again" in caplog.text
        job.deleter.is_full = False
        job.pass_time(45, commit_every=1)
        assert job.listener.gone == [["chk-1", "chk-2", "chk-3"]]
