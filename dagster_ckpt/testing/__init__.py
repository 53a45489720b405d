"""For those who test a storage, or a protocol on top of one.

* :class:`FaultInjectingFileSystem`: a storage whose operations fail, lose their replies, hang, lie, or are the last.
* :func:`enumerate_crash_points`: a scenario with something going wrong at each of its operations in turn.
* :func:`enumerate_interleavings`: several drivers at once, one of them a zombie, in an order drawn from a seed.
* :mod:`~dagster_ckpt.testing.filesystem_contract`: what every storage must keep, as tests to inherit; needs pytest.
* :mod:`~dagster_ckpt.testing.disturbed_server`: a server that answers late, refuses and loses replies, to inherit.
* :mod:`~dagster_ckpt.testing.gcs.server`: a strict server of Google Cloud Storage with faults.
"""

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
    Hang,
    Late,
    Lie,
    Operation,
    Plan,
    ProcessDied,
    Torn,
)
from dagster_ckpt.testing.interleaving import Disturb, Interleavings, enumerate_interleavings, interleave

__all__ = [
    "Action",
    "Crash",
    "CrashAfter",
    "CrashPoint",
    "Disturb",
    "Enumeration",
    "Fail",
    "FailAfter",
    "FaultInjectingFileSystem",
    "Flip",
    "Hang",
    "Interleavings",
    "Late",
    "Lie",
    "Operation",
    "Plan",
    "ProcessDied",
    "Torn",
    "actions_for",
    "at_operation",
    "enumerate_crash_points",
    "enumerate_interleavings",
    "interleave",
]
