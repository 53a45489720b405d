"""Recoveries of a real job where its newest savepoint is newer than its newest checkpoint, and its live one is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from tests.jobs.harness import NEVER, Bench, tree
from tests.jobs.savepoints import Take, started

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.control.savepoint_requests import TakenSavepoint
    from dagster_ckpt.spark.job import StreamingJob

Spoil = Callable[[Path], None]

#: Goes on from savepoints, too, and deletes all it may.
_ANY = NEVER.model_copy(update={"prefer_checkpoint_for_recovery": False, "num_retained": 1})


def any_newest(bench: Bench) -> StreamingJob:
    return bench.job(config=_ANY)


@pytest.fixture
def savepoint(bench: Bench, take: Take) -> TakenSavepoint:
    """Of batch 3, after chk-1 of batch 1; and then the job went on by a batch, and was canceled."""
    bench.tick(2)
    launch = started(bench, 2, inline_threshold=1)
    taken = take(bench)
    bench.land(1)
    bench.await_in_sink(launch)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert (taken.checkpoint_id, taken.batch) == (2, 3)
    assert [(metadata.name, metadata.batch) for metadata in bench.checkpoints()] == [("chk-1", 1)]
    bench.until_done = True
    return taken


def test_the_job_goes_on_from_the_savepoint_in_its_own_lineage(bench: Bench, savepoint: TakenSavepoint) -> None:
    lineage, content = bench.checkpoints()[0].job_id, tree(Path(savepoint.pointer))
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 100
    went_on = bench.tick(1, any_newest(bench))
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.reference, restored.batch) == (savepoint.pointer, 3)
    assert "newer than every complete checkpoint" in went_on.started.reason
    assert "1 log entries removed" in went_on.started.sink
    (first,) = went_on.completed
    assert (first.job_id, first.checkpoint_id) == (lineage, 3)
    assert first.batch == 5, "what came after the savepoint, as it was, and then the new file"
    assert first.restored_from == savepoint.pointer
    bench.assert_exact()
    for _ in range(2):
        shutil.rmtree(bench.working)
        later = bench.tick(1, any_newest(bench))
        assert later.started.restored == first, "that is newer now"
        (first,) = later.completed
    bench.assert_exact()
    assert tree(Path(savepoint.pointer)) == content, "subsumed by nobody: it is the user's"
    shutil.rmtree(savepoint.pointer)
    assert bench.checkpoints() == [first], "it needs nothing of the savepoint"


def test_by_default_it_goes_on_from_the_checkpoint(bench: Bench, savepoint: TakenSavepoint) -> None:
    shutil.rmtree(bench.working)
    went_on = bench.tick(1)
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.name, restored.batch) == ("chk-1", 1)
    assert "3 log entries removed" in went_on.started.sink
    assert went_on.completed[0].checkpoint_id == 3
    bench.assert_exact()


def test_a_live_location_that_is_there_is_newer_than_both(bench: Bench, savepoint: TakenSavepoint) -> None:
    went_on = bench.tick(1, any_newest(bench))
    restored = went_on.started.restored
    assert restored is not None
    assert (restored.kind, restored.batch, restored.checkpoint_id) == ("salvage", 4, 3)
    assert not went_on.started.sink
    bench.assert_exact()


def _take_away(savepoint: Path) -> None:
    shutil.rmtree(savepoint)


def _change_a_file(savepoint: Path) -> None:
    victim = max((path for path in savepoint.iterdir() if path.name != "_metadata"), key=lambda path: path.name)
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _cut_the_manifest(savepoint: Path) -> None:
    manifest = savepoint / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-9])


_OTHER_WAYS = [pytest.param(spoil, marks=pytest.mark.exhaustive) for spoil in (_change_a_file, _cut_the_manifest)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("spoil", [_take_away, *_OTHER_WAYS])
def test_without_a_sound_savepoint_it_goes_on_from_the_checkpoint(
    bench: Bench, savepoint: TakenSavepoint, spoil: Spoil, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(bench.working)
    spoil(Path(savepoint.pointer))
    went_on = bench.tick(1, any_newest(bench))
    restored = went_on.started.restored
    assert restored is not None
    assert restored.name == "chk-1"
    (told,) = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert savepoint.pointer in told
    bench.assert_exact()


@pytest.mark.exhaustive
@pytest.mark.parametrize("spoil", [_take_away, _OTHER_WAYS[0]])
def test_a_savepoint_that_is_spoiled_after_it_was_gone_on_from(
    bench: Bench, savepoint: TakenSavepoint, spoil: Spoil
) -> None:
    """The run that went on from it completed no checkpoint, and lost its live location, too."""
    shutil.rmtree(bench.working)
    went_on = bench.run_and_cancel(1, any_newest(bench))
    assert went_on.started.restored is not None
    assert went_on.started.restored.reference == savepoint.pointer
    shutil.rmtree(bench.working)
    spoil(Path(savepoint.pointer))
    again = bench.tick(1)
    assert again.started.restored is not None
    assert again.started.restored.name == "chk-1"
    assert savepoint.pointer in again.started.reason
    bench.assert_exact()


@pytest.mark.exhaustive
def test_what_was_saved_of_an_abandoned_line_is_not_gone_on_from(bench: Bench, savepoint: TakenSavepoint) -> None:
    bench.run_and_cancel(1, any_newest(bench), restore_from="chk-1")
    shutil.rmtree(bench.working)
    went_on = bench.tick(1, any_newest(bench))
    restored = went_on.started.restored
    assert restored is not None
    assert restored.name == "chk-1"
    assert "began with" in went_on.started.reason
    bench.assert_exact()


@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_job_that_has_savepoints_only(bench: Bench, take: Take, *, kept: bool) -> None:
    config = CheckpointConfig(interval=None, prefer_checkpoint_for_recovery=False)
    launch = started(bench, 2, config)
    taken = take(bench)
    bench.land(1)
    bench.await_in_sink(launch)
    launch.run.cancel()
    launch.result()
    assert bench.checkpoints() == []
    shutil.rmtree(bench.working)
    if not kept:
        shutil.rmtree(taken.pointer)
    bench.until_done = True
    went_on = bench.tick(1, bench.job(config=config))
    restored = went_on.started.restored
    assert (None if restored is None else restored.reference) == (taken.pointer if kept else None)
    assert went_on.started.job_id == launch.started.job_id
    assert went_on.completed[0].checkpoint_id == taken.checkpoint_id + 1
    bench.assert_exact()
