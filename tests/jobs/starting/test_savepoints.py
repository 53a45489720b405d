"""Savepoints of a real job: taken while it runs or stops, and everything else of the job taken away afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pytest

from dagster_ckpt.checkpoint.control.taken_savepoints import Label
from dagster_ckpt.checkpoint.taking.coordinator import CheckpointCoordinator
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import ask_checkpoint, take_savepoint
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.restart import RestartStrategies
from dagster_ckpt.errors import CheckpointNotFound, SavepointFailed
from dagster_ckpt.spark.events import RequestTold, SavepointCompleted
from tests.jobs.harness import Bench, eventually, tree
from tests.jobs.savepoints import Take, started


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointCoordinator]:
    """Grows by one whenever a savepoint begins the pause between two checkpoints anew."""
    found: list[CheckpointCoordinator] = []
    begin = CheckpointCoordinator.savepoint_completed

    def noted(coordinator: CheckpointCoordinator) -> None:
        begin(coordinator)
        found.append(coordinator)

    monkeypatch.setattr(CheckpointCoordinator, "savepoint_completed", noted)
    return found


def test_the_job_is_restored_from_a_moved_savepoint_alone(
    bench: Bench, take: Take, tmp_path: Path, pauses: list[CheckpointCoordinator]
) -> None:
    deletes = CheckpointConfig(
        interval="50 ms", num_retained=1, cleanup=ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION
    )
    launch = started(bench, 3, deletes)
    taken = take(bench)
    content = tree(Path(taken.pointer))
    assert taken.batch == launch.of(SavepointCompleted)[0].metadata.batch == 2
    assert len(pauses) == 1, "min_pause counts from a savepoint, too"
    bench.land(2)
    bench.await_in_sink(launch)  # the query went on
    eventually("its last batch is captured", lambda: launch.completed[-1].batch == 4, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert not [name for job_id in bench.catalog.job_ids() for name in bench.catalog.numbers(job_id)]
    assert tree(Path(taken.pointer)) == content, "neither retention nor the cleanup policy touches it"

    moved = tmp_path / "a place of the user's"
    shutil.move(taken.pointer, moved)
    shutil.rmtree(bench.storage)
    shutil.rmtree(bench.working)
    bench.until_done = True
    again = bench.tick(1, restore_from=f"{moved}/")
    restored = again.started.restored
    assert restored is not None
    assert (restored.location, restored.batch) == (str(moved), 2)
    bench.assert_exact()
    first = again.completed[0]
    assert first.job_id == again.run_id.replace("-", "") != restored.job_id, "a lineage of its own"
    assert first.checkpoint_id > taken.checkpoint_id
    assert first.restored_from == str(moved)
    assert first.new_bytes == first.size, "it shares nothing with the savepoint"
    assert tree(moved) == content
    bench.tick(1)
    bench.assert_exact()


@pytest.mark.exhaustive
def test_until_it_has_a_checkpoint_of_its_own_the_job_comes_back_to_the_savepoint(ticked: Bench, take: Take) -> None:
    taken = take(ticked)  # no run is alive: the newest checkpoint is copied
    assert taken.batch == 5
    ticked.tick(1)
    ticked.run_and_cancel(1, restore_from=f"{taken.pointer}/_metadata")  # without a checkpoint
    shutil.rmtree(ticked.working)
    came_back = ticked.run_and_cancel(1)
    assert came_back.started.restored is not None
    assert came_back.started.restored.reference == taken.pointer
    salvaged = ticked.tick(1)  # this time the live location is still there
    assert salvaged.started.restored is not None
    assert salvaged.started.restored.kind == "salvage"
    assert salvaged.started.restored.checkpoint_id > taken.checkpoint_id
    assert salvaged.started.job_id == came_back.started.job_id
    ticked.assert_exact()


def test_a_savepoint_that_is_gone_meanwhile_is_an_error(ticked: Bench, take: Take) -> None:
    taken = take(ticked)
    ticked.run_and_cancel(1, restore_from=taken.pointer)
    shutil.rmtree(ticked.working)
    shutil.rmtree(taken.pointer)
    refusal = ticked.refused(CheckpointNotFound)
    assert taken.pointer in refusal.message
    assert "dagster-ckpt list tiny" in refusal.hint


@pytest.mark.quick
def test_stopped_with_a_savepoint_the_job_is_finished(bench: Bench, take: Take) -> None:
    launch = started(bench, 2)
    taken = take(bench, stop=True)
    assert launch.result().status is JobStatus.FINISHED
    assert taken.batch == 1
    (last,) = bench.checkpoints()
    assert last.batch == taken.batch, "the last checkpoint and the savepoint are of one batch"
    end = bench.catalog.records.epochs.read_end(bench.catalog.records.epochs.highest())
    assert end is not None
    assert (end.status, end.reason) == ("FINISHED", "stopped with a savepoint")
    shutil.rmtree(bench.storage)
    bench.until_done = True
    bench.tick(2, restore_from=taken.pointer)
    bench.assert_exact()


def test_a_savepoint_that_cannot_be_written_stops_no_job(bench: Bench, take: Take, tmp_path: Path) -> None:
    """Its directory is tried before the query is stopped for it."""
    launch = started(bench, 2, restart=RestartStrategies.fixed_delay_restart(3, "1 ms"))
    (tmp_path / "file").touch()
    with pytest.raises(SavepointFailed, match="was not taken"):
        take(bench, to=tmp_path / "file", stop=True)
    bench.land(1)
    bench.await_in_sink(launch)
    assert not launch.restarts
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    bench.assert_exact()


def test_a_checkpoint_is_taken_at_once_and_a_named_savepoint_is_gone_back_to(bench: Bench, tmp_path: Path) -> None:
    """A job that takes no checkpoints by itself."""
    launch = started(bench, 3)
    clock, wait = SystemClock(), Event().wait
    taken = ask_checkpoint(bench.catalog, timeout="4 min", clock=clock, wait=wait, report=lambda _: None)
    assert taken is not None
    assert taken.batch == launch.completed[0].batch == 2
    assert bench.catalog.resolve(taken.pointer).kind == "checkpoint"
    saved = take_savepoint(
        bench.catalog,
        str(tmp_path / "savepoints"),
        default=None,
        stop=True,
        timeout="4 min",
        clock=clock,
        wait=wait,
        report=lambda _: None,
        label=Label("before-upgrade", "of release 1"),
    )
    assert launch.result().status is JobStatus.FINISHED
    assert sorted(str(event.state) for event in launch.of(RequestTold)) == ["COMPLETED", "IN_PROGRESS", "IN_PROGRESS"]
    bench.until_done = True
    bench.tick(2)
    back = bench.tick(1, restore_from="savepoint:before-upgrade")
    restored = back.started.restored
    assert restored is not None
    assert (restored.location, restored.given_name, restored.note) == (saved.pointer, "before-upgrade", "of release 1")
    bench.assert_exact()
