"""A query that fails by itself: restarted within its run, from where it was, as the strategy says."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import ExternalizedCheckpointCleanup, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import CheckpointError, Fenced, QueryFailed, SinkMismatch, StorageError
from dagster_ckpt.spark.events import CheckpointsDiscarded, Event, Restarting, Started
from dagster_ckpt.spark.job import RunResult
from dagster_ckpt.spark.run import running_query
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.jobs.harness import NEVER, OFTEN, Bench, Launch, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Query

_AT_ONCE = timedelta(milliseconds=1)
_BAD_ID = 12  # of the second and the third file


def failing(times: int, memory: Path, bad: int = _BAD_ID, *, kills: bool = False) -> Query:
    """A query whose UDF raises so many times when it meets a certain row; a file remembers how often it has.

    With ``kills`` the UDF kills its worker instead, as the system does where memory runs out.
    """

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return bench.write(_through_udf(bench.read(session).dropDuplicates(["id"]), times, str(memory), bad, kills))

    return query


def _through_udf(rows: DataFrame, times: int, memory: str, bad: int, kills: bool) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    @F.udf(returnType="int", useArrow=False)
    def checked(key: int, value: int) -> int:
        import os  # noqa: PLC0415 - on the worker
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        if key == bad:
            failed = len(Path(memory).read_text()) if Path(memory).exists() else 0
            if failed < times:
                Path(memory).write_text("x" * (failed + 1))
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError(f"row {key} is bad")
        return value

    return rows.select("id", checked("id", "v").alias("v"))


def waiting(gate: Path) -> Query:
    """A query whose UDF does not go on with a certain row while ``gate`` exists."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        path, bad = str(gate), _BAD_ID

        @F.udf(returnType="int", useArrow=False)
        def passed(key: int, value: int) -> int:
            import time  # noqa: PLC0415 - on the worker
            from pathlib import Path  # noqa: PLC0415 - on the worker

            while key == bad and Path(path).exists():
                Path(f"{path}.reached").touch()
                time.sleep(0.05)
            return value

        rows = bench.read(session).dropDuplicates(["id"])
        return bench.write(rows.select("id", passed("id", "v").alias("v")))

    return query


@pytest.mark.quick
def test_two_failures_and_two_restarts(bench: Bench) -> None:
    bench.land(4)
    job = bench.job(query=failing(2, bench.root / "failed"), restart=FixedDelayRestart(3, _AT_ONCE))
    launch = bench.launch(job)
    assert launch.result().status is JobStatus.FINISHED
    assert [type(event) for event in launch.events if isinstance(event, (Started, Restarting))] == [
        Started,
        Restarting,
        Started,
        Restarting,
        Started,
    ]
    for restart, number in zip(launch.restarts, (1, 2), strict=True):
        assert "row 12 is bad" in restart.error
        assert "'tiny'" in restart.error
        assert f"restart {number} of 3" in restart.reason
    first, second, third = launch.of(Started)
    assert (first.epoch, second.epoch, third.epoch) == (1, 2, 3)
    assert first.restored is None
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch) == ("salvage", 0)  # what was committed is not done again
    assert third.restored == second.restored
    bench.assert_exact()
    bench.checkpoints()
    traces = bench.catalog.records.starts.newest(5)
    assert [(trace.epoch, trace.steps[0].name) for trace in traces] == [(1, "claim"), (2, "decided"), (3, "decided")]

    failures = _failures(bench)
    assert [(item["run_id"], item["sequence"], item["recoverable"]) for item in failures] == [
        (launch.run_id, 1, True),
        (launch.run_id, 2, True),
    ]
    assert all("row 12 is bad" in item["reason"] for item in failures)
    ends = [bench.catalog.records.epochs.read_end(epoch) for epoch in (1, 2, 3)]
    assert [end.status for end in ends if end] == ["FAILING", "FAILING", "FINISHED"]
    assert {claim.series for epoch in (1, 2, 3) if (claim := bench.catalog.records.epochs.read_claim(epoch))} == {1}


