"""When checkpoints are taken, on a clock that passes when it is told to."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dagster_ckpt.checkpoint.format.snapshot import Progress
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from tests.helpers.checkpoint.coordinating import Job
from tests.helpers.checkpoint.driver import ManualClock, Pins
from tests.helpers.checkpoint.memory import MemoryFileSystem


class TestSchedule:
    @pytest.mark.parametrize("seed", range(20))
    def test_the_first_turn_is_between_the_pause_and_the_interval(
        self, memory: MemoryFileSystem, pins: Pins, clock: ManualClock, seed: int
    ) -> None:
        job = Job(memory, pins)
        drawing = CheckpointCoordinator(
            job.run.store,
            job.stream,
            CheckpointConfig(interval="10 s", min_pause="4 s"),
            job.clock,
            job.executor,
            job.deleter,
            job.listener,
            random.Random(seed),
        )
        job.stream.committed = 1
        while not job.listener.done:
            job.clock.advance(drawing.tick())
        assert 4 <= job.stream.pinned[0][0] - job.began <= 10.3

    def test_turns_are_at_a_fixed_rate(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.pass_time(65, commit_every=1)
        assert job.captures == [10, 20, 30, 40, 50, 60]
        assert job.listener.done == [f"chk-{number}" for number in range(1, 7)]

    def test_without_an_interval_there_are_no_turns(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, interval=None)
        job.pass_time(300, commit_every=10)
        assert job.captures == []
        job.coordinator.finish()
        assert job.listener.done == ["chk-1"], "the last batch is covered all the same"

    def test_an_interval_below_the_pause_is_raised_to_it(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, interval="1 s", min_pause="20 s")
        job.pass_time(65, commit_every=1)
        assert job.captures == [20, 40, 60]

    def test_a_completed_savepoint_begins_the_pause_anew(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, interval="10 s", min_pause="8 s")
        job.pass_time(25, commit_every=1)
        assert job.captures == [10, 20]
        job.coordinator.savepoint_completed()
        job.pass_time(45, commit_every=1)
        assert job.captures == [10, 20, 33, 41]

    def test_the_pause_counts_from_the_last_completion(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, at_once=False, min_pause="8 s")
        job.pass_time(17, commit_every=1)
        job.executor.let()  # began at 10, completes at 17
        job.pass_time(30, commit_every=1)
        assert job.captures == [10, 25]

    def test_after_a_long_checkpoint_missed_turns_are_not_made_up_for(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False)
        job.pass_time(45, commit_every=1)
        job.executor.let()
        job.pass_time(66, commit_every=1)
        job.executor.let()
        assert job.captures == [10, 45]
        job.pass_time(75, commit_every=1)
        assert job.captures[2:] == [66]

    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_no_more_attempts_at_once_than_allowed(self, memory: MemoryFileSystem, pins: Pins, limit: int) -> None:
        job = Job(memory, pins, at_once=False, max_concurrent_checkpoints=limit)
        job.pass_time(100, commit_every=1)
        assert len(job.executor.held) == limit
        assert job.captures == [10, 20, 30][:limit]
        job.executor.let()
        job.pass_time(101, commit_every=1)
        assert len(job.executor.held) == limit

    def test_an_idle_stream_is_neither_checkpointed_nor_counted(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, tolerable_failed_checkpoints=0)
        job.pass_time(50)
        assert job.captures == []
        job.stream.committed = 3
        job.pass_time(200)
        assert job.captures == [50]
        job.stream.committed = 4
        job.pass_time(201)
        assert job.captures == [50, 200], "at once: its turn is long due"
        assert job.listener.failures == []

    def test_a_checkpoint_is_due_from_its_turn_until_it_completes_and_an_idle_stream_owes_none(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        job = Job(memory, pins, at_once=False)
        job.pass_time(50)
        assert not job.coordinator.became_due(), "nothing was committed"
        job.stream.committed = 1
        job.pass_time(51)
        assert job.coordinator.became_due()
        job.pass_time(70)
        assert not job.coordinator.became_due(), "told once"
        job.executor.let()
        job.pass_time(100)
        assert not job.coordinator.became_due(), "complete, and the stream is idle"
        job.refuse("create", "write")
        job.stream.committed = 2
        job.pass_time(120)
        assert job.listener.failures
        assert job.coordinator.became_due()
        job.refuse()
        job.pass_time(135)
        job.executor.let()
        job.stream.planned = 3
        job.pass_time(200)
        assert len(job.listener.done) == 2
        assert job.coordinator.became_due(), "a batch that hangs is not idle"

    def test_what_was_restored_needs_no_checkpoint(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed = 7
        job.coordinator.already_have(7)
        job.pass_time(50)
        assert job.captures == []
        job.stream.committed = 8
        job.pass_time(51)
        assert job.coordinator.captured == 8

    def test_retention_and_timings(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, num_retained=2)
        job.pass_time(45, commit_every=1)
        assert (job.listener.done[-1], job.listener.gone[-1]) == ("chk-4", ["chk-2"])
        newest = job.run.store.retained[-1]
        assert set(newest.timings_ms) == {"align", "pin", "write"}
        assert pins.released == 4

    def test_how_long_a_pin_takes_is_told(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.pinning = 0.25
        job.pass_time(11, commit_every=1)
        job.stream.committed = 99
        job.coordinator.finish()
        assert [metadata.timings_ms["pin"] for metadata in job.run.store.retained] == [250, 250]

    def test_a_turn_says_when_the_next_one_is_due(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        assert job.coordinator.tick() == 0.2, "at the latest"
        job.clock.advance(9.9)
        assert job.coordinator.tick() == pytest.approx(0.1)

    def test_deletions_that_fail_do_not_fail_the_checkpoint(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, num_retained=1, tolerable_failed_checkpoints=0)
        job.refuse("remove")
        job.pass_time(25, commit_every=1)
        assert job.listener.done == ["chk-1", "chk-2"]
        job.refuse()
        job.pass_time(35, commit_every=1)
        assert [metadata.name for metadata in job.run.store.retained] == ["chk-3"]


class TestWhatWasSeenAWhileAgo:
    def test_what_is_captured_is_the_newest_there_is(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed, job.stream.seen = 7, Progress(4, None)
        job.pass_time(11)
        assert [batch for _, batch in job.stream.pinned] == [7]

    def test_a_batch_that_has_begun_meanwhile_is_waited_for(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed, job.stream.planned, job.stream.seen = 7, 8, Progress(4, None)
        job.pass_time(20)
        assert job.stream.pinned == []
        job.stream.committed, job.stream.planned = 8, None
        job.pass_time(20.1)
        assert [batch for _, batch in job.stream.pinned] == [8]

    def test_unaligned_it_is_the_newest_when_the_time_is_up(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, unaligned=True, aligned_checkpoint_timeout="5 s")
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(12)
        job.stream.seen = Progress(4, 5)
        job.stream.committed, job.stream.planned = 6, 7
        job.pass_time(16)
        assert [batch for _, batch in job.stream.pinned] == [6]


class TestAlignment:
    def test_aligned_waits_for_the_batch_in_flight(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(30)
        assert job.stream.pinned == []
        job.stream.committed, job.stream.planned = 5, 6
        job.pass_time(30.1)
        assert [batch for _, batch in job.stream.pinned] == [5]
        assert job.run.store.retained[0].timings_ms["align"] == pytest.approx(20_000, abs=200)

    def test_unaligned_does_not_wait(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, unaligned=True)
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(11)
        assert [batch for _, batch in job.stream.pinned] == [4]

    def test_unaligned_with_a_timeout_begins_aligned(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, unaligned=True, aligned_checkpoint_timeout="5 s")
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(12)
        job.stream.committed, job.stream.planned = 5, 6
        job.pass_time(12.5)
        assert [batch for _, batch in job.stream.pinned] == [5]
        job.pass_time(24.9)
        assert len(job.stream.pinned) == 1
        job.stream.committed, job.stream.planned = 6, 7
        job.pass_time(25)
        assert [batch for _, batch in job.stream.pinned] == [5, 6]

    @pytest.mark.parametrize("options", [{"unaligned": True}, {"aligned_checkpoint_timeout": "5 s"}])
    def test_under_at_least_once_every_attempt_is_aligned(
        self, memory: MemoryFileSystem, pins: Pins, options: dict[str, Any]
    ) -> None:
        job = Job(memory, pins, mode="AT_LEAST_ONCE", **options)
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(60)
        assert job.stream.pinned == []
        job.stream.committed, job.stream.planned = 5, 6
        job.pass_time(60.1)
        assert [batch for _, batch in job.stream.pinned] == [5]

    def test_between_batches_nothing_is_waited_for(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins)
        job.stream.committed = 4
        job.pass_time(11)
        assert [batch for _, batch in job.stream.pinned] == [4]

    def test_aligned_becomes_unaligned_when_it_waited_too_long(self, memory: MemoryFileSystem, pins: Pins) -> None:
        job = Job(memory, pins, aligned_checkpoint_timeout="5 s")
        job.stream.committed, job.stream.planned = 4, 5
        job.pass_time(14.9)
        assert job.stream.pinned == []
        job.pass_time(15.5)
        assert [batch for _, batch in job.stream.pinned] == [4]

    def test_a_batch_in_flight_when_its_turn_came_is_captured_when_it_commits(
        self, memory: MemoryFileSystem, pins: Pins
    ) -> None:
        """With batches longer than the interval the next one is always in flight when one has committed."""
        job = Job(memory, pins)
        job.stream.committed, job.stream.planned = 4, 5
        job.coordinator.already_have(4)
        job.pass_time(100)
        job.stream.committed, job.stream.planned = 5, 6
        job.pass_time(100.1)
        assert [batch for _, batch in job.stream.pinned] == [5]

    @pytest.mark.parametrize("restored", [None, 4])
    def test_with_a_batch_in_flight_its_first_capture_is_of_a_new_batch(
        self, memory: MemoryFileSystem, pins: Pins, restored: int | None
    ) -> None:
        """Though the next batch has been planned each time somebody looks."""
        job = Job(memory, pins)
        first = 0 if restored is None else restored + 1
        job.stream.committed, job.stream.planned = restored, first
        if restored is not None:
            job.coordinator.already_have(restored)
        job.pass_time(100)
        assert job.stream.pinned == []
        job.stream.committed, job.stream.planned = first, first + 1
        job.pass_time(100.1)
        assert [batch for _, batch in job.stream.pinned] == [first]
