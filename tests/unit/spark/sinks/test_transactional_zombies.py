"""A start that was declared dead and is not: whatever it still does, and whenever, readers see what the newer one says.

The zombie is paused before any of its operations on the disk, past every check of who owns the job; the newer start is
let go on by any number of its own operations; then the zombie does all the rest, and then the newer start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.errors import CheckpointFailure, SinkMismatch
from tests.unit.spark.sinks.transactional import Checkpoint, Paused, Start, TransactionalJob, count, intercepted

Zombie = Callable[[Start, Checkpoint, Checkpoint], object]


def completes(start: Start, _old: Checkpoint, newest: Checkpoint) -> None:
    """It has completed a checkpoint and makes visible what that covers."""
    start.completed(newest)


def writes(start: Start, _old: Checkpoint, _newest: Checkpoint) -> None:
    start.write()


def comes_back(start: Start, _old: Checkpoint, newest: Checkpoint) -> None:
    """It is a start itself that has just chosen the newest checkpoint."""
    start.sink.rollback_to(newest.position, newest.files, start.epoch)
    start.begin()
    start.write()


def rolls_back(start: Start, old: Checkpoint, _newest: Checkpoint) -> None:
    """It is a start itself that was told to go back further."""
    start.sink.rollback_to(old.position, old.files, start.epoch)
    start.begin()
    start.write()


class Race:
    """A job with an older and a newest checkpoint, of which nothing that the newest covers is visible yet."""

    def __init__(self, directory: Path, zombie: Zombie, *, back: bool) -> None:
        self.job = TransactionalJob(directory)
        first = self.job.start(None)
        first.write()
        old = first.checkpoint()
        first.write(2)
        newest = first.take()
        first.write()
        self.target = old if back else newest
        doomed = first
        if zombie in (comes_back, rolls_back):
            chosen = old if zombie is rolls_back else newest
            doomed = self.job.new()
            doomed.sink.check(chosen.position, chosen.files)
            doomed.batch = chosen.batch
        self.zombie = Paused(lambda: zombie(doomed, old, newest))

    def newer(self) -> Start:
        try:
            start = self.job.start(self.target)
        except CheckpointFailure:  # the zombie was faster; as the restart strategy does, again
            start = self.job.start(self.target)
        start.write()
        start.checkpoint()
        return start

    def run(self, paused_at: int, newer_at: int) -> bool:
        """``False`` when the zombie has not so many operations."""
        reached = 0

        def step(_: str) -> None:
            nonlocal reached
            if reached == newer_at:
                self.zombie.finish()
            reached += 1

        with intercepted(step, self.zombie):
            if not self.zombie.advance(paused_at):
                return False
            try:
                start = self.newer()
            except SinkMismatch:
                # It was told to go forward to where the zombie, a rollback on record, had been told to go back from.
                self.zombie.finish()
                assert self.zombie.error is None
                self.target = self.job.choice if self.job.choice is not None else self.target
                return True
            self.zombie.finish()
        self.job.assert_exact(start.rows)
        count(self._afterwards)
        return True

    def _afterwards(self) -> None:
        start = self.job.latest()
        self.job.assert_exact(start.rows)
        self.job.assert_tidy(start.rows)
        start.write()
        start.checkpoint()
        self.job.assert_exact(start.rows)


CASES = [
    (completes, False),
    (completes, True),
    (writes, False),
    (writes, True),
    (comes_back, False),
    (comes_back, True),
    (rolls_back, False),
    (rolls_back, True),
]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("races")

    def fresh() -> Iterator[Path]:
        number = 0
        while True:
            yield root / str(number)
            number += 1

    return fresh()


@given(case=st.sampled_from(CASES), paused_at=st.integers(0, 40), newer_at=st.integers(0, 160))
@settings(max_examples=40)
def test_a_zombie_changes_nothing(
    directories: Iterator[Path], case: tuple[Zombie, bool], paused_at: int, newer_at: int
) -> None:
    zombie, back = case
    Race(next(directories), zombie, back=back).run(paused_at, newer_at)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "apart", [pytest.param(160, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    ("zombie", "back"),
    [
        pytest.param(zombie, back, marks=[pytest.mark.exhaustive] if back or zombie is comes_back else [])
        for zombie, back in CASES
    ],
)
def test_no_interleaving_lets_a_zombie_change_anything(tmp_path: Path, zombie: Zombie, back: bool, apart: int) -> None:
    paused_at = 0
    while Race(tmp_path / f"{paused_at}", zombie, back=back).run(paused_at, -1):
        # Other moments of the newer start for each pause, so that together they are close.
        for newer_at in range(paused_at * 7 % apart, 160, apart):
            Race(tmp_path / f"{paused_at}-{newer_at}", zombie, back=back).run(paused_at, newer_at)
        paused_at += 1
    assert paused_at > 5
