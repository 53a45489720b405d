"""Where the seconds of a start went, as a job of Spark puts it on record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import StorageUnusable
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.spark.events import StartTraced

if TYPE_CHECKING:
    from tests.jobs.harness import Bench

_BEFORE = ["claim", "session", "watchdog", "choose"]
_AFTER = ["build the query", "preflight", "record", "sink", "storage", "start the query"]
_BATCH = ["first planning", "first batch", "first commit"]


class _NoTraces(PosixFileSystem):
    """A storage that takes everything but traces."""

    def create(self, path: str, data: bytes) -> Any:
        if "/starts/" in path:
            raise StorageUnusable(f"{path}: no space left", hint="Make space.")
        return super().create(path, data)


def test_each_start_is_on_record_with_its_steps_and_a_storage_that_refuses_does_no_harm(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    began = SystemClock().time()
    bench.tick(1)
    again = bench.tick(1)
    passed = SystemClock().time() - began
    first, second = bench.catalog.records.starts.newest(5)
    assert [step.name for step in first.steps] == [*_BEFORE, *_AFTER, *_BATCH]
    assert [step.name for step in second.steps] == [*_BEFORE, "unpack", *_AFTER, *_BATCH]
    assert again.of(StartTraced) == [StartTraced(second)]
    assert second.run_id == again.run_id
    for trace in (first, second):
        assert trace.committed
        assert 0 < trace.seconds < passed
        assert trace.by_name["first batch"] > 0
        ended = 0.0
        for step in trace.steps[: -len(_BATCH)]:  # one after another, without a gap
            assert step.began == pytest.approx(ended, abs=0.01)
            ended = step.began + step.seconds

    bench.tick(1, replace(bench.job(), filesystem=_NoTraces(bench.storage)))
    assert "Where the seconds of this start went is not recorded" in caplog.text
    assert len(bench.catalog.records.starts.newest(5)) == 2
    bench.assert_exact()
