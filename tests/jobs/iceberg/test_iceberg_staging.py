"""How the files of a batch are written: by the plan that Spark has made of the batch, or by Spark's writer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.sinks.iceberg import IcebergSink, staging
from dagster_ckpt.spark.sinks.iceberg.staging import Staging
from dagster_ckpt.spark.sinks.sink import sink_to
from tests.jobs.harness import Bench, eventually
from tests.jobs.tables.common import committed, into, unique
from tests.jobs.tables.iceberg import current, opened, seen, sql, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.releases

#: In place of Spark's own setting, which no session can change.
_LISTENED = "spark.tests.listened"
_BY_PLAN, _BY_WRITER, _PLANNED = "by the batch's own plan", "by Spark's writer", "planned"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often Spark planned a write, and how many batches went which way."""
    done: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any) -> Any:
            done[name] += 1
            return method(*given)

        return counting

    for name, method in ((_BY_PLAN, "_written"), (_BY_WRITER, "_of_all_columns"), (_PLANNED, "_planned")):
        monkeypatch.setattr(Staging, method, counted(name, getattr(Staging, method)))
    return done


def to_iceberg(bench: Bench, session: SparkSession, **given: Any) -> DataStreamWriter:
    return into(IcebergSink(table_of(bench, session), **given), bench, session)


def test_a_start_plans_its_writes_once(bench: Bench, done: Counter[str]) -> None:
    bench.query = to_iceberg
    bench.tick(3)
    assert done == {_BY_PLAN: 3, _PLANNED: 1}
    bench.tick(2, restore_from="chk-1")
    assert done == {_BY_PLAN: 5, _PLANNED: 2}
    assert seen(bench) == bench.expected()


def test_a_table_that_changes_is_written_as_it_says_then(bench: Bench, done: Counter[str]) -> None:
    """The format of its files, and its columns. The change comes by another session of the same process."""
    bench.query = partial(to_iceberg, options={"fanout-enabled": "true"})
    bench.tick(1)
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)

    def land_two() -> None:
        for _ in range(2):
            batch = committed(bench.live())
            bench.land(1)
            eventually("a batch commits", lambda batch=batch: committed(bench.live()) > batch, unless=launch.check)  # type: ignore[misc]

    land_two()
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default' = 'orc', 'dagster_ckpt.other' = '1')")
    land_two()
    assert done == {_BY_PLAN: 5, _PLANNED: 3}
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('dagster_ckpt.other' = '2')")
    land_two()
    assert done == {_BY_PLAN: 7, _PLANNED: 3}, "what sinks record plans no write anew"
    sql(bench, "ALTER TABLE {table} ADD COLUMN note STRING")
    land_two()
    assert done == {_BY_PLAN: 7, _BY_WRITER: 2, _PLANNED: 4}
    sql(bench, "ALTER TABLE {table} DROP COLUMN note")
    land_two()
    assert done == {_BY_PLAN: 9, _BY_WRITER: 2, _PLANNED: 5}
    launch.run.cancel()
    launch.result()
    formats = Counter(current(bench.sink).inspect.files()["file_format"].to_pylist())
    assert formats["PARQUET"] >= 4
    assert formats["ORC"] >= 7
    assert seen(bench) == bench.expected()


def _other_order(bench: Bench, session: SparkSession) -> DataStreamWriter:
    bench.spark.sql(f"CREATE TABLE IF NOT EXISTS {table_of(bench)} (v INT, id INT) USING iceberg")
    return to_iceberg(bench, session)


def _other_type(bench: Bench, session: SparkSession) -> DataStreamWriter:
    bench.spark.sql(f"CREATE TABLE IF NOT EXISTS {table_of(bench)} (id BIGINT, v INT) USING iceberg")
    return to_iceberg(bench, session)


