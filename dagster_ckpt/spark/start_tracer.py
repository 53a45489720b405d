"""Measures where the seconds of one start go. Nothing is decided by these figures, and no error leaves this module."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import MONOTONIC, WALL, Claim, StartTrace, StartTraces, Step
from dagster_ckpt.clock import Clock, iso

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Earlier", "StartTracer"]

_log = logging.getLogger(__name__)

#: Seconds that the end of a start waits for its trace to be recorded.
_GRACE = 5.0
_NOT_RECORDED = "Where the seconds of this start went is not recorded: %s"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What happened before the run's function was called, by wall clocks.

    Attributes:
        began: of the failure that the run goes on from, or of its launch; seconds since 1970.
        ended: each step with the moment at which the step ended, in order; seconds since 1970.
    """

    began: float
    ended: Sequence[tuple[str, float]]


class StartTracer:
    """The steps of one start. A step lasts until the next one begins.

    Args:
        clock: wall and monotonic time.
        earlier: what happened before.
    """

    def __init__(self, clock: Clock, earlier: Earlier | None = None) -> None:
        self._clock = clock
        now = clock.time()
        self._origin = now if earlier is None else min(earlier.began, now)
        self._offset = now - self._origin - clock.monotonic()
        self._steps: list[Step] = []
        self._open: tuple[str, float] | None = None
        self._done: Callable[[bool], None] | None = None
        self._writer: threading.Thread | None = None
        before = self._origin
        for name, moment in () if earlier is None else earlier.ended:
            ended = min(max(moment, before), now)  # the hosts' clocks may differ
            self._add(name, before - self._origin, ended - before, WALL)
            before = ended

    def begin(self, name: str) -> None:
        """A step begins, and the step before it ends."""
        self.pause()
        self._open = name, self._now()

    def pause(self) -> None:
        """The present step ends."""
        if self._open is not None:
            name, began = self._open
            self._open = None
            self._add(name, began, self._now() - began, MONOTONIC)

    @contextmanager
    def beside(self, name: str) -> Iterator[Callable[[str], None]]:
        """A step beside the others, on any thread; what is yielded gives it another name."""
        began, names = self._now(), [name]
        try:
            yield names.append
        finally:
            self._add(names[-1], began, self._now() - began, MONOTONIC)

    def hold(self, claim: Claim, traces: StartTraces, tell: Callable[[StartTrace], None]) -> None:
        """The start is that of an epoch; without one, nothing is recorded.

        Args:
            claim: of the epoch.
            traces: where the trace is recorded.
            tell: called with the trace when the start is over.
        """

        def done(committed: bool) -> None:
            steps = tuple(sorted(self._steps, key=lambda step: step.began))
            trace = StartTrace(claim.epoch, claim.run_id, iso(self._origin), committed, steps)
            tell(trace)
            # A storage that hangs must not hold up the query.
            writer = threading.Thread(target=_record, args=(traces, trace), name="dagster-ckpt-trace", daemon=True)
            writer.start()
            self._writer = writer

        self._done = done

    def report(self, query: StreamingQuery) -> Mapping[str, Any] | None:
        """Spark's last progress report of a query, if there is one; the first committed batch completes the trace."""
        try:
            if (progress := query.lastProgress) is None:
                return None
        except Exception as error:
            _log.debug("No progress report: %s", error)
            return None
        self.first_batch(progress, lambda: query.recentProgress)
        return dict(progress)

    def first_batch(self, last: Mapping[str, Any], reports: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Take the first committed batch from Spark's progress reports, and finish the trace; do nothing before it.

        Args:
            last: the last report of the query.
            reports: fetches the reports of the query, the oldest first.
        """
        try:
            if self._done is None or "addBatch" not in last["durationMs"]:
                return
            first = next((report for report in reports() if "addBatch" in report["durationMs"]), last)
            took = {name: value / 1000 for name, value in dict(first["durationMs"]).items()}
            began = datetime.fromisoformat(first["timestamp"]).timestamp() - self._origin
            commit = took.get("commitOffsets", 0.0)
            planning = took["triggerExecution"] - took["addBatch"] - commit
        except Exception as error:  # a report of another form, or a JVM that is gone
            _log.debug("The first batch is not in the trace of the start: %s", error)
            return
        self.pause()
        for name, seconds in (("planning", planning), ("batch", took["addBatch"]), ("commit", commit)):
            self._add(f"first {name}", began, seconds, WALL)
            began += seconds
        self.finish(committed=True)

    def finish(self, *, committed: bool) -> None:
        """Tell the trace and record it, once; ``committed`` says whether the first batch is committed."""
        done, self._done = self._done, None
        if done is not None:
            self.pause()
            try:
                done(committed)
            except Exception as error:  # there can be no more threads, for example
                _log.warning(_NOT_RECORDED, error)

    def close(self) -> None:
        """Finish the trace, and wait a moment until the trace is recorded: the process may end next."""
        self.finish(committed=False)
        if self._writer is not None:
            self._writer.join(_GRACE)

    def _now(self) -> float:
        return self._clock.monotonic() + self._offset

    def _add(self, name: str, began: float, seconds: float, clock: str) -> None:
        self._steps.append(Step(name, round(max(began, 0.0), 3), round(max(seconds, 0.0), 3), clock))


def _record(traces: StartTraces, trace: StartTrace) -> None:
    try:
        traces.add(trace)
    except Exception as error:  # a full or hanging storage shows at the next checkpoint attempt
        _log.warning(_NOT_RECORDED, error)
