"""Crash points: let a scenario die, fail or lose a reply at every single storage operation.

The scenario runs once undisturbed to count its operations, then once per operation and action, each time on
a fresh storage. Afterwards the caller examines the storage, as a new process would find it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing.fault_actions import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    Operation,
    Plan,
    ProcessDied,
    Torn,
)
from dagster_ckpt.testing.faults import FaultInjectingFileSystem
from dagster_ckpt.testing.violations import described, require_none

__all__ = ["CrashPoint", "Enumeration", "actions_for", "at_operation", "enumerate_crash_points"]

_Memory = TypeVar("_Memory")


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The fault that was injected into one run of a scenario."""

    operation: Operation
    action: Action

    def __str__(self) -> str:
        return f"{type(self.action).__name__} at {self.operation}"


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The result of :func:`enumerate_crash_points`.

    Attributes:
        operations: of the undisturbed run.
        runs: the number of disturbed runs.
        violations: the violations found, each with its crash point.
    """

    operations: tuple[Operation, ...]
    runs: int
    violations: tuple[str, ...]

    def require_none(self) -> None:
        """Accept the enumeration.

        Raises:
            AssertionError: there are violations; the first ten are shown.
        """
        require_none(self.violations, self.runs)


def actions_for(operation: Operation) -> Sequence[Action]:
    """Every way in which an operation can end badly although the storage keeps its promises.

    A process may die before or after a change, or in the middle of a data file; a change may fail, or
    succeed with its reply lost. An operation that only reads can fail, or the process dies before it.
    """
    if not operation.changes:
        return (Crash(), Fail())
    actions: list[Action] = [Crash(), CrashAfter(), Fail(), FailAfter()]
    if operation.name == "write" and operation.size:
        actions.append(Torn(operation.size // 2, ProcessDied(str(operation))))
    return actions


def at_operation(sequence: int, action: Action) -> Plan:
    """A plan in which one operation fails and all others succeed."""
    return lambda operation: action if operation.sequence == sequence else None


def enumerate_crash_points(
    fresh: Callable[[], tuple[FileSystem, _Memory]],
    scenario: Callable[[FileSystem, _Memory], object],
    examine: Callable[[FileSystem, _Memory], object],
    *,
    actions: Callable[[Operation], Sequence[Action]] = actions_for,
    expected: tuple[type[Exception], ...] = (OSError,),
) -> Enumeration:
    """Run ``scenario`` with one fault at a time.

    Args:
        fresh: makes an empty storage, and a memory in which the scenario notes the promises it got.
        scenario: the code that must survive; it uses the storage only through the given file system, and does
            the same each time.
        examine: examines the storage afterwards; any error from ``examine``, such as an ``AssertionError``, is a
            violation.
        actions: the faults to try at an operation.
        expected: errors that may end the scenario; any other error is a violation.

    Raises:
        Exception: the undisturbed run failed, or did not pass the examination.
    """
    storage, memory = fresh()
    counting = FaultInjectingFileSystem(storage)
    scenario(counting, memory)
    examine(storage, memory)
    violations: list[str] = []
    runs = 0
    for operation in counting.operations:
        for action in actions(operation):
            runs += 1
            point = CrashPoint(operation, action)
            problem = _run_with(point, fresh, scenario, examine, expected)
            if problem is not None:
                violations.append(f"{point}: {problem}")
    return Enumeration(counting.operations, runs, tuple(violations))


def _run_with(
    point: CrashPoint,
    fresh: Callable[[], tuple[FileSystem, _Memory]],
    scenario: Callable[[FileSystem, _Memory], object],
    examine: Callable[[FileSystem, _Memory], object],
    expected: tuple[type[Exception], ...],
) -> str | None:
    storage, memory = fresh()
    disturbed = FaultInjectingFileSystem(storage, at_operation(point.operation.sequence, point.action))
    try:
        with contextlib.suppress(ProcessDied, *expected):
            scenario(disturbed, memory)
    except Exception as error:
        return f"the scenario ended with {described(error)}"
    if point.operation.name not in {operation.name for operation, action in disturbed.log if action}:
        return "the scenario did not come to this operation again: it is not the same each time"
    try:
        examine(storage, memory)
    except Exception as error:
        return described(error)
    return None
