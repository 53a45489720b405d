"""The main thread waits in Python: it can be interrupted, its reports may fail, and no process outlives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dagster_ckpt.checkpoint.control.epochs import FAILING
from dagster_ckpt.checkpoint.control.failures import FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart, NoRestart
from dagster_ckpt.errors import InvalidConfiguration, QueryNotBuilt, StorageError
from dagster_ckpt.spark.events import CheckpointCompleted, Event, Restarting, Started
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.spark.run.job_run import StreamingRun
from dagster_ckpt.spark.run.supervisor import supervise
from tests.helpers.processes import lives
from tests.jobs.harness import OFTEN, Bench, eventually, new_run_id
from tests.jobs.threads import own_threads

if TYPE_CHECKING:
    from dagster_ckpt.spark.job import StreamingJob

_ROOT = Path(__file__).resolve().parents[3]


class Interrupted(BaseException):
    """What a terminated run's main thread is interrupted with; like ``KeyboardInterrupt``, no ``Exception``."""


def supervised(
    job: StreamingJob, on_event: Callable[[Event], None], *, restore_from: str = "latest", **how: Callable[[], Any]
) -> RunResult:
    def start(emit: Callable[[Event], None]) -> StreamingRun:
        return StreamingRun(
            job, run_id=new_run_id(), request=RestoreRequest(restore_from), series=None, clock=SystemClock(), emit=emit
        )

    return supervise(start, on_event, **how)


@pytest.mark.parametrize(
    "run_id", ["", "a/b", "a\nb", "f" * 31, "f" * 33, "F" * 32, "f" * 32 + "\n", "-" + "f" * 32, "../" + "f" * 32]
)
def test_a_run_has_an_id_that_can_be_in_the_name_of_a_record(bench: Bench, run_id: str) -> None:
    """A failure under another was written and never read back."""
    request = RestoreRequest("latest")
    with pytest.raises(InvalidConfiguration, match="cannot be the id of a run"):
        StreamingRun(bench.job(), run_id=run_id, request=request, series=None, clock=SystemClock(), emit=lambda _: None)
    for sound in (new_run_id(), new_run_id().replace("-", "")):
        StreamingRun(bench.job(), run_id=sound, request=request, series=None, clock=SystemClock(), emit=lambda _: None)


def test_an_interrupt_stops_the_query_and_is_raised_again(bench: Bench) -> None:
    bench.land(2)
    bench.until_done = False
    reported: list[Event] = []

    def interrupt(event: Event) -> None:
        reported.append(event)
        if isinstance(event, Started) and reported.count(event) == 1:
            raise Interrupted("terminate")

    threads = own_threads()
    with pytest.raises(Interrupted, match="terminate"):
        supervised(bench.job(), interrupt)
    assert [type(event) for event in reported].count(Started) == 2, "what was not handled to its end is handled again"
    end = bench.catalog.records.epochs.read_end(1)
    assert end is not None
    assert end.status == "CANCELED"
    assert bench.spark.sparkContext._jvm is not None
    active = bench.spark._jsparkSession.sharedState().activeStreamingQueries()
    assert not active.size()
    eventually("the worker ends", lambda: own_threads() <= threads)
    assert bench.spark.range(3).count() == 3  # the connection to the JVM is in order
    bench.until_done = True
    bench.tick(1)
    bench.assert_exact()


def unknown() -> bool:
    raise OSError("the database is down")


@pytest.mark.parametrize("is_cancellation", [lambda: False, unknown], ids=["it is not", "nobody knows"])
def test_an_interrupt_that_is_no_cancellation_leaves_the_job_to_be_gone_on_with(
    bench: Bench, is_cancellation: Callable[[], bool]
) -> None:
    """Whatever the cleanup policy says of a cancellation: there was none."""
    bench.land(2)
    bench.until_done = False
    config = OFTEN.model_copy(update={"cleanup": ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION})
    completed: list[Event] = []

    def interrupt() -> None:
        if completed:
            raise Interrupted("the host shuts down")

    def note(event: Event) -> None:
        completed.extend([event] if isinstance(event, CheckpointCompleted) else [])

    with pytest.raises(Interrupted, match="shuts down"):
        supervised(bench.job(config=config), note, on_turn=interrupt, is_cancellation=is_cancellation)
    assert bench.catalog.records.epochs.read_end(1) is None
    assert bench.checkpoints()
    heartbeat = HeartbeatFile(bench.filesystem, bench.name).read()
    assert heartbeat is not None
    assert heartbeat.stopped, "nobody has to wait for its lease"
    bench.until_done = True
    bench.tick(1)
    bench.assert_exact()


