"""A real query into a real PostgreSQL: salvage, rollback, savepoint, fork, refusals, and a database that goes away."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.config.restart import FixedDelayRestart
from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch, SinkNotEmpty
from dagster_ckpt.spark.events import Restarting, Started
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.sink import sink_to
from tests.jobs.harness import OFTEN, Bench, Launch, Query, Row, eventually, remove_tree
from tests.jobs.plain.plain import leaves
from tests.jobs.savepoints import Take
from tests.jobs.tables.moving import move_there_and_back
from tests.servers.postgres import PostgresServer, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v bigint, batch bigint)"


@pytest.fixture
def reach(postgres: PostgresServer) -> str:
    reach = postgres.database()
    rows(reach, _TABLE.format("delays"))
    return reach


@pytest.fixture
def job(bench: Bench, reach: str) -> Bench:
    bench.query = into(reach, "delays")
    return bench


@dataclass
class Fork(Bench):
    """A job of its own that reads what another one reads."""

    reads: Path = Path()

    @property
    def source(self) -> Path:
        return self.reads


def into(reach: str, table: str) -> Query:
    """Stateful: each id once, which the primary key insists on."""

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        unique = bench.read(session).dropDuplicates(["id"]).select("id", "v")
        writer = sink_to(unique, PostgresSink(reach, table))
        return writer.trigger(availableNow=True) if bench.until_done else writer

    return query


def found(reach: str, table: str = "delays") -> Counter[Row]:
    return Counter(rows(reach, f"SELECT id, v FROM {table}"))


def run_without_checkpoint(bench: Bench, reach: str, files: int) -> None:
    """Land files, let the batches of them commit, and cancel."""
    bench.until_done = False
    launch = bench.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    bench.land(files)
    eventually("the rows arrive", lambda: found(reach) == bench.expected(), unless=launch.check)
    bench.await_committed(launch)
    launch.run.cancel()
    launch.result()
    bench.until_done = True


@pytest.mark.releases
@pytest.mark.newest
def test_a_life(job: Bench, reach: str, take: Take, tmp_path: Path) -> None:
    """A crash with the live location and one without, a rollback, a savepoint, a fork, and what is refused then."""
    job.tick(2)
    assert found(reach) == job.expected()

    run_without_checkpoint(job, reach, 1)
    kept = job.tick()
    assert kept.started.restored is not None
    assert (kept.started.restored.kind, kept.started.restored.batch) == ("salvage", 2)
    assert found(reach) == job.expected()

    run_without_checkpoint(job, reach, 1)
    remove_tree(job.working)
    lost = job.tick(1)
    assert "rows of batches after 2 removed from public.delays" in lost.started.sink
    assert found(reach) == job.expected()

    job.files_per_trigger = 3
    back = job.tick(1, restore_from="chk-1")
    assert "rows of batches after 1 removed" in back.started.sink
    assert found(reach) == job.expected()
    abandoned = next(item for item in job.checkpoints() if item.batch > 1 and item.epoch < back.completed[0].epoch)
    before = rows(reach, "TABLE dagster_ckpt_sinks")
    assert "delays" in job.refused(SinkMismatch, restore_from=abandoned.reference).message
    assert rows(reach, "TABLE dagster_ckpt_sinks") == before

    savepoint = take(job)
    job.tick(1)
    job.tick(restore_from=savepoint.pointer)
    assert found(reach) == job.expected()

    _of_a_fork(job, reach, tmp_path)
    rows(reach, "DROP TABLE delays")
    assert "no table public.delays" in job.refused(SinkMismatch).message


def _of_a_fork(job: Bench, reach: str, tmp_path: Path) -> None:
    """What it reads and writes is its own."""
    point = job.checkpoints()[-1]
    before, expected = found(reach), job.expected()
    rows(reach, _TABLE.format("forked"))
    fork = Fork(
        job.spark,
        tmp_path / "fork",
        name="forked",
        query=into(reach, "delays"),
        files_per_trigger=job.files_per_trigger,
        landed=job.landed,
        reads=job.source,
    )
    assert "an entry of lineage" in fork.refused(SinkNotEmpty, restore_from="none").message
    fork.query = into(reach, "forked")
    fork.tick(1, fork_from=job.catalog.pointer(point))
    assert found(reach, "forked") == fork.expected() - expected
    fork.tick(1)
    assert found(reach, "forked") == fork.expected() - expected
    assert found(reach) == before
    job.landed = fork.landed


def test_a_database_that_goes_away_costs_a_restart_and_no_row(job: Bench, reach: str, postgres: PostgresServer) -> None:
    job.until_done = False
    restart = FixedDelayRestart(1_000_000, timedelta(milliseconds=200))
    launch: Launch = job.launch(job.job(config=OFTEN, restart=restart))
    job.land(1)
    eventually("a checkpoint", lambda: bool(launch.completed), unless=launch.check)
    postgres.stop()
    try:
        job.land(1)
        eventually("it tries again", lambda: len(launch.of(Restarting)) >= 2, unless=launch.check)
    finally:
        postgres.start()
    job.land(1)
    eventually("the rows arrive", lambda: found(reach) == job.expected(), unless=launch.check)
    launch.run.cancel()
    launch.result()
    assert found(reach) == job.expected()


def test_each_type_arrives_as_spark_has_it(bench: Bench, reach: str) -> None:
    rows(
        reach,
        "CREATE TABLE types (b boolean, i1 smallint, i8 bigint, f real, d double precision, n numeric, s text, "
        "day date, at timestamptz, plain timestamp, raw bytea, j jsonb, batch bigint)",
    )
    values = (
        "CAST(id = 1 AS BOOLEAN) b",
        "CAST(-id AS TINYINT) i1",
        "9223372036854775807L i8",
        "CAST(1.5 AS FLOAT) f",
        "CAST(IF(id = 1, 'NaN', '0.1') AS DOUBLE) d",
        "CAST('12345678901234567890.123456789' AS DECIMAL(38, 9)) n",
        "CAST(NULL AS STRING) s",
        "DATE'1999-12-31' day",
        "TIMESTAMP'2024-03-31 01:30:00.123456Z' at",
        "TIMESTAMP_NTZ'2024-03-31 01:30:00' plain",
        "X'00FF' raw",
        "to_json(named_struct('a', array(id))) j",
    )

    def query(bench: Bench, session: SparkSession) -> DataStreamWriter:
        session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        few = bench.read(session).where("id < 2").selectExpr(*values)
        return sink_to(few, PostgresSink(reach, "types")).trigger(availableNow=True)

    bench.query = query
    bench.tick(1)
    exact = (
        "SELECT b, i1, i8 = 9223372036854775807, f = 1.5, d::text, n::text, s, day::text, "
        "at = '2024-03-31T01:30:00.123456Z', plain::text, raw::text, j::text FROM types ORDER BY i1 DESC"
    )
    same = (None, "1999-12-31", True, "2024-03-31 01:30:00", "\\x00ff")
    number = "12345678901234567890.123456789"
    assert rows(reach, exact) == [
        (False, 0, True, True, "0.1", number, *same, '{"a": [0]}'),
        (True, -1, True, True, "NaN", number, *same, '{"a": [1]}'),
    ]


def test_a_table_that_is_not_there_is_refused_before_anything_runs(bench: Bench, reach: str) -> None:
    bench.query = into(reach, "nowhere")
    bench.land(1)
    assert "bigint" in bench.refused(InvalidConfiguration).hint


@pytest.mark.exhaustive
def test_a_stopped_job_moves_here_and_back(bench: Bench, reach: str) -> None:
    move_there_and_back(bench, lambda *_: PostgresSink(reach, "delays"), lambda: found(reach))


@pytest.mark.exhaustive
def test_spark_alone_goes_on_with_the_state_of_an_exported_job(job: Bench, reach: str, tmp_path: Path) -> None:
    job.tick(2)
    leaves(job, tmp_path / "out")
    assert found(reach) == job.expected()
