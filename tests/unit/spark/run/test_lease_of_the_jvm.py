"""For how long a JVM may go on without a sign of life of its Python process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.spark.run.watchdog import _milliseconds
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem

LEASE = Lease(1, 5)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def file() -> HeartbeatFile:
    return HeartbeatFile(MemoryFileSystem(), JOB)


def heart_of(file: HeartbeatFile, clock: ManualClock, epoch: int) -> Heart:
    heart = Heart(file, clock, epoch=epoch, run_id=f"run-{epoch}", lease=LEASE)
    heart._make(1)
    return heart


def test_until_the_lease_is_nearly_over(file: HeartbeatFile, clock: ManualClock) -> None:
    heart = heart_of(file, clock, 1)
    assert _milliseconds(heart) == 4500
    clock.advance(3)
    assert _milliseconds(heart) == 1500
    clock.advance(3)
    assert _milliseconds(heart) == 500, "the JVM is paused meanwhile"


def test_a_newer_run_of_the_same_process_keeps_the_lease_of_the_older_one(
    file: HeartbeatFile, clock: ManualClock
) -> None:
    """The watchdog of the older run is renewed by signs of life like any other, and ends no JVM that the two share."""
    older = heart_of(file, clock, 1)
    heart_of(file, clock, 2)
    older._make(2)
    clock.advance(60)
    assert _milliseconds(older) == 4500


def test_a_newer_run_of_another_process_leaves_nothing_of_it(file: HeartbeatFile, clock: ManualClock) -> None:
    older = heart_of(file, clock, 1)
    newer = heart_of(file, clock, 2)
    file.write(replace(newer._beat, processes=(ProcessIdentity("elsewhere/1", 1, 1.0),)))
    older._make(2)
    assert _milliseconds(older) == 500
