"""A job that runs now and then, to the end of what is there, and goes on from what the run before left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.spark.events import CheckpointsDiscarded, describe

if TYPE_CHECKING:
    from tests.jobs.harness import Bench

pytestmark = pytest.mark.quick


def test_each_tick_goes_on_from_the_one_before(bench: Bench) -> None:
    first = bench.tick(2)
    assert first.started.restored is None
    assert [metadata.reference for metadata in first.completed] == [f"{first.started.job_id}/chk-1"]
    second = bench.tick(2)
    third = bench.tick(2)
    for before, after in ((first, second), (second, third)):
        assert after.started.restored is not None
        assert after.started.restored.reference == before.completed[-1].reference
        assert after.started.job_id == first.started.job_id
    assert [(item.checkpoint_id, item.batch, item.kind) for item in bench.checkpoints()] == [
        (1, 1, "checkpoint"),
        (2, 3, "checkpoint"),
        (3, 5, "checkpoint"),
    ]
    assert third.result().newest == third.completed[-1]
    said = [text for launch in (first, third) for event in launch.events for _, text in describe(event)]
    assert "The job is over: 0 checkpoints are deleted, and 3 stay" in said
    assert [("starts from nothing" in text, "Restored in" in text) for text in said if text.startswith("Epoch")] == [
        (True, False),
        (False, True),
    ]
    bench.assert_exact()
    assert not list(bench.working.iterdir())  # a finished run leaves no live location behind


def test_an_idle_tick_makes_no_checkpoint_and_no_error(ticked: Bench) -> None:
    before = ticked.photograph()
    idle = ticked.tick()
    assert not idle.completed
    assert not idle.failed
    assert idle.started.restored is not None
    assert idle.result().newest == idle.started.restored
    before.assert_untouched(ticked)
    assert ticked.tick(1).completed[-1].checkpoint_id == 4
    ticked.assert_exact()


def test_checkpoints_not_kept_on_success_are_deleted(bench: Bench) -> None:
    job = bench.job(config=CheckpointConfig(interval="50 ms", retain_on_success=False))
    launch = bench.tick(3, job)
    (discarded,) = launch.of(CheckpointsDiscarded)
    assert discarded.discarded
    assert discarded.discarded[-1].metadata.batch == 2
    assert not discarded.retained
    assert launch.result().newest is None
    assert not bench.checkpoints()
    assert not [file for file in bench.storage.rglob("*") if file.is_file() and "control" not in file.parts]
    bench.assert_exact()
