"""How long a new version may work without a checkpoint, by a clock of its own."""

from __future__ import annotations

import threading

import pytest

from dagster_ckpt.spark.upgrading import _Late
from tests.helpers.checkpoint.driver import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_version_without_work_is_not_late(clock: ManualClock) -> None:
    batches: list[int] = []
    late = _Late(threading.Event(), 10, clock, lambda: bool(batches))
    for _ in range(100):
        clock.advance(1)
        assert not late.is_set()
    batches.append(1)
    clock.advance(9)
    assert not late.is_set(), "the time without work does not count"
    clock.advance(1)
    assert late.is_set()
    assert late.is_late


def test_a_version_with_a_checkpoint_is_never_late(clock: ManualClock) -> None:
    cancel = threading.Event()
    late = _Late(cancel, 10, clock, lambda: True)
    clock.advance(9)
    late.lift()
    clock.advance(100)
    assert not late.is_set()
    cancel.set()
    assert late.is_set()
    assert not late.is_late


def test_a_look_that_fails_ends_nothing(clock: ManualClock) -> None:
    def works() -> bool:
        raise OSError("away")

    late = _Late(threading.Event(), 10, clock, works)
    clock.advance(1)
    assert not late.is_set()
    clock.advance(9)
    assert late.is_set()


def test_a_wait_ends_with_the_cancellation(clock: ManualClock) -> None:
    cancel = threading.Event()
    late = _Late(cancel, 10, clock, lambda: True)
    assert not late.wait(0)
    cancel.set()
    assert late.wait(60)