def test_the_query_itself_tells_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure, and its end: the run asks at its begin alone whether the query is there."""
    monkeypatch.setattr(running_query, "_LOOK", float("inf"))
    bench.land(4)
    job = bench.job(query=failing(1, bench.root / "failed"), restart=FixedDelayRestart(3, _AT_ONCE))
    launch = bench.launch(job)
    assert launch.result().status is JobStatus.FINISHED
    assert len(launch.restarts) == 1
    bench.assert_exact()


def test_a_worker_that_is_killed(bench: Bench) -> None:
    """The driver and its JVM live, so the run goes on from what is committed."""
    bench.land(4)
    job = bench.job(query=failing(1, bench.root / "killed", kills=True), restart=FixedDelayRestart(3, _AT_ONCE))
    launch = bench.launch(job)
    assert launch.result().status is JobStatus.FINISHED
    (restart,) = launch.restarts
    assert "Python worker exited unexpectedly (crashed)" in restart.error
    assert launch.of(Started)[-1].epoch == 2
    bench.assert_exact()


@pytest.mark.parametrize(("error", "status"), [(SinkMismatch, "FAILED"), (Fenced, None), (StorageError, "FAILING")])
def test_what_a_batch_was_refused_with(bench: Bench, error: type[CheckpointError], status: str | None) -> None:
    """What no restart can mend ends the job as itself; a fenced run does not even record an end."""
    bench.land(2)
    refusals = [error("The table is another one.", hint="Put it back.")]

    def write(rows: DataFrame, _number: int) -> None:
        rows.write.format("noop").mode("overwrite").save()
        if refusals:
            raise refusals.pop()

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = ForeachBatchSink("table", write)
        return sink_to(bench.read(session), sink).trigger(availableNow=True)

    launch = bench.launch(bench.job(query=query, restart=FixedDelayRestart(3, _AT_ONCE)))
    if status == "FAILING":
        assert launch.result().status is JobStatus.FINISHED
        assert len(launch.restarts) == 1
    else:
        with pytest.raises(error, match="another one") as raised:
            launch.result()
        assert raised.value.hint == "Put it back."
        assert not launch.restarts
    end = bench.catalog.records.epochs.read_end(1)
    assert (None if end is None else end.status) == status
    assert bench.catalog.records.epochs.highest() == (2 if status == "FAILING" else 1)


def test_attempts_are_used_up(bench: Bench) -> None:
    bench.land(4)
    job = bench.job(query=failing(3, bench.root / "failed"), restart=FixedDelayRestart(1, _AT_ONCE))
    launch = bench.launch(job)
    with pytest.raises(QueryFailed, match="row 12 is bad"):
        launch.result()
    assert len(launch.restarts) == 1
    end = bench.catalog.records.epochs.read_end(2)
    assert end is not None
    assert end.status == "FAILED"
    assert "all 1 restarts are used up" in end.reason
    assert "row 12 is bad" in end.reason
    assert len(_failures(bench)) == 2
    # A launch by the user is a new series with a budget of its own, and goes on from what was done.
    again = bench.launch(job)
    assert again.result().status is JobStatus.FINISHED
    assert len(again.restarts) == 1
    assert again.started.restored is not None
    assert again.started.restored.batch == 0
    bench.assert_exact()


def test_a_restart_goes_on_from_the_checkpoint_that_was_named(ticked: Bench) -> None:
    """Named once, chosen once: the restart does not go back to it again, and not on from an abandoned one."""
    ticked.land(1)
    job = ticked.job(query=failing(1, ticked.root / "failed", bad=22), restart=FixedDelayRestart(1, _AT_ONCE))
    launch = ticked.launch(job, restore_from="chk-1")
    assert launch.result().status is JobStatus.FINISHED
    first, second = launch.of(Started)
    assert first.restored is not None
    assert first.restored.name == "chk-1"
    assert second.restored is not None
    # Row 22 is in the second batch after chk-1, so there was one to salvage.
    assert (second.restored.kind, second.restored.batch) == ("salvage", 2)
    assert second.restored.restored_from == first.restored.reference
    ticked.assert_exact()


def test_cancel_while_waiting_for_the_restart(bench: Bench) -> None:
    bench.land(4)
    job = bench.job(query=failing(9, bench.root / "failed"), restart=FixedDelayRestart(3, timedelta(days=1)))
    launch = bench.launch(job)
    eventually("the query fails", lambda: bool(launch.restarts), unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert len(launch.of(Started)) == 1
    end = bench.catalog.records.epochs.read_end(1)
    assert end is not None
    assert (end.status, end.reason) == ("CANCELED", "canceled while it waited for its restart")
    bench.tick()
    bench.assert_exact()


def test_checkpoints_go_with_a_cancellation_after_a_claim_that_failed(ticked: Bench) -> None:
    """The epoch of the failed start is closed, so the run ends the job, and deletes, under the next one."""
    ticked.land(1)
    epoch = ticked.catalog.records.epochs.highest() + 1
    trouble = [Fail()]

    def fail(operation: Operation) -> Action | None:
        is_claim = operation.name == "create" and operation.path.endswith(f"/e-{epoch + 1:010}")
        return trouble.pop() if is_claim and trouble else None

    def told(event: Event) -> None:
        if isinstance(event, Restarting) and not trouble:
            launch.run.cancel()

    config = NEVER.model_copy(update={"cleanup": ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION})
    job = ticked.job(
        config=config,
        query=failing(9, ticked.root / "failed", bad=35),
        restart=FixedDelayRestart(3, _AT_ONCE),
        filesystem=FaultInjectingFileSystem(ticked.filesystem, fail),
    )
    launch = Launch(job, RestoreRequest(), told=told)
    assert launch.result() == RunResult(JobStatus.CANCELED, None)
    assert len(launch.restarts) == 2
    ends = [ticked.catalog.records.epochs.read_end(number) for number in (epoch, epoch + 1)]
    assert [None if end is None else (end.status, end.discarded) for end in ends] == [
        ("FAILING", False),
        ("CANCELED", True),
    ]
    (discarded,) = launch.of(CheckpointsDiscarded)
    assert discarded.discarded
    assert not discarded.retained
    assert ticked.checkpoints() == []


def test_cancel_during_a_long_batch(bench: Bench) -> None:
    """Spark is in a Python worker that does not come back."""
    gate = bench.root / "gate"
    bench.land(4)
    gate.touch()
    launch = bench.launch(bench.job(config=OFTEN, query=waiting(gate)))
    eventually("the bad row is reached", Path(f"{gate}.reached").exists, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    end = bench.catalog.records.epochs.read_end(1)
    assert end is not None
    assert end.status == "CANCELED"
    gate.unlink()
    bench.tick()
    bench.assert_exact()
    bench.checkpoints()


def test_cancel_during_a_batch_that_is_waited_for(bench: Bench) -> None:
    """A checkpoint is due and waits for the batch; the cancellation does not wait with it."""
    gate = bench.root / "gate"
    bench.land(4)
    gate.touch()
    config = OFTEN.model_copy(update={"unaligned": False})
    launch = bench.launch(bench.job(config=config, query=waiting(gate)))
    eventually("the bad row is reached", Path(f"{gate}.reached").exists, unless=launch.check)
    launch.run.cancel()
    launch.run.cancel()  # a second one changes nothing
    assert launch.result().status is JobStatus.CANCELED
    gate.unlink()
    bench.tick()
    bench.assert_exact()


def test_cancel_while_the_users_function_builds_the_query(bench: Bench) -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow(bench: Bench, session: SparkSession) -> DataStreamWriter:
        inside.set()
        assert leave.wait(240)
        return bench.query(bench, session)

    bench.land(2)
    launch = bench.launch(bench.job(query=slow))
    assert inside.wait(240)
    launch.run.cancel()
    leave.set()
    assert launch.result().status is JobStatus.CANCELED
    bench.tick()
    bench.assert_exact()


def test_cancel_while_spark_starts(bench: Bench) -> None:
    bench.land(1)
    asked, canceled = threading.Event(), threading.Event()

    def slow_start() -> SparkSession:
        asked.set()
        assert canceled.wait(240)
        return bench.spark

    launch = bench.launch(replace(bench.job(), session=slow_start))
    assert asked.wait(240)
    launch.run.cancel()
    canceled.set()
    assert launch.result().status is JobStatus.CANCELED
    assert not launch.of(Started)
    assert not bench.sink.exists()
    bench.tick()
    bench.assert_exact()


def _failures(bench: Bench) -> list[dict[str, Any]]:
    """The failure records of all series, as another process reads them."""
    files = sorted((bench.storage / "tiny" / "control" / "failures").glob("s-*/*"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
