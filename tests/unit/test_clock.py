"""The machine's clocks."""

from __future__ import annotations

import time

import pytest

from dagster_ckpt.clock import SystemClock, slept


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="here CLOCK_MONOTONIC goes on in a sleep")
def test_the_sleep_of_the_machine_is_known_and_no_interval_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux has slept for an hour: CLOCK_BOOTTIME alone went on."""
    awake = SystemClock().monotonic()
    before = slept()
    boottime = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: boottime(which) + 3600 * (which == time.CLOCK_BOOTTIME))
    assert slept() == pytest.approx(before + 3600, abs=60)
    assert SystemClock().monotonic() == pytest.approx(awake, abs=60)
