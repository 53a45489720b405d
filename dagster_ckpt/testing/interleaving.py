"""Interleavings: several drivers each believe that they own a storage; drivers are switched between operations.

Each driver has its own thread and its own file system. One driver at a time runs, for a few operations, in an order
drawn from a seed. So a failed run fails again with the same seed. The critical moments are between a check and the
create that it allows: a driver often falls asleep there, and a *zombie* sleeps at some moment until all others have
ended::

    def drive(storage: FileSystem, memory: Ledger) -> None:
        run = Run(storage, memory).start()
        for step in range(3):
            run.checkpoint(step)

    enumerate_interleavings(fresh, [drive, drive, drive], examine, range(1000), zombie=True).require_none()
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing.fault_actions import Action, Operation, Plan, ProcessDied
from dagster_ckpt.testing.faults import FaultInjectingFileSystem
from dagster_ckpt.testing.violations import described, require_none

__all__ = ["Disturb", "Interleavings", "enumerate_interleavings", "interleave"]

#: Chooses the fault of an operation of the driver with this number, with the random numbers of the seed.
Disturb: TypeAlias = Callable[[int, Operation, random.Random], Action | None]

_Memory = TypeVar("_Memory")
#: For how many operations a driver runs, and for how many operations of the others it sleeps.
_AWAKE = (1, 2, 4, 8, 60, 120)
_ASLEEP = (120, 250)
#: Seconds without a storage operation after which a driver is stuck: probably in a lock that another driver holds.
_STUCK = 60.0


@dataclass(frozen=True, slots=True)
class Interleavings:
    """The result of :func:`enumerate_interleavings`.

    Attributes:
        runs: the number of runs.
        violations: the violations found, each with its seed.
    """

    runs: int
    violations: tuple[str, ...]

    def require_none(self) -> None:
        """Accept the interleavings.

        Raises:
            AssertionError: there are violations; the first ten are shown.
        """
        require_none(self.violations, self.runs)


def interleave(
    storage: FileSystem,
    drivers: Sequence[Callable[[FileSystem], object]],
    seed: int,
    *,
    zombie: bool = False,
    disturb: Disturb | None = None,
) -> None:
    """Let drivers run at once on one storage, until all of them have ended.

    Args:
        storage: shared by the drivers.
        drivers: each is called with its own view of ``storage``, in its own thread, and handles the errors that it
            expects. Nothing else may make a driver wait for another driver.
        seed: of the order.
        zombie: one driver, also drawn from the seed, falls asleep before some change and wakes up when all others have
            ended.
        disturb: chooses faults; a driver that dies of a fault has ended.

    Raises:
        Exception: the first error that a driver did not handle.
    """
    baton = _Baton(seed, len(drivers), zombie=zombie, disturb=disturb)
    views = [FaultInjectingFileSystem(storage, baton.plan(number)) for number in range(len(drivers))]
    baton.run([lambda driver=driver, view=view: driver(view) for driver, view in zip(drivers, views, strict=True)])  # type: ignore[misc]


def enumerate_interleavings(
    fresh: Callable[[], tuple[FileSystem, _Memory]],
    drivers: Sequence[Callable[[FileSystem, _Memory], object]],
    examine: Callable[[FileSystem, _Memory], object],
    seeds: Iterable[int],
    *,
    zombie: bool = False,
    disturb: Disturb | None = None,
) -> Interleavings:
    """Let drivers run at once, in many orders.

    Args:
        fresh: makes a storage, and a memory in which the drivers note the promises they got.
        drivers: as for :func:`interleave`; an error that escapes from a driver is a violation.
        examine: examines the storage when all drivers have ended; any error from ``examine`` is a violation.
        seeds: one run each.
        zombie: as for :func:`interleave`.
        disturb: as for :func:`interleave`.
    """
    violations = []
    runs = 0
    for seed in seeds:
        runs += 1
        storage, memory = fresh()
        driving = [lambda view, drive=drive, memory=memory: drive(view, memory) for drive in drivers]
        try:
            interleave(storage, driving, seed, zombie=zombie, disturb=disturb)
            examine(storage, memory)
        except Exception as error:  # any escaped error is a violation
            violations.append(f"seed {seed}: {described(error)}")
    return Interleavings(runs, tuple(violations))


class _Baton:
    """The driver that holds the baton runs."""

    def __init__(self, seed: int, drivers: int, *, zombie: bool, disturb: Disturb | None) -> None:
        self._random = random.Random(seed)
        self._disturb = disturb
        self._running = set(range(drivers))
        # Drivers that started all at once would fence each other before they do anything.
        self._joins = [self._random.randint(0, 150) * driver for driver in range(drivers)]
        self._zombie = self._random.randrange(drivers) if zombie else None
        self._falls_asleep = self._random.randint(10, 150)
        self._asleep: int | None = None
        self._passed = 0
        self._left = 0
        self._turns = [threading.Semaphore(0) for _ in range(drivers)]

    def plan(self, driver: int) -> Plan:
        issued = 0

        def wait_for_turn(operation: Operation) -> Action | None:
            nonlocal issued
            issued += 1
            self._passed += 1
            self._left -= 1
            # The critical moments are between a check and the create that it allows.
            nods = operation.name == "create" and self._random.random() < 0.2
            dies = driver == self._zombie and issued >= self._falls_asleep and operation.changes
            if dies:
                self._zombie, self._asleep = None, driver
            if self._left < 0 or nods or dies:
                self._pass_on(_ASLEEP if nods or dies else _AWAKE)
                self._wait(driver)
                self._left -= 1
            return None if self._disturb is None else self._disturb(driver, operation, self._random)

        return wait_for_turn

    def run(self, drivers: Sequence[Callable[[], object]]) -> None:
        failures: list[BaseException] = []

        def drive(number: int) -> None:
            try:
                self._wait(number)
                with contextlib.suppress(ProcessDied):
                    drivers[number]()
            except BaseException as error:  # raised again on the caller's thread
                failures.append(error)
            finally:
                self._running.discard(number)
                self._pass_on((1,))

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(len(drivers))]
        for thread in threads:
            thread.start()
        self._pass_on((1,))
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _pass_on(self, turns: Sequence[int]) -> None:
        awake = sorted(self._running - {self._asleep})
        if not awake:
            awake, self._asleep = sorted(self._running), None
        if awake:
            self._left = self._random.choice(turns)
            due = [driver for driver in awake if self._joins[driver] <= self._passed]
            self._turns[self._random.choice(due or awake[:1])].release()

    def _wait(self, driver: int) -> None:
        if not self._turns[driver].acquire(timeout=_STUCK):
            raise TimeoutError(f"Driver {driver} had no turn for {_STUCK:g} s: another one is stuck.")
