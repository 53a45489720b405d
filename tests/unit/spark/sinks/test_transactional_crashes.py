"""A process may die before every single operation on the disk; the next start finds, and shows, exactly what counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.spark.sinks.transactional import TransactionalJob, count, die_at

Scenario = Callable[[TransactionalJob], object]


def commits(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    start.checkpoint()
    start.write()
    start.checkpoint()
    start.write()


def comes_back(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    start.checkpoint()
    start.write()
    start.take()  # complete, and nothing of it visible yet
    start.write()
    again = job.latest()
    again.write()
    again.checkpoint()


def rolls_back(job: TransactionalJob) -> None:
    start = job.start(None)
    kept = []
    for _ in range(4):
        start.write()
        kept.append(start.checkpoint())
    start.write()
    back = job.start(kept[0])
    back.write(2)
    back.checkpoint()
    further = job.start(kept[0])
    further.write()
    further.checkpoint()


def rolls_back_to_nothing(job: TransactionalJob) -> None:
    start = job.start(None)
    start.write(2)
    again = job.latest()
    again.write(2)
    again.checkpoint()


SCENARIOS = [commits, comes_back, rolls_back, rolls_back_to_nothing]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_may_die_before_an_operation(tmp_path: Path, scenario: Scenario) -> None:
    """Before each fifth, with the live location lost and kept in turn; the slow ones do it before each."""
    operations = undisturbed(tmp_path, scenario)
    for number, operation in enumerate(range(0, operations, 5)):
        dies(tmp_path / str(operation), scenario, operation, salvaged=number % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "salvaged",
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["live location lost", "live location kept"],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_may_die_before_every_operation(tmp_path: Path, scenario: Scenario, salvaged: bool) -> None:
    """Before each, every other one with the live location lost and the ones between with it kept."""
    for operation in range(int(salvaged), undisturbed(tmp_path, scenario), 2):
        dies(tmp_path / str(operation), scenario, operation, salvaged=salvaged)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", [comes_back, rolls_back])
def test_the_next_start_may_die_as_well(tmp_path: Path, scenario: Scenario) -> None:
    """The first dies here and there in the last third of the scenario, the second before each of its operations."""
    first = undisturbed(tmp_path, scenario)
    for died in range(first * 2 // 3, first, 29):
        operation = 0
        while True:
            job = TransactionalJob(tmp_path / f"{died}-{operation}")
            assert die_at(died, lambda job=job: scenario(job))  # type: ignore[misc]
            if not die_at(operation, job.latest):
                break
            job.assert_covered()
            count(job.examine)
            operation += 1
        assert operation > 10


def undisturbed(directory: Path, scenario: Scenario) -> int:
    """How many operations a scenario takes."""
    job = TransactionalJob(directory / "undisturbed")
    operations = count(lambda: scenario(job))
    count(job.examine)
    assert operations > 40
    return operations


def dies(directory: Path, scenario: Scenario, operation: int, *, salvaged: bool) -> None:
    job = TransactionalJob(directory)
    assert die_at(operation, lambda: scenario(job))
    job.assert_covered()
    if salvaged:
        job.salvage()
    count(job.examine)
