"""What a run leaves behind in its live location is not lost; and where it is, nothing else is."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.errors import CheckpointFileMissing, QueryMismatch
from dagster_ckpt.filesystem import scratch_directory
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from tests.jobs.harness import OFTEN, Bench, copied, eventually, remove_tree
from tests.jobs.savepoints import Take
from tests.jobs.threads import own_threads

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

Spoil = Callable[[Path], None]


def test_batches_after_the_last_checkpoint_are_salvaged(ticked: Bench, caplog: pytest.LogCaptureFixture) -> None:
    ticked.run_and_cancel(3)
    live = ticked.live()
    assert live.is_dir()
    assert [metadata.name for metadata in ticked.checkpoints()] == ["chk-1", "chk-2", "chk-3"]
    with caplog.at_level(logging.INFO, "dagster_ckpt"):
        went_on = ticked.tick(1)
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.name, restored.kind, restored.batch) == ("chk-4", "salvage", 8)
    assert restored.facts.planned_batch is None
    assert "Salvaged batch 8" in caplog.text
    assert not went_on.started.sink  # the sink was where the salvaged batch is: nothing to roll back
    assert went_on.completed[-1].batch == 9
    assert not live.exists()
    ticked.assert_exact()
    ticked.checkpoints()


@pytest.mark.quick
@pytest.mark.releases
def test_a_batch_in_flight_when_the_query_stopped_is_replayed(bench: Bench) -> None:
    """``offsets/N+1`` is there and ``commits/N+1`` is not: the salvage keeps the plan of the batch, which replays."""
    bench.tick(1)
    bench.run_and_cancel(2)
    live = CheckpointLocation(bench.live())
    last = live.last_committed()
    assert last == 2
    for file in bench.live().glob("commits/*2*"):  # as after a kill between the sink's commit and Spark's
        file.unlink()
    assert live.planned() == 2
    went_on = bench.tick(1)
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch, restored.facts.planned_batch) == ("salvage", 1, 2)
    assert "1 log entries removed" in went_on.started.sink
    bench.assert_exact()


def test_without_the_live_location_the_newest_checkpoint_is_what_there_is(ticked: Bench) -> None:
    ticked.run_and_cancel(3)
    shutil.rmtree(ticked.live())
    went_on = ticked.tick()
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.name, restored.kind, restored.batch) == ("chk-3", "checkpoint", 5)
    assert "3 log entries removed" in went_on.started.sink
    ticked.assert_exact()


def _truncate_the_commit(live: Path) -> None:
    (live / "commits" / "7").write_bytes(b"v1")


def _rubbish_in_the_commit(live: Path) -> None:
    (live / "commits" / "7").write_bytes(b"\xff\xfe\x00 not text")


def _no_offsets(live: Path) -> None:
    (live / "offsets" / "7").unlink()


def _no_state(live: Path) -> None:
    shutil.rmtree(live / "state" / "0" / "1")


def _no_changelogs(live: Path) -> None:
    for file in live.rglob("*.changelog"):
        file.unlink()


def _no_metadata(live: Path) -> None:
    (live / "metadata").unlink()


@pytest.mark.parametrize(
    "spoil",
    [
        _truncate_the_commit,
        *(
            pytest.param(spoil, marks=pytest.mark.exhaustive)
            for spoil in (_rubbish_in_the_commit, _no_offsets, _no_changelogs, _no_metadata)
        ),
        _no_state,
    ],
)
def test_a_corrupt_live_location_falls_back(ticked: Bench, spoil: Spoil, caplog: pytest.LogCaptureFixture) -> None:
    ticked.run_and_cancel(2)
    live = ticked.live()
    spoil(live)
    with caplog.at_level(logging.WARNING, "dagster_ckpt"):
        went_on = ticked.tick()
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.name, restored.kind) == ("chk-3", "checkpoint")
    assert "could not be salvaged" in caplog.text
    assert str(live) in caplog.text
    assert went_on.completed[-1].checkpoint_id > 4  # the id the salvage took is not used again
    ticked.assert_exact()


def test_the_salvage_does_not_lean_on_a_stored_file_that_is_gone(ticked: Bench) -> None:
    """The live location holds everything; what the storage lost meanwhile must not spoil it."""
    ticked.run_and_cancel(1)
    for file in next(iter(ticked.storage.glob("tiny/*/shared"))).iterdir():
        file.unlink()
    went_on = ticked.tick(1)
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch) == ("salvage", 6)
    ticked.assert_exact()
    with pytest.raises(CheckpointFileMissing):
        verify_checkpoint(ticked.catalog, ticked.catalog.resolve("chk-3"))  # so it was really gone
    verify_checkpoint(ticked.catalog, went_on.completed[-1])


def test_the_first_run_dies_before_its_first_checkpoint(bench: Bench) -> None:
    bench.run_and_cancel(2)
    assert not bench.checkpoints()
    went_on = bench.tick(1)
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.name, restored.kind, restored.batch) == ("chk-1", "salvage", 1)
    bench.assert_exact()


def test_the_first_run_dies_before_its_first_checkpoint_and_loses_its_live_location(bench: Bench) -> None:
    """Nothing is left but a sink that this very lineage has filled: it goes back to nothing as well."""
    bench.run_and_cancel(2)
    shutil.rmtree(bench.live())
    went_on = bench.tick(1)
    assert went_on.started.restored is None
    bench.assert_exact()


def test_old_live_locations_go_after_the_first_checkpoint(bench: Bench) -> None:
    """Pins are released, threads end, and only the live location of the run at hand is left."""
    threads = own_threads()
    bench.run_and_cancel(1)
    first = bench.live()
    bench.until_done = False
    launch = bench.launch(bench.job(config=OFTEN))
    eventually("the query starts again", lambda: bool(launch.of(Started)), unless=launch.check)
    assert first.is_dir()  # until there is a checkpoint, it is the best there is
    bench.land(2)
    eventually("a checkpoint completes", lambda: bool(launch.completed), unless=launch.check)
    eventually("the old live location goes", lambda: not first.parent.exists(), unless=launch.check)
    assert [directory.name for directory in bench.working.iterdir()] == [bench.live().parent.name]
    bench.await_in_sink(launch)
    eventually("all is checkpointed", lambda: _newest(launch.completed).batch == 2, unless=launch.check)
    eventually("the pins are released", lambda: not list((bench.live().parent / "pins").iterdir()))
    launch.run.cancel()
    launch.result()
    assert not list((bench.live().parent / "pins").iterdir())
    assert bench.live().is_dir()
    eventually("the run's threads end", lambda: own_threads() <= threads)
    bench.until_done = True
    bench.tick(1)
    bench.assert_exact()
    assert not list(bench.working.iterdir())


def test_starts_without_a_checkpoint_of_their_own_do_not_fill_the_disk(bench: Bench) -> None:
    """Each start has a whole copy of the state. What the start before has left stays: it is salvaged from."""
    bench.tick(1)
    bench.run_and_cancel(1)
    (bench.working / "000001-0badcafe" / "checkpoint").mkdir(parents=True)  # of one that was killed while it restored
    starts = []
    for _ in range(2):
        bench.run_and_cancel(1)
        starts.append(bench.live().parent)
    assert sorted(bench.working.iterdir()) == starts[-2:]
    bench.tick(1)
    bench.assert_exact()


def test_starts_that_do_not_come_to_choose_do_not_fill_the_disk(bench: Bench, take: Take) -> None:
    """A first start from a savepoint has unpacked it when it is refused, or killed, and has put nothing on record."""
    bench.tick(1)
    savepoint = take(bench).pointer
    remove_tree(bench.storage)
    for _ in range(2):
        bench.refused(QueryMismatch, bench.job(query=copied), restore_from=savepoint)
        assert bench.catalog.choice() is None
    (left,) = bench.working.iterdir()
    with scratch_directory(bench.working) as fetched:  # what a standby has fetched may be used
        bench.run_and_cancel(1, restore_from=savepoint)
        assert set(bench.working.iterdir()) == {bench.live().parent, fetched}
    assert not left.exists()
    bench.assert_exact()


def test_the_working_directory_may_hold_other_things(bench: Bench) -> None:
    (bench.working / "mine").mkdir(parents=True)
    (bench.working / "mine" / "notes.txt").write_text("keep", encoding="utf-8")
    (bench.working / "list.txt").write_text("keep", encoding="utf-8")
    bench.tick(1)
    assert (bench.working / "mine" / "notes.txt").read_text(encoding="utf-8") == "keep"
    assert (bench.working / "list.txt").read_text(encoding="utf-8") == "keep"


def _newest(completed: list[CheckpointMetadata]) -> CheckpointMetadata:
    return max(completed, key=lambda metadata: metadata.key)
