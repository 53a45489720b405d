"""A standby rehearses the job's query on a copy of the newest checkpoint: nobody notices, and a takeover is as ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's convention
from pyspark.sql.streaming.listener import StreamingQueryListener

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.standby import rehearsing
from dagster_ckpt.spark.proof import rehearsal
from tests.jobs.failing.waiting import Waiting
from tests.jobs.harness import Bench, deduplicated, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Make = Callable[..., Waiting]


@pytest.fixture
def waiting(bench: Bench, tmp_path: Path) -> Iterator[Make]:
    """Makes a job with a checkpoint of two files, and one more file to read, beside whose run a standby can wait."""
    home = tmp_path / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:

        def make(query: Callable[[Bench, SparkSession], DataStreamWriter] = deduplicated, **options: Any) -> Waiting:
            bench.query = query
            bench.spark.catalog.clearCache()  # of other tests
            bench.tick(2, bench.job(deployment="default"))
            bench.land(1)
            return Waiting(bench, instance, **options)

        yield make


def _rehearsed(waiting: Waiting, state: str) -> None:
    def there() -> bool:
        return waiting.tags(waiting.standby).get(names.REHEARSAL_TAG) == state

    eventually(f"the rehearsal is {state}", there)


def _taken_over(waiting: Waiting, wait: Callable[[], Any]) -> None:
    """The run is dead, and the standby goes on: exactly, and as the run of the job."""
    waiting.beat(alive=False)
    waiting.assert_taken_over(wait())


def _marked(rows: DataFrame, marks: Path, hold: Path | None = None) -> DataFrame:
    """The rows, each of which leaves a mark where it is computed; then it waits as long as it is held."""
    marks.mkdir(exist_ok=True)

    def mark(number: int) -> int:
        (marks / str(number)).touch()
        while hold is not None and hold.exists():
            time.sleep(0.05)
        return number

    return rows.withColumn("id", F.udf(mark, "int", useArrow=False)("id"))


def _marking(bench: Bench, session: SparkSession, hold: Path | None = None) -> DataStreamWriter:
    """Each id once."""
    rows = _marked(bench.read(session), bench.root / "marks", hold)
    return bench.write(rows.dropDuplicates(["id"]).select("id", "v"))


def test_it_computes_the_next_batch_with_the_state_and_nobody_sees_it(waiting: Make, bench: Bench) -> None:
    job = waiting(_marking)
    marks = bench.root / "marks"
    for mark in marks.iterdir():
        mark.unlink()
    before, newest = bench.photograph(), bench.checkpoints()[-1]
    wait = job.start()
    _rehearsed(job, names.DONE)
    assert {int(mark.name) for mark in marks.iterdir()} == set(range(10, 18)), "the rows of the third file"
    assert f"the batch after {newest.reference}, 3 times" in job.said("The standby has rehearsed")
    assert not list(bench.working.glob("dagster-ckpt-scratch*"))
    before.assert_untouched(bench)
    stores = bench.spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore  # type: ignore[union-attr]
    assert not stores.isMaintenanceRunning(), "its state is unloaded"
    _taken_over(job, wait)


class _Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.names: list[str | None] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self.names.append(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.names.append(event.progress.name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


@pytest.mark.exhaustive
def test_no_listener_hears_of_it_and_no_cached_table_is_left(waiting: Make, bench: Bench) -> None:
    """What the function does besides building the query is done once more, as by every start."""
    table, heard, calls = bench.root / "table.json", _Heard(), list[str]()

    def put(plus: int) -> None:
        table.write_text("\n".join(json.dumps({"k": k, "plus": plus}) for k in range(3)), encoding="utf-8")

    def joined(bench: Bench, session: SparkSession) -> DataStreamWriter:
        calls.append(threading.current_thread().name)
        session.streams.addListener(heard)
        plus = session.read.schema("k int, plus int").json(str(table)).cache()
        rows = bench.read(session).dropDuplicates(["id"]).join(plus, "k")
        return bench.write(rows.select("id", (F.col("v") + F.col("plus")).alias("v")))

    bench.root.mkdir()
    put(0)
    job = waiting(joined)
    bench.spark.catalog.clearCache()
    calls.clear()
    put(1000)
    wait = job.start()
    _rehearsed(job, names.DONE)
    assert calls == ["dagster-ckpt-rehearsal"]
    put(0)
    _taken_over(job, wait)
    eventually("the listener hears of the query", lambda: bench.name in heard.names)
    assert set(heard.names) == {bench.name}
    bench.spark.catalog.clearCache()


def test_a_rehearsal_that_fails_leaves_a_standby_that_takes_over(waiting: Make) -> None:
    def failing(bench: Bench, session: SparkSession) -> DataStreamWriter:
        if threading.current_thread().name == "dagster-ckpt-rehearsal":
            raise OSError("no such table today")
        return deduplicated(bench, session)

    job = waiting(failing)
    wait = job.start()
    _rehearsed(job, names.FAILED)
    assert "no such table today" in job.said("The standby is warm, and has not rehearsed")
    _taken_over(job, wait)


@pytest.mark.exhaustive
def test_a_takeover_ends_a_rehearsal_in_its_batch(waiting: Make, bench: Bench) -> None:
    hold, marks = bench.root / "hold", bench.root / "marks"
    job = waiting(partial(_marking, hold=hold))
    for mark in marks.iterdir():
        mark.unlink()
    hold.touch()
    wait = job.start()
    eventually("the rehearsal computes", lambda: any(marks.iterdir()))
    assert job.tags(job.standby)[names.REHEARSAL_TAG] == names.BEGUN
    job.beat(alive=False)
    eventually("the standby has the job", lambda: job.records.epochs.highest() > job.claim.epoch)
    assert not list(bench.working.glob("dagster-ckpt-scratch*"))
    hold.unlink()
    _taken_over(job, wait)


@pytest.mark.exhaustive
def test_a_standby_whose_rehearsal_does_not_end_leaves_the_job_to_the_sensor(
    waiting: Make, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsing, "_PATIENCE", 0.5)
    hangs, goes_on = threading.Event(), threading.Event()

    def hanging(bench: Bench, session: SparkSession) -> DataStreamWriter:
        if threading.current_thread().name == "dagster-ckpt-rehearsal":
            hangs.set()
            assert goes_on.wait(240)
        return deduplicated(bench, session)

    job = waiting(hanging)
    wait = job.start()
    assert hangs.wait(240)
    job.beat(alive=False)
    try:
        job.assert_left_alone(wait())
    finally:
        goes_on.set()
    assert job.records.epochs.highest() == job.claim.epoch
    assert "does not end" in job.said("The standby ends")
    eventually("the copy is deleted", lambda: not list(bench.working.glob("dagster-ckpt-scratch*")))


@pytest.mark.parametrize(
    "reason", ["option", *(pytest.param(reason, marks=pytest.mark.exhaustive) for reason in ("earlier", "size"))]
)
def test_a_standby_without_a_rehearsal_takes_over_too(
    waiting: Make, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    calls: list[str] = []

    def told(bench: Bench, session: SparkSession) -> DataStreamWriter:
        calls.append(threading.current_thread().name)
        return deduplicated(bench, session)

    job = waiting(told, rehearsal=reason != "option")
    calls.clear()
    if reason == "size":
        monkeypatch.setattr(rehearsal, "_MOST_BYTES", 100)
    wait = job.start(tags={names.REHEARSAL_TAG: names.LEFT_OUT} if reason == "earlier" else None)
    if reason == "size":
        _rehearsed(job, names.FAILED)
        assert "at most 100 are copied" in job.said("has not rehearsed")
    _taken_over(job, wait)
    assert "dagster-ckpt-rehearsal" not in calls
