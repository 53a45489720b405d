"""Three processes that all believe they drive the job, switched between storage operations."""

from __future__ import annotations

import pytest

from dagster_ckpt.testing import Disturb
from tests.helpers.checkpoint.driver import Pins
from tests.unit.checkpoint.protocol.interleaved import (
    interleavings,
    now_and_then,
    refused_now_and_then,
    threads_of_one_run,
)

SEEDS = 300
MANY_SEEDS = 2000


@pytest.fixture(scope="module")
def violations(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return interleavings(Pins(tmp_path_factory.mktemp("pins")), range(SEEDS)).violations


def test_no_acknowledged_checkpoint_is_lost_or_damaged(violations: tuple[str, ...]) -> None:
    """Whatever three drivers at once do to each other."""
    lost = [violation for violation in violations if ": visible" not in violation]
    assert not lost, f"{len(lost)} of {SEEDS}: {lost[:5]}"


def test_no_visible_checkpoint_is_incomplete(violations: tuple[str, ...]) -> None:
    """Neither one that a fenced driver published too late, and that was never acknowledged."""
    incomplete = [violation for violation in violations if ": visible" in violation]
    assert not incomplete, f"{len(incomplete)} of {SEEDS}: {incomplete[:5]}"


def test_a_zombie_that_wakes_up_when_all_is_over_breaks_no_promise(pins: Pins) -> None:
    interleavings(pins, range(SEEDS // 4), zombie=True).require_none()


def test_an_end_gives_up_nothing_that_another_run_goes_on_from(pins: Pins) -> None:
    interleavings(pins, range(SEEDS, SEEDS + SEEDS // 4), zombie=True, ends=True).require_none()


def test_faults_on_top_of_it_break_no_promise(pins: Pins) -> None:
    interleavings(pins, range(SEEDS // 4), zombie=True, disturb=now_and_then).require_none()


@pytest.mark.parametrize("disturb", [None, refused_now_and_then])
def test_a_deletion_beside_checkpoints_of_the_same_run_breaks_no_promise(pins: Pins, disturb: Disturb | None) -> None:
    """Switched at any operation: files are shared, and checkpoints published, while a deletion is under way."""
    threads_of_one_run(pins, range(SEEDS // 20), disturb=disturb).require_none()


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("disturb", [None, now_and_then])
@pytest.mark.parametrize("zombie", [False, True])
def test_no_promise_is_broken_under_many_more_seeds(pins: Pins, zombie: bool, disturb: Disturb | None) -> None:
    interleavings(pins, range(SEEDS, SEEDS + MANY_SEEDS), zombie=zombie, disturb=disturb).require_none()
