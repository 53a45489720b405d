"""A pinned checkpoint of a job whose others were given up."""

from __future__ import annotations

from dagster_ckpt.checkpoint.cleanup.pinning import pin_checkpoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import SinkNotEmpty
from dagster_ckpt.spark.events import CheckpointsDiscarded
from tests.jobs.harness import NEVER, Bench


def test_it_outlives_the_cleanup_and_restores_exactly_when_it_is_named(ticked: Bench) -> None:
    pinned = ticked.checkpoints()[1]
    pin_checkpoint(ticked.catalog, pinned, "before the upgrade", SystemClock())
    ended = ticked.tick(1, ticked.job(config=NEVER.model_copy(update={"retain_on_success": False})))
    (discarded,) = ended.of(CheckpointsDiscarded)
    assert [item.metadata.name for item in discarded.discarded] == ["chk-1", "chk-3", "chk-4"]
    assert all(item.reason.endswith("pinned and kept: chk-2 (before the upgrade)") for item in discarded.discarded)
    assert discarded.retained == ticked.checkpoints() == [pinned]

    refusal = ticked.refused(SinkNotEmpty)
    assert "discarded its checkpoints" in refusal.message
    assert ticked.checkpoints() == [pinned]
    back = ticked.tick(1, restore_from=pinned.reference)
    assert back.started.restored == pinned
    assert [item.name for item in ticked.checkpoints()] == ["chk-2", "chk-5"]
    ticked.assert_exact()
