"""The machine's clocks."""

from __future__ import annotations

import time

import pytest

from dagster_ckpt.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="here CLOCK_MONOTONIC goes on in a sleep")
def test_it_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux has slept for an hour: its CLOCK_MONOTONIC, and Python's, did not notice."""
    awake = time.monotonic()
    clocks = {time.CLOCK_BOOTTIME: awake + 3600, time.CLOCK_MONOTONIC: awake}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    assert SystemClock().monotonic() == awake + 3600
