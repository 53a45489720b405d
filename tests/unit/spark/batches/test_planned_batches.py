"""Which batch plans are found in a live location, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from tests.helpers.spark.live_location import LiveLocation


@pytest.fixture
def live(tmp_path: Path) -> LiveLocation:
    made = LiveLocation(tmp_path / "checkpoint")
    made.run(3)
    return made


def test_a_plan_asked_for_before_spark_has_written_it_is_found_later(live: LiveLocation) -> None:
    plans = PlannedBatches(CheckpointLocation(live.path), 0)
    assert [plan.batch for plan in plans.new(3)] == [1, 2]
    assert plans.new(3) == []
    live.plan(3)
    assert [plan.batch for plan in plans.new(3)] == [3]


def test_a_plan_that_is_gone_is_passed_over(live: LiveLocation) -> None:
    (live.path / "offsets" / "1").unlink()
    plans = PlannedBatches(CheckpointLocation(live.path), -1)
    assert [plan.batch for plan in plans.new()] == [0, 2]
    assert plans.new() == []


def test_the_oldest_plan_left_does_not_tell_where_its_batch_began(live: LiveLocation) -> None:
    """With minBatchesToRetain=1 Spark keeps two. The older one is not taken for a batch that read everything."""
    for purged in ("0", "1"):
        (live.path / "offsets" / purged).unlink()
    live.plan(3)
    plans = PlannedBatches(CheckpointLocation(live.path), -1)
    (plan,) = plans.new()
    assert (plan.batch, set(plan.files)) == (3, {"sources/0/3", "offsets/3"})
    assert plans.new() == []
    live.commit(3)
    live.plan(4)
    assert [set(plan.files) for plan in plans.new()] == [{"sources/0/4", "offsets/4"}]


def test_without_a_file_source_each_plan_tells_all_itself(live: LiveLocation) -> None:
    for purged in ("0", "1"):
        (live.path / "offsets" / purged).unlink()
    left = live.path / "offsets" / "2"
    left.write_text(left.read_text().replace('{"logOffset": 2}', '{"rows": {"0": 7}}'))
    (plan,) = PlannedBatches(CheckpointLocation(live.path), -1).new()
    assert (plan.batch, set(plan.files)) == (2, {"offsets/2"})
