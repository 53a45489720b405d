"""The trace of a start: what is measured, whatever the clocks do, and that no error of it reaches the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.format.records import encode_record
from dagster_ckpt.checkpoint.start_traces import MONOTONIC, WALL, StartTrace, StartTraces, Step
from dagster_ckpt.clock import iso
from dagster_ckpt.errors import StorageUnusable
from dagster_ckpt.spark.start_tracer import Earlier, StartTracer
from tests.helpers.checkpoint.driver import JOB, ManualClock
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.threads import no_more_threads

CLAIM = Claim(3, "token", 3, "run-1", "host", 17, "2026-11-23T10:00:00+00:00")
MOMENTS = st.floats(-1e9, 2e9)


class Held:
    """A start of epoch 3 in its own storage."""

    def __init__(self, earlier: Earlier | None = None, storage: MemoryFileSystem | None = None) -> None:
        self.clock = ManualClock()
        self.told: list[StartTrace] = []
        self.traces = StartTraces(storage or MemoryFileSystem(), JOB)
        self.tracer = StartTracer(self.clock, earlier)
        self.tracer.hold(CLAIM, self.traces, self.told.append)

    def reports(self, at: float) -> Sequence[Mapping[str, Any]]:
        """A trigger without data, and the first batch, which began at a moment."""
        took = {"triggerExecution": 900, "addBatch": 600, "commitOffsets": 100, "walCommit": 50}
        return [
            {"timestamp": iso(at), "durationMs": {"triggerExecution": 5}},
            {"timestamp": iso(at), "durationMs": took},
            {"timestamp": iso(at + 5), "durationMs": {**took, "addBatch": 1}},
        ]


def test_a_start_from_the_failure_to_the_first_commit() -> None:
    now = ManualClock().time()
    held = Held(Earlier(now - 10, [("detected", now - 9), ("decided", now - 7), ("imports", now)]))
    for name, seconds in (("claim", 1), ("session", 4), ("start the query", 2)):
        held.tracer.begin(name)
        held.clock.advance(seconds)
    held.tracer.pause()
    reports = held.reports(held.clock.time() + 0.5)
    held.tracer.first_batch(reports[0], lambda: reports)
    assert not held.told, "no batch has run yet"
    held.tracer.first_batch(reports[2], lambda: reports)
    held.tracer.first_batch(reports[2], lambda: reports)
    held.tracer.close()
    (trace,) = held.told
    assert held.traces.newest(5) == [trace]
    assert [(step.name, step.began, step.seconds, step.clock) for step in trace.steps] == [
        ("detected", 0, 1, WALL),
        ("decided", 1, 2, WALL),
        ("imports", 3, 7, WALL),
        ("claim", 10, 1, MONOTONIC),
        ("session", 11, 4, MONOTONIC),
        ("start the query", 15, 2, MONOTONIC),
        ("first planning", 17.5, 0.2, WALL),
        ("first batch", 17.7, 0.6, WALL),
        ("first commit", 18.3, 0.1, WALL),
    ]
    assert trace.committed
    assert trace.seconds == pytest.approx(18.4)
    assert trace.began_at == iso(now - 10)


def test_a_start_that_fails_tells_the_steps_that_it_came_to() -> None:
    held = Held()
    held.tracer.begin("session")
    held.clock.advance(4)
    held.tracer.close()
    (trace,) = held.traces.newest(1)
    assert (trace.committed, trace.by_name) == (False, {"session": 4})


def test_steps_beside_one_another_overlap() -> None:
    held = Held()
    held.tracer.begin("claim")
    with held.tracer.beside("JVM"):
        held.clock.advance(1)
        held.tracer.begin("session")
        held.clock.advance(2)
    held.tracer.close()
    assert held.told[0].by_name == {"claim": 1, "JVM": 3, "session": 2}
    assert held.told[0].seconds == 3


@given(began=MOMENTS, moments=st.lists(MOMENTS, max_size=4), batch=MOMENTS)
def test_no_clock_that_is_set_makes_a_figure_negative(began: float, moments: list[float], batch: float) -> None:
    held = Held(Earlier(began, [(f"step {number}", moment) for number, moment in enumerate(moments)]))
    reports = held.reports(batch)
    held.tracer.first_batch(reports[1], lambda: reports)
    held.tracer.close()
    (trace,) = held.told
    assert all(step.began >= 0 and step.seconds >= 0 for step in trace.steps)
    encode_record(trace, "a/control/starts/e-0000000003")


@pytest.mark.parametrize("report", [{}, {"durationMs": {"addBatch": 1}}, {"durationMs": None}, {"timestamp": "now"}])
def test_a_report_of_another_form_leaves_the_batch_out(report: Mapping[str, Any]) -> None:
    held = Held()
    held.tracer.first_batch(report, lambda: [report])
    held.tracer.close()
    assert held.told[0].steps == ()


class _Full(MemoryFileSystem):
    def create(self, path: str, data: bytes) -> Any:
        raise StorageUnusable(f"{path}: no space left", hint="Make space.")


def test_a_trace_that_cannot_be_written_is_told_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    held = Held(storage=_Full())
    held.tracer.close()
    assert held.told
    assert "is not recorded" in caplog.text


def test_the_last_200_are_kept_and_a_damaged_one_is_left_out() -> None:
    storage = MemoryFileSystem()
    traces = StartTraces(storage, JOB)
    for epoch in range(1, 203):
        traces.add(StartTrace(epoch, "run", "2026-11-23T10:00:00+00:00", True, (Step("session", 0, 1, MONOTONIC),)))
    assert len(storage.files) == 200
    storage.files[f"{JOB}/control/starts/e-0000000201"] = b"{"
    assert [trace.epoch for trace in traces.newest(3)] == [200, 202]


def test_a_process_without_more_threads_goes_on_without_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    reports = held.reports(held.clock.time())
    with no_more_threads():
        held.tracer.first_batch(reports[1], lambda: reports)
        held.tracer.close()
    assert held.told[0].committed
    assert held.traces.newest(1) == []
    assert "can't start new thread" in caplog.text
