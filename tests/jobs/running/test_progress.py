"""What a run says while it stores or restores for long: here it never is quick enough to say nothing."""

from __future__ import annotations

import logging

import pytest

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, RestoreInProgress
from dagster_ckpt.spark.events import describe
from tests.jobs.harness import Bench

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_ckpt.checkpoint.taking.progress.TELL_EVERY", 0.0)


def test_a_restore_and_a_checkpoint_tell_how_far_they_are(ticked: Bench) -> None:
    newest = find_newest(ticked.catalog).metadata
    assert newest is not None
    launch = ticked.tick(1)
    restored = launch.of(RestoreInProgress)
    assert len(restored) == len(newest.files)
    assert restored[-1].checkpoint == newest.reference
    assert max(event.restored for event in restored) == restored[-1].total == newest.size
    (taken,) = launch.completed
    stored = [event for event in launch.of(CheckpointInProgress) if event.number == taken.checkpoint_id]
    assert 0 < max(event.stored for event in stored) == stored[-1].total <= taken.new_bytes
    ((level, text),) = describe(restored[-1])
    assert level == logging.INFO
    assert text.startswith(f"{newest.reference}: ")
