"""The traces of a job's starts: the newest are kept, and an unreadable one hides no other."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint import start_traces
from dagster_ckpt.checkpoint.start_traces import StartTrace, StartTraces, Step
from tests.helpers.checkpoint.driver import JOB
from tests.helpers.checkpoint.memory import MemoryFileSystem


def trace(epoch: int, *steps: Step) -> StartTrace:
    return StartTrace(epoch, f"run-{epoch}", "2026-01-01T00:00:00.000+00:00", True, steps)


def test_the_newest_are_kept(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_traces, "_KEPT", 3)
    traces = StartTraces(memory, JOB)
    for epoch in range(1, 6):
        traces.add(trace(epoch))
    traces.add(trace(5, Step("again", 0.0, 1.0, "monotonic")))
    assert traces.newest(10) == [trace(3), trace(4), trace(5)], "and the first trace of an epoch stands"
    assert traces.newest(1) == [trace(5)]


def test_an_unreadable_one_is_left_out(memory: MemoryFileSystem) -> None:
    traces = StartTraces(memory, JOB)
    for epoch in (1, 2, 3):
        traces.add(trace(epoch))
    memory.files[f"{JOB}/control/starts/e-0000000002"] = b"{"
    memory.files[f"{JOB}/control/starts/notes"] = b"of somebody else"
    assert traces.newest(10) == [trace(1), trace(3)]


def test_its_seconds() -> None:
    assert trace(1).seconds == 0
    told = trace(
        1, Step("restore", 1.0, 4.0, "wall"), Step("query", 2.0, 1.0, "wall"), Step("restore", 5.0, 0.5, "wall")
    )
    assert told.seconds == 5.5
    assert told.by_name == {"restore": 4.5, "query": 1.0}
