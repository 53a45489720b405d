"""Trouble that passes is waited for as the restart strategy says; only what is known to stay ends a job early."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.checkpoint.control.failures import DIED, Failure, FailureLog
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import (
    ForeignCheckpoint,
    InvalidConfiguration,
    JobAlreadyRunning,
    QueryNotBuilt,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.spark.events import Started
from dagster_ckpt.testing import Action, Fail, FaultInjectingFileSystem, Operation
from tests.helpers.mounts import fill, mounted
from tests.jobs.harness import OFTEN, Bench, Launch, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.jobs.harness import Query

_ROOT = Path(__file__).parents[3]
_OFTEN = FixedDelayRestart(1_000_000, timedelta(milliseconds=200))
_AT_ONCE = timedelta(milliseconds=1)


def failing(*errors: Exception) -> tuple[Query, list[int]]:
    """A function that raises these, one after another, before it builds the query; and when it was called."""
    calls: list[int] = []

    def build(bench: Bench, session: SparkSession) -> DataStreamWriter:
        calls.append(len(calls))
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return bench.query(bench, session)

    return build, calls


def failures(bench: Bench) -> list[Failure]:
    log = FailureLog(bench.filesystem, bench.name)
    return [failure for series in log.series() for failure in log.of(series)]


class TestTheJobsFunction:
    def test_what_it_raises_once_passes(self, bench: Bench) -> None:
        bench.land(2)
        build, calls = failing(KeyError("no such catalog"))
        launch = bench.launch(bench.job(query=build, restart=FixedDelayRestart(3, _AT_ONCE)))
        assert launch.result().status is JobStatus.FINISHED
        assert len(calls) == 2
        (restart,) = launch.restarts
        assert restart.error == "The function of job 'tiny' did not build its query: KeyError: 'no such catalog'"
        assert [(item.kind, item.recoverable) for item in failures(bench)] == [("QueryNotBuilt", True)]
        bench.assert_exact()

    def test_the_same_twice_in_a_row_is_a_mistake(self, bench: Bench) -> None:
        bench.land(1)
        mistake = KeyError("no such setting")
        build, calls = failing(*[mistake] * 9)
        launch = bench.launch(bench.job(query=build, restart=FixedDelayRestart(9, _AT_ONCE)))
        with pytest.raises(QueryNotBuilt, match="KeyError: 'no such setting'") as raised:
            launch.result()
        assert len(calls) == 2
        assert raised.value.__cause__ is mistake
        assert raised.value.__cause__.__traceback__ is not None
        assert "twice in a row" in raised.value.hint
        end = bench.catalog.records.epochs.read_end(2)
        assert end is not None
        assert end.status == "FAILED"
        assert "no such setting" in end.reason
        assert "a restart cannot help" in end.reason

    def test_also_in_the_run_that_the_sensor_launches(self, bench: Bench) -> None:
        bench.land(1)
        mistakes = [KeyError("no such setting")] * 9
        build, calls = failing(*mistakes)
        launch = bench.launch(bench.job(query=build, restart=FixedDelayRestart(9, timedelta(days=1))))
        eventually("it fails", lambda: bool(launch.restarts), unless=launch.check)
        launch.run.interrupt()  # as if its process died
        launch.result()
        job = bench.job(query=build, restart=FixedDelayRestart(9, _AT_ONCE))
        with pytest.raises(QueryNotBuilt, match="no such setting"):
            Launch(job, RestoreRequest(), series=1).result()
        assert len(calls) == 2

    def test_another_error_each_time_goes_by_the_strategy(self, bench: Bench) -> None:
        bench.land(2)
        build, calls = failing(KeyError("a"), ValueError("a"), KeyError("b"), KeyError("a"))
        launch = bench.launch(bench.job(query=build, restart=FixedDelayRestart(4, _AT_ONCE)))
        assert launch.result().status is JobStatus.FINISHED
        assert len(calls) == 5
        bench.assert_exact()

    def test_an_outage_is_no_mistake_however_long_it_lasts(self, bench: Bench) -> None:
        bench.land(2)
        build, calls = failing(*[RuntimeError("java.net.ConnectException: Connection refused")] * 4)
        launch = bench.launch(bench.job(query=build, restart=FixedDelayRestart(4, _AT_ONCE)))
        assert launch.result().status is JobStatus.FINISHED
        assert len(calls) == 5
        bench.assert_exact()

    def test_what_a_failed_attempt_had_laid_out_does_not_fill_the_disk(self, ticked: Bench) -> None:
        ticked.land(1)
        before = {path.name for path in ticked.working.iterdir()}
        build, _ = failing(KeyError("a"), KeyError("b"), KeyError("c"))
        laid_out: list[set[str]] = []

        def looking(bench: Bench, session: SparkSession) -> DataStreamWriter:
            laid_out.append({path.name for path in ticked.working.iterdir()} - before)
            return build(bench, session)

        launch = ticked.launch(ticked.job(query=looking, restart=FixedDelayRestart(3, _AT_ONCE)))
        assert launch.result().status is JobStatus.FINISHED
        assert [len(names) for names in laid_out[:4]] == [1, 1, 1, 1], "no more than what the attempt itself needs"
        ticked.assert_exact()

    def test_what_spark_cannot_plan_is_its_mistake_too(self, bench: Bench) -> None:
        def append_of_an_aggregate(bench: Bench, session: SparkSession) -> DataStreamWriter:
            return bench.write(bench.read(session).groupBy("k").count().withColumnRenamed("count", "v"))

        bench.land(1)
        job = bench.job(query=append_of_an_aggregate, restart=FixedDelayRestart(9, _AT_ONCE))
        launch = bench.launch(job)
        with pytest.raises(QueryNotBuilt, match="Spark cannot plan the query of job 'tiny'"):
            launch.result()
        assert len(launch.restarts) == 1


def test_a_working_directory_without_space_is_waited_for(bench: Bench) -> None:
    """The query fails for want of space, and so does what the next start unpacks; then there is space again."""
    bench.working.mkdir(parents=True)
    with mounted("-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(bench.working)):
        job = bench.job(config=OFTEN, restart=_OFTEN)
        bench.until_done = False
        launch = bench.launch(job)
        bench.land(2)
        bench.await_in_sink(launch)
        eventually("a checkpoint completes", lambda: bool(launch.completed), unless=launch.check)
        ballast = bench.working / "ballast"
        fill(ballast)
        bench.land(1)

        def is_refused() -> bool:
            return any("could not be unpacked" in restart.error for restart in launch.restarts)

        eventually("a start finds no space", is_refused, unless=launch.check)
        told = next(item for item in launch.restarts if "could not be unpacked" in item.error)
        assert str(bench.working) in told.error
        assert "No space left on device" in told.error
        assert "MiB and" in told.error
        assert {item.kind for item in failures(bench)} >= {"WorkingDirectoryFailed"}
        assert all(item.recoverable for item in failures(bench))

        ballast.unlink()
        bench.land(1)
        bench.await_in_sink(launch)
        launch.run.cancel()
        assert launch.result().status is JobStatus.CANCELED
        assert len(launch.of(Started)) >= 2
        bench.until_done = True
        bench.tick(1, job)
        bench.assert_exact()
        bench.checkpoints()


def test_what_has_no_name_here_is_tried_again_too(bench: Bench) -> None:
    """Of an exception that nobody foresaw nobody knows that a restart cannot help."""
    bench.land(1)
    trouble = [RuntimeError("a plugin of the cluster was not ready")]

    def session() -> SparkSession:
        if trouble:
            raise trouble.pop()
        return bench.spark

    launch = bench.launch(replace(bench.job(restart=FixedDelayRestart(1, _AT_ONCE)), session=session))
    assert launch.result().status is JobStatus.FINISHED
    assert launch.restarts[0].error == "RuntimeError: a plugin of the cluster was not ready"
    bench.assert_exact()


def test_a_clock_that_was_set_back_makes_no_restart_wait(bench: Bench) -> None:
    bench.land(1)
    before = Failure("before", DIED, time.time() + 86_400, None, "run before died")
    FailureLog(bench.filesystem, bench.name).record(1, before)
    build, _ = failing(KeyError("a"))
    launch = Launch(bench.job(query=build, restart=FixedDelayRestart(3, _AT_ONCE)), RestoreRequest(), series=1)
    assert launch.result().status is JobStatus.FINISHED
    (restart,) = launch.restarts
    assert restart.delay <= _AT_ONCE.total_seconds()
    assert "restart 2 of 3" in restart.reason


def test_a_storage_that_fails_right_after_the_first_claim_is_waited_for(bench: Bench) -> None:
    """The run has the job, and clears up after those before it."""
    bench.land(1)
    trouble = [StorageError("the bucket is away")]

    def once(operation: Operation) -> Action | None:
        here = operation.name == "list" and operation.path == f"{bench.name}/control/failures"
        return Fail(trouble.pop()) if here and trouble else None

    filesystem = FaultInjectingFileSystem(bench.filesystem, once)
    launch = bench.launch(bench.job(filesystem=filesystem, restart=FixedDelayRestart(1, _AT_ONCE)))
    assert launch.result().status is JobStatus.FINISHED
    assert [restart.error for restart in launch.restarts] == ["the bucket is away"]
    assert [(item.run_id, item.sequence) for item in failures(bench)] == [(launch.run_id, 1)]
    bench.assert_exact()


class TestBeforeTheClaim:
    """A run that the sensor has launched, and that cannot take the job over."""

    def test_why_is_left_for_the_sensor(self, ticked: Bench) -> None:
        file = ticked.root / "file"
        file.touch()
        job = replace(ticked.job(), working_directory=file / "live")
        launch = Launch(job, RestoreRequest(), series=1)
        with pytest.raises(StorageUnusable):
            launch.result()
        (failure,) = failures(ticked)
        assert (failure.run_id, failure.sequence, failure.kind) == (launch.run_id, 1, "StorageUnusable")
        assert failure.recoverable
        assert str(file) in failure.reason

    def test_what_is_configured_wrongly_is_said_to_stay(self, ticked: Bench) -> None:
        job = replace(ticked.job(), live_location=LiveLocationPlace.STORAGE)
        with pytest.raises(InvalidConfiguration):
            Launch(job, RestoreRequest(), series=1).result()
        assert [item.recoverable for item in failures(ticked)] == [False]

    def test_of_a_run_that_a_user_has_launched_nothing_is_left(self, ticked: Bench) -> None:
        job = replace(ticked.job(), live_location=LiveLocationPlace.STORAGE)
        with pytest.raises(InvalidConfiguration):
            Launch(job, RestoreRequest()).result()
        assert not failures(ticked)

    def test_nor_of_one_that_met_another_run(self, bench: Bench) -> None:
        bench.until_done = False
        launch = bench.launch()
        eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
        with pytest.raises(JobAlreadyRunning):
            Launch(bench.job(), RestoreRequest(), series=1).result()
        launch.run.cancel()
        launch.result()
        assert not failures(bench)

    def test_nor_of_one_in_the_directory_of_another_deployment(self, ticked: Bench) -> None:
        with pytest.raises(ForeignCheckpoint):
            Launch(ticked.job(deployment="another"), RestoreRequest(), series=1).result()
        assert not failures(ticked)


_JAVA = """#!/bin/sh
case "$1" in
  -version) call=version;;
  --list-modules) call=modules;;
  *) call=launch;;