def _partitioned(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return to_iceberg(bench, session, partition_by=["v"])


def _kept(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Rows that somebody has read already would be computed again."""
    sink = IcebergSink(table_of(bench, session))
    write = sink.write_batch

    def keep_and_write(rows: DataFrame, batch: int) -> None:
        write(rows.persist(), batch)
        rows.unpersist()

    sink.write_batch = keep_and_write  # type: ignore[method-assign]
    return into(sink, bench, session)


def _derived(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Not the batch as Spark gave it: rows that its sink's function has made of it."""
    sink = IcebergSink(table_of(bench, session))
    write = sink.write_batch

    def write_some(rows: DataFrame, batch: int) -> None:
        write(rows.where("id >= 0"), batch)

    sink.write_batch = write_some  # type: ignore[method-assign]
    return into(sink, bench, session)


def _watched(bench: Bench, session: SparkSession) -> DataStreamWriter:
    session.conf.set(_LISTENED, "org.example.Listener")
    return to_iceberg(bench, session)


@pytest.mark.parametrize("query", [_other_order, _other_type, _partitioned, _derived, _kept, _watched])
def test_other_rows_go_by_sparks_writer(
    bench: Bench, done: Counter[str], query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_LISTENERS", (_LISTENED,))
    bench.query = query
    bench.tick(2)
    assert (done[_BY_PLAN], done[_BY_WRITER]) == (0, 2)
    assert done[_PLANNED] <= 1, "what is not taken as it is, is not planned for each batch"
    bench.tick(1, restore_from="chk-1")
    assert seen(bench) == bench.expected()


def test_a_table_in_order_is_sorted_whatever_the_plan_of_one_batch(bench: Bench, done: Counter[str]) -> None:
    """Spark sorts no rows that are in order by their plan, and the plan of the next batch may be another one."""
    bench.spark.sql(f"CREATE TABLE {table_of(bench)} (id INT, v INT) USING iceberg")
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('write.distribution-mode' = 'none')")
    iceberg: Any = bench.spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
    order = opened(bench).replaceSortOrder()
    order.asc(iceberg.expressions.Expressions.ref("v"), iceberg.NullOrder.NULLS_FIRST).commit()

    def in_order(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).groupBy("id").agg(f.max("v").alias("v")).orderBy("v")
        writer = sink_to(rows, IcebergSink(table_of(bench, session)))
        return writer.outputMode("complete").trigger(availableNow=True)

    bench.query = in_order
    bench.tick(2)
    assert done == {_BY_WRITER: 2, _PLANNED: 1}
    assert set(seen(bench)) == set(bench.expected())


@pytest.mark.parametrize("query", [to_iceberg, _partitioned])
def test_a_writer_leaves_nothing_at_the_table(bench: Bench, monkeypatch: pytest.MonkeyPatch, query: Any) -> None:
    """Each of Iceberg's writers adds a reporter of metrics to its table, and each commit tells all of them."""
    reporters: list[object] = []
    files = Staging.files

    def looking(staging: Staging, table: Any, *given: Any) -> Any:
        field = table.getClass().getDeclaredField("reporter")
        field.setAccessible(True)
        written = files(staging, table, *given)
        reporters.append(field.get(table))
        return written

    monkeypatch.setattr(Staging, "files", looking)
    bench.query = query
    bench.tick(3)
    assert len(reporters) == 3
    assert len({str(each.toString()) for each in reporters}) == 1  # type: ignore[attr-defined]


def test_a_query_that_is_stopped_while_its_write_is_planned_writes_nothing(
    bench: Bench, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = threading.Event()

    def sleep(staging: Staging, *_: Any) -> None:
        asleep.set()
        staging._session._jvm.java.lang.Thread.sleep(600_000)  # type: ignore[union-attr]

    monkeypatch.setattr(Staging, "_physical", sleep)
    bench.query, bench.until_done = to_iceberg, False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(1)
    eventually("its write is planned", asleep.is_set, unless=launch.check)
    launch.run.cancel()
    assert launch.result().status is JobStatus.CANCELED
    assert done == {_PLANNED: 1}
    assert not seen(bench)


def test_a_stateless_batch_and_an_empty_one(bench: Bench, done: Counter[str]) -> None:
    def stateless(bench: Bench, session: SparkSession) -> DataStreamWriter:
        rows = bench.read(session).select("id", "v").where("id % 2 = 0 OR id < 1000000")
        return sink_to(rows, IcebergSink(table_of(bench, session))).trigger(availableNow=True)

    bench.query = stateless
    bench.tick(2)
    bench.query = lambda bench, session: sink_to(
        bench.read(session).select("id", "v").where("id < 0"), IcebergSink(table_of(bench, session))
    ).trigger(availableNow=True)
    before = seen(bench)
    bench.tick(1)
    assert done == {_BY_PLAN: 3, _PLANNED: 2}
    assert seen(bench) == before
    assert before


def test_a_thread_of_an_earlier_start_does_not_share_files(bench: Bench, done: Counter[str]) -> None:
    """Such a thread may be in the middle of a batch. The files of both would be found under one name."""

    def held(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = IcebergSink(table_of(bench, session))
        write = sink.write_batch

        def write_beside(rows: DataFrame, batch: int) -> None:
            with sink._table._staging._in_use:
                write(rows, batch)

        sink.write_batch = write_beside  # type: ignore[method-assign]
        return sink_to(unique(bench, session), sink).trigger(availableNow=True)

    bench.query = held
    bench.tick(2)
    assert done == {_BY_WRITER: 2}
    assert seen(bench) == bench.expected()
