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