esac
if mkdir "{memory}/$call" 2>/dev/null || mkdir "{memory}/$call again" 2>/dev/null; then
  echo "Could not reserve enough space for the heap ($call)" >&2
  exit 1
fi
exec "{java}" "$@"
"""

_DRIVER = """
import json, sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from pyspark import SparkContext
from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.spark.query.session import start_session
from tests.jobs.harness import Bench
from tests.helpers.local_spark import set_up_jvms

set_up_jvms()
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
bench = Bench(None, Path(sys.argv[1]))
bench.land(2)
job = bench.job(restart=FixedDelayRestart(5, timedelta(milliseconds=1)))
session = lambda: start_session("tiny", "local[1]", conf)
launch = bench.launch(replace(job, session=session))
status = launch.result().status
bench.spark = session()
bench.assert_exact()
old = session()
SparkContext._gateway.proc.kill()
SparkContext._gateway.proc.wait()
new = session()
try:
    old.range(3).count()
    held = ""
except RuntimeError as error:
    held = str(error)
print(json.dumps([status.value, [restart.error for restart in launch.restarts], new.range(3).count(), held]))
"""


@pytest.mark.exhaustive
def test_a_java_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    """Asked for its version, asked for its modules and told to run Spark: each goes wrong in both tries of a start.

    Once Spark has run and its JVM is killed, the next session is of another JVM, and what is of the old one says so.
    """
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    found = os.environ.get("JAVA_HOME")
    real = str(Path(found) / "bin" / "java") if found else shutil.which("java")
    assert real
    java.write_text(_JAVA.format(memory=home, java=real))
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(tmp_path / "job")],
        cwd=_ROOT,
        env={**os.environ, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status, restarts, counted, held = json.loads(done.stdout.splitlines()[-1])
    assert status == "FINISHED"
    assert ["version" in restarts[0], "modules" in restarts[1], "JAVA_GATEWAY_EXITED" in restarts[2]] == [True] * 3
    log = FailureLog(Bench(None, tmp_path / "job").filesystem, "tiny")  # type: ignore[arg-type]
    assert [item.kind for item in log.of(1)] == ["SparkNotStarted"] * 3
    assert counted == 3
    assert "belongs to a JVM of Spark that is gone: it was killed by SIGKILL" in held
