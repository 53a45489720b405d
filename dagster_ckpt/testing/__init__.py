"""For those who test a storage or a protocol on top of it: injected faults and enumerated crash points."""

from __future__ import annotations

from dagster_ckpt.testing.crashes import (
    CrashPoint,
    Enumeration,
    actions_for,
    at_operation,
    enumerate_crash_points,
)
from dagster_ckpt.testing.faults import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    FaultInjectingFileSystem,
    Flip,
    Lie,
    Operation,
    Plan,
    ProcessDied,
    Torn,
)

__all__ = [
    "Action",
    "Crash",
    "CrashAfter",
    "CrashPoint",
    "Enumeration",
    "Fail",
    "FailAfter",
    "FaultInjectingFileSystem",
    "Flip",
    "Lie",
    "Operation",
    "Plan",
    "ProcessDied",
    "Torn",
    "actions_for",
    "at_operation",
    "enumerate_crash_points",
]
