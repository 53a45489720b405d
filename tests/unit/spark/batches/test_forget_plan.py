"""A plan that is taken back out of a checkpointLocation, so that Spark plans the batch anew. Without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.spark.batches.plans import forget_plan
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.compactible_log import log_files
from tests.helpers.spark.live_location import LiveLocation


@settings(max_examples=40)
@given(st.integers(1, 45), st.sampled_from([3, 7, 10, 16]), st.booleans(), st.sampled_from([3, 5, 20]))
@example(batch=15, interval=16, captured=True, configured=16)  # the first compaction of the log
@example(batch=29, interval=10, captured=True, configured=5)
def test_a_plan_that_is_taken_back_leaves_what_was_there_before_it(
    tmp_path_factory: pytest.TempPathFactory, batch: int, interval: int, captured: bool, configured: int
) -> None:
    """In particular where the batch's own entry was the compaction of all before it.

    Spark takes the interval from two compactions, and is not misled if another one is configured.
    """
    root = tmp_path_factory.mktemp("forget")
    one = LiveLocation(root / "checkpoint", interval=interval)
    one.run(batch)
    before = one.read()
    one.plan(batch)
    if captured:  # as a checkpoint has it: what the newest compaction repeats is left out
        one.keep(log_files(CheckpointLocation(one.path).names("sources/0"), batch, ""))
    forget_plan(one.path, batch)
    assert CheckpointLocation(one.path).planned() is None
    assert one.read() == before
    assert one.entries() == batch
    if batch >= 2 * interval:
        one.interval = configured
    # Spark goes on from there: with the next entries, and a compaction when one is due.
    for later in range(batch, batch + 12):
        one.plan(later, files=[f"again-{later}.json"])
        one.commit(later)
    assert one.read() == [*before, *(f"file:///in/again-{later}.json" for later in range(batch, batch + 12))]
    forget_plan(one.path, batch + 12)
    assert one.entries() == batch + 12, "nothing is planned, and nothing is taken back"
    shutil.rmtree(root)


def test_a_plan_is_not_taken_back_where_nothing_tells_what_was_read_before(tmp_path: Path) -> None:
    """Else all entries would go, and the query would read all files again."""
    one = LiveLocation(tmp_path / "checkpoint")
    one.run(4)
    one.plan(4)
    for gone in range(4):
        (one.path / "offsets" / str(gone)).unlink()
    before = one.read()
    with pytest.raises(CorruptCheckpoint, match=r"Batch 4 cannot be planned anew: .*offsets/3 is not there"):
        forget_plan(one.path, 4)
    assert one.read() == before
    assert CheckpointLocation(one.path).planned() == 4
