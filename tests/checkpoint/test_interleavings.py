"""Three processes that all believe they drive the job, switched between storage operations."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.deletions import DeletionLog
from dagster_ckpt.checkpoint.epochs import Epochs
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.testing import Action, FaultInjectingFileSystem, Operation, Plan
from tests.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.checkpoint.memory import MemoryFileSystem

SEEDS = 600
MANY_SEEDS = 2000
DRIVERS = 3


class Baton:
    """Lets one of several threads run for a few storage operations at a time, in an order drawn from a seed."""

    def __init__(self, seed: int, drivers: int) -> None:
        self._random = random.Random(seed)
        self._running = set(range(drivers))
        # Started all at once they would fence each other before they do anything.
        self._joins = [self._random.randint(0, 150) * driver for driver in range(drivers)]
        self._passed = 0
        self._turns = [threading.Semaphore(0) for _ in range(drivers)]
        self._left = 0

    def plan(self, driver: int) -> Plan:
        def wait_for_turn(operation: Operation) -> Action | None:
            self._passed += 1
            self._left -= 1
            # The moments that matter are between a check and the create it allows.
            asleep = operation.name == "create" and self._random.random() < 0.2
            if self._left < 0 or asleep:
                self._pass_on((120, 250) if asleep else (1, 2, 4, 8, 60, 120))
                self._wait(driver)
                self._left -= 1
            return None

        return wait_for_turn

    def run(self, drivers: list[Callable[[], None]]) -> None:
        failures: list[BaseException] = []

        def drive(number: int) -> None:
            self._wait(number)
            try:
                drivers[number]()
            except BaseException as error:
                failures.append(error)
            finally:
                self._running.discard(number)
                self._pass_on()

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(len(drivers))]
        for thread in threads:
            thread.start()
        self._pass_on()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _pass_on(self, turns: Sequence[int] = (1,)) -> None:
        if self._running:
            self._left = self._random.choice(turns)
            due = [driver for driver in sorted(self._running) if self._joins[driver] <= self._passed]
            self._turns[self._random.choice(due or [min(self._running)])].release()

    def _wait(self, driver: int) -> None:
        assert self._turns[driver].acquire(timeout=60), "the baton was lost"


def contents(driver: int, step: int) -> dict[str, bytes]:
    """At first what the checkpoint before had, to share its files; later nothing of it, so that they can go."""
    own = {
        f"checkpoint/state/{driver}.{step // 2}.sst": f"of driver {driver}, in two checkpoints {step // 2}".encode(),
        f"checkpoint/offsets/{step}": f"{driver} {step}".encode(),
    }
    return {**state(1), **own} if step == 0 else own


def interleave(seed: int, pins: Pins, unfence: Callable[[CheckpointCatalog | DeletionLog], None] | None) -> None:
    """Three runs of one job at once; afterwards the storage is examined, and a fourth goes on."""
    storage, ledger, baton = MemoryFileSystem(), Ledger(), Baton(seed, DRIVERS)
    Run(storage, ledger, pins).start().checkpoint(state(1), 1)

    def drive(number: int) -> None:
        run = Run(FaultInjectingFileSystem(storage, baton.plan(number)), ledger, pins, unfence=unfence)
        try:
            run.start()
        except Fenced:
            return
        for step in range(3):
            try:
                run.checkpoint(contents(number, step), step)
                run.subsume(1)
                ledger.examine(storage)  # holds at every moment, also in the midst of what the others do
            except Fenced:
                return
            except (CheckpointError, OSError):
                continue

    baton.run([lambda number=number: drive(number) for number in range(DRIVERS)])  # type: ignore[misc]
    examine(storage, ledger)
    Run(storage, ledger, pins).start().checkpoint(state(99), 99)
    examine(storage, ledger)


def examine(storage: MemoryFileSystem, ledger: Ledger) -> None:
    for epoch, (restored, before) in ledger.chosen.items():
        if before > (0, 0):
            assert restored is not None, f"epoch {epoch} began from nothing"
            # What was acknowledged before an epoch claimed is not ahead of what it went on from.
            assert ledger.acknowledged.get(restored, before) >= before, f"epoch {epoch} lost {before}"
    assert ledger.acceptable(CheckpointCatalog(storage, JOB).newest().metadata)
    ledger.examine(storage)


@pytest.fixture(scope="module")
def violations(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pins = Pins(tmp_path_factory.mktemp("pins"))
    return violations_in(pins, range(SEEDS))


def violations_in(pins: Pins, seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            interleave(seed, pins, None)
        except AssertionError as error:
            found.append(f"seed {seed}: {error}")
    return found


def test_no_acknowledged_checkpoint_is_lost_or_damaged(violations: list[str]) -> None:
    """Whatever three drivers at once do to each other."""
    lost = [violation for violation in violations if ": visible" not in violation]
    assert not lost, f"{len(lost)} of {SEEDS}: {lost[:5]}"


def test_no_visible_checkpoint_is_incomplete(violations: list[str]) -> None:
    """Neither one that a fenced driver published too late, and that was never acknowledged."""
    incomplete = [violation for violation in violations if ": visible" in violation]
    assert not incomplete, f"{len(incomplete)} of {SEEDS}: {incomplete[:5]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_promise_is_broken_under_many_more_seeds(pins: Pins) -> None:
    assert violations_in(pins, range(SEEDS, SEEDS + MANY_SEEDS)) == []


class Unfenced(Epochs):
    """Epochs that let everybody pass."""

    def check(self, epoch: int) -> None:
        """Fence nobody."""


def unfence(part: CheckpointCatalog | DeletionLog) -> None:
    if isinstance(part, CheckpointCatalog):
        part.epochs = Unfenced(part.filesystem, part.job_name)
    else:
        part._epochs = Unfenced(part._filesystem, part._job_name)


def test_without_fencing_promises_are_broken(pins: Pins) -> None:
    """The proof that the test above can find anything."""
    violations = 0
    for seed in range(SEEDS):
        try:
            interleave(seed, pins, unfence)
        except (AssertionError, CheckpointError):
            violations += 1
            if violations == 3:
                return
    pytest.fail(f"only {violations} violations in {SEEDS} seeds")
