"""Going back to an older checkpoint by name: exact for everybody, and the abandoned ones do not come back."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import CheckpointError, CheckpointFailure, CheckpointFileMissing, SinkMismatch
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.jobs.harness import NEVER, Bench, copied, deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Query


def test_every_spelling_of_a_pointer(ticked: Bench) -> None:
    first, *_ = ticked.checkpoints()
    path = ticked.catalog.pointer(first)
    for spelling in ("chk-1", "chk-1/", first.reference, path, f"{path}/", f"{path}/_metadata", f"file://{path}"):
        assert ticked.catalog.resolve(spelling) == first
    back = ticked.tick(1, restore_from=f"file://{path}/_metadata")
    assert back.started.restored == first
    assert back.completed[-1].restored_from == first.reference
    assert back.completed[-1].checkpoint_id == 4
    ticked.assert_exact()


def test_batches_without_a_row_before_and_after_the_first_one(bench: Bench) -> None:
    """Where the file sink has partitions, Spark writes no file for such a batch, and the log of the sink lists none."""

    def late(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).dropDuplicates(["id"]).where("id >= 20").selectExpr("id", "v", "id % 2 AS part")
        return bench.write(rows).partitionBy("part")

    bench.query = late
    launch = bench.tick(3)
    (empty,) = launch.completed
    assert empty.sink is not None
    assert empty.sink["files"] == 0
    bench.tick(3)
    assert bench.seen_by_spark()
    bench.files_per_trigger = 2
    for pointer in (empty.reference, "latest", empty.reference):
        bench.tick(1, restore_from=pointer)
        assert bench.seen_by_spark() == Counter({row: 1 for row in bench.expected() if row[0] >= 20})


@pytest.mark.parametrize(
    ("query", "files_per_trigger"),
    [(deduplicated, 1), pytest.param(deduplicated, 3, marks=pytest.mark.releases), (copied, 3)],
    ids=["stateful, the same", "stateful, others", "stateless, others"],
)
def test_rollback_with_other_boundaries(bench: Bench, query: Query, files_per_trigger: int) -> None:
    bench.query = query
    for _ in range(3):
        bench.tick(2)
    first, *_ = bench.checkpoints()
    bench.files_per_trigger = files_per_trigger
    back = bench.tick(1, restore_from="chk-1")
    assert back.started.restored == first
    assert "4 log entries removed" in back.started.sink
    assert back.completed[-1].key == (4, 4)
    assert back.completed[-1].batch == (6 if files_per_trigger == 1 else 3)
    bench.assert_exact()

    # The abandoned ones are still there by name, but a launch goes on from where the rollback got to.
    assert [metadata.name for metadata in bench.checkpoints()] == ["chk-1", "chk-2", "chk-3", "chk-4"]
    on = bench.tick(1)
    assert on.started.restored == back.completed[-1]
    assert on.completed[-1].key == (5, 5)
    bench.assert_exact()


@pytest.mark.exhaustive
def test_an_abandoned_checkpoint_whose_rows_are_gone_from_the_sink(ticked: Bench) -> None:
    """The rollback removed the rows that came after; going forward to them again would lose them, so it is refused."""
    *_, third = ticked.checkpoints()
    ticked.tick(1, restore_from="chk-1")
    refusal = ticked.refused(SinkMismatch, restore_from=third.reference)
    assert str(ticked.sink) in refusal.message
    assert "restore_from" in refusal.hint
    ticked.tick(1)
    ticked.assert_exact()


@pytest.mark.exhaustive
def test_the_way_on_that_is_offered_after_a_rollback_works(ticked: Bench) -> None:
    """Not the abandoned checkpoint before, whose rows the sink does not have any more."""
    first, *_ = ticked.checkpoints()
    (broken,) = ticked.tick(1, ticked.job(inline_threshold=1), restore_from="chk-1").completed
    others = frozenset().union(*(metadata.references for metadata in ticked.checkpoints()[:-1]))
    own = next(entry.reference for entry in broken.files if entry.reference and entry.reference not in others)
    (ticked.storage / "tiny" / broken.job_id / own.removeprefix("../")).unlink()
    refusal = ticked.refused(CheckpointFileMissing)
    assert f"restore_from: {first.reference}" in refusal.hint
    ticked.tick(restore_from=first.reference)
    ticked.assert_exact()


@pytest.mark.quick
def test_a_crash_after_a_rollback_does_not_bring_the_abandoned_back(ticked: Bench) -> None:
    """Even when the rolled-back run completed no checkpoint and its live location is lost."""
    ticked.run_and_cancel(1, restore_from="chk-1")
    shutil.rmtree(ticked.live())
    went_on = ticked.tick()
    assert went_on.started.restored is not None
    assert went_on.started.restored.name == "chk-1"
    assert "began with" in went_on.started.reason
    ticked.assert_exact()
    assert [metadata.name for metadata in ticked.checkpoints()] == ["chk-1", "chk-2", "chk-3", "chk-4"]


@pytest.mark.exhaustive
def test_rollback_past_a_live_location_does_not_salvage_it(ticked: Bench) -> None:
    """Who names a checkpoint means it: what came after is given up."""
    ticked.run_and_cancel(2)
    back = ticked.tick(restore_from="chk-2")
    assert back.started.restored is not None
    assert back.started.restored.name == "chk-2"
    assert [metadata.kind for metadata in ticked.checkpoints()] == ["checkpoint"] * 4
    ticked.assert_exact()


def test_the_retained_ones_after_a_rollback_can_be_restored(ticked: Bench) -> None:
    """What the rollback abandoned goes first; ids go on above the highest ever issued."""
    two = ticked.job(config=NEVER.model_copy(update={"num_retained": 2}))
    ticked.tick(1, two, restore_from="chk-1")
    assert [metadata.key for metadata in ticked.checkpoints()] == [(1, 1), (4, 4)]
    ticked.tick(1, two)
    assert [metadata.key for metadata in ticked.checkpoints()] == [(4, 4), (5, 5)]
    ticked.assert_exact()


def test_ids_are_never_reused(ticked: Bench) -> None:
    """Not even those of attempts that failed, or of checkpoints that were dropped since."""
    one = ticked.job(config=NEVER.model_copy(update={"num_retained": 1}))
    taken = [ticked.tick(1, one).completed[-1].checkpoint_id]
    broken = FaultInjectingFileSystem(
        ticked.filesystem, lambda asked: Fail() if asked.path.endswith("chk-5/_metadata") and asked.changes else None
    )
    ticked.land(1)
    launch = ticked.launch(ticked.job(config=one.config, filesystem=broken))
    with pytest.raises(CheckpointFailure, match="could not be checkpointed"):
        launch.result()
    taken.append(ticked.tick(1, one).completed[-1].checkpoint_id)
    shutil.rmtree(ticked.storage / "tiny" / ticked.checkpoints()[-1].job_id / f"chk-{taken[-1]}")  # by hand
    assert taken == [4, 7]  # 5 failed, 6 is the salvage of the batch it was to hold
    with pytest.raises(CheckpointError):
        ticked.launch().result()
    ticked.assert_exact()