def test_an_interrupt_while_a_restart_is_waited_for_leaves_the_restart_to_others(bench: Bench) -> None:
    bench.land(1)

    def broken(bench: Bench, session: object) -> object:
        raise StorageError("the landing is not mounted")

    def interrupt(event: Event) -> None:
        if isinstance(event, Restarting):
            raise Interrupted("the host shuts down")

    restart = FixedDelayRestart(3, timedelta(days=1))
    job = bench.job(query=broken, restart=restart)  # type: ignore[arg-type]
    with pytest.raises(Interrupted, match="shuts down"):
        supervised(job, interrupt, is_cancellation=lambda: False)
    end = bench.catalog.records.epochs.read_end(1)
    assert end is not None
    assert end.status == FAILING
    (failure,) = FailureLog(bench.filesystem, bench.name).of(1)
    assert "not mounted" in failure.reason


def test_what_is_done_beside_the_job_may_fail(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.land(2)
    result = supervised(bench.job(), lambda event: None, on_turn=unknown)
    assert result.status is JobStatus.FINISHED
    assert "the database is down" in caplog.text
    bench.assert_exact()


def test_events_are_handled_on_the_thread_that_supervises(bench: Bench) -> None:
    bench.land(2)
    threads: set[str] = set()
    built: set[str] = set()

    def query(bench: Bench, session: object) -> object:
        built.add(threading.current_thread().name)
        return bench.query(bench, session)  # type: ignore[arg-type]

    job = bench.job(query=query)  # type: ignore[arg-type]
    result = supervised(job, lambda event: threads.add(threading.current_thread().name))
    assert result.status is JobStatus.FINISHED
    assert threads == {threading.current_thread().name}
    assert built == {"dagster-ckpt-spark"}


def test_a_report_that_fails_does_not_stop_the_stream(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.land(3)
    seen: list[type] = []

    def broken(event: Event) -> None:
        seen.append(type(event))
        raise RuntimeError("the event log is down")

    result = supervised(bench.job(), broken)
    assert result.status is JobStatus.FINISHED
    assert Started in seen
    assert CheckpointCompleted in seen
    assert "An event of the job could not be reported: CheckpointCompleted" in caplog.text
    bench.assert_exact()


def test_what_the_run_raises_is_raised(bench: Bench) -> None:
    reported: list[Event] = []
    job = replace(bench.job(), query=lambda _: 1 / 0, restart=NoRestart())  # type: ignore[arg-type, return-value]
    with pytest.raises(QueryNotBuilt, match="ZeroDivisionError"):
        supervised(job, reported.append)
    assert reported  # what happened before was reported all the same


_STEP = """
import json, os, sys
from dagster_ckpt.spark.run.supervisor import die_with_parent
if sys.argv[1] == "guarded":
    die_with_parent()
from pyspark.java_gateway import launch_gateway
gateway = launch_gateway()
print(json.dumps([os.getpid(), gateway.proc.pid]), flush=True)
os.read(os.open(sys.argv[2], os.O_RDWR), 1)  # until the end
"""

_RUN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
"""


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
def test_a_step_process_dies_with_its_parent_and_its_jvm_with_it(tmp_path: Path, *, guarded: bool) -> None:
    """A run worker, its step process, and the JVM of that; unguarded, the two outlive a killed worker."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    mode = "guarded" if guarded else "unguarded"
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, _STEP, mode, str(fifo)],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        tree = [psutil.Process(pid) for pid in json.loads(worker.stdout.readline())]
        try:
            assert all(process.is_running() for process in tree)
            worker.kill()
            worker.wait()
            if guarded:
                eventually("the step process and its JVM die", lambda: not any(map(lives, tree)))
            else:
                assert all(map(lives, tree))
        finally:
            for process in tree:
                if lives(process):
                    process.kill()
