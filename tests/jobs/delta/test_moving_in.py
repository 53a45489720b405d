"""A query of plain Spark that writes to a Delta table becomes a job with a ``DeltaSink`` for the same table."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import RestoreWithLoss, SinkMismatch
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.sink import sink_to
from tests.jobs.harness import ROWS_PER_FILE, Bench, Row
from tests.jobs.plain.plain import Plain
from tests.jobs.tables.common import unique
from tests.jobs.tables.delta import seen, sql, version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.releases


class Counting(Bench):
    """A job that counts the rows of each minute. Its last batch has no data and closes a minute."""

    def rows(self, session: SparkSession) -> DataFrame:
        from pyspark.sql import functions as f  # noqa: PLC0415

        windows = self.read(session).withWatermark("ts", "0 seconds").groupBy(f.window("ts", "1 minute")).count()
        return windows.selectExpr("minute(window.start) AS id", "CAST(count AS INT) AS v")

    def expected(self) -> Counter[Row]:
        return Counter({(number, ROWS_PER_FILE): 1 for number in range(self.landed - 1)})


def rows_of(bench: Bench, session: SparkSession) -> DataFrame:
    return bench.rows(session) if isinstance(bench, Counting) else unique(bench, session)


def by_spark(bench: Bench, session: SparkSession) -> DataStreamWriter:
    writer = rows_of(bench, session).writeStream.format("delta").option("path", str(bench.sink))
    return writer.trigger(availableNow=True)


def by_the_job(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return sink_to(rows_of(bench, session), DeltaSink(bench.sink)).trigger(availableNow=True)


def moving(bench: Bench) -> Plain:
    """A query of plain Spark that has read two files; from now on the bench launches the job."""
    bench.query = by_spark
    plain = Plain(bench, {}, bench.root / "plain")
    plain.tick(1)
    plain.tick(1)
    bench.query = by_the_job
    return plain


def without_version(table: Path, version: int) -> None:
    """The table as it was before its newest version, with the files of that version beside it."""
    for file in (table / "_delta_log").glob(f"*{version:020}*"):
        file.unlink()


@pytest.mark.parametrize("kind", [Bench, pytest.param(Counting, marks=pytest.mark.exhaustive)])
def test_every_row_is_there_once_and_nothing_is_lost(bench: Bench, kind: type[Bench]) -> None:
    """Also after a rollback to where the job began, with rows of others in the table."""
    bench = kind(bench.spark, bench.root)
    plain = moving(bench)
    launch = bench.tick(1, fork_from=str(plain.location))
    assert seen(bench) == bench.expected()
    restored = launch.started.restored
    assert restored is not None
    assert restored.kind == "fork"
    sql(bench, "INSERT INTO {table} (id, v) VALUES (-1, -10)")
    bench.tick(1, restore_from=restored.reference)
    assert seen(bench) == bench.expected() + Counter([(-1, -10)])


def test_a_location_that_is_older_than_the_table_is_refused(bench: Bench) -> None:
    plain = moving(bench)
    old = bench.root / "backup"
    shutil.copytree(plain.location, old)
    bench.query = by_spark
    plain.tick(1)
    bench.query = by_the_job
    refusal = bench.refused(SinkMismatch, fork_from=str(old), allow_loss=True)
    assert "has batch 2" in refusal.message
    assert "batch 1" in refusal.message


@pytest.mark.exhaustive
def test_a_batch_in_flight_is_refused(bench: Bench) -> None:
    """It is in the table already, and would be written a second time. If it is not, the job writes it."""
    plain = moving(bench)
    for file in (plain.location / "commits").glob("*1*"):
        file.unlink()
    refusal = bench.refused(SinkMismatch, fork_from=str(plain.location), allow_loss=True)
    assert "availableNow" in refusal.hint
    without_version(bench.sink, version(bench))
    bench.tick(1, fork_from=str(plain.location))
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_another_table_has_no_rows_of_before(bench: Bench) -> None:
    """Nor is it known what a table has whose newest batch of the query is an older one."""
    plain = moving(bench)
    before = bench.expected()
    without_version(bench.sink, version(bench))
    refusal = bench.refused(RestoreWithLoss, fork_from=str(plain.location))
    assert "the sink that the query wrote to before" in refusal.message
    shutil.rmtree(bench.sink)
    bench.refused(RestoreWithLoss, fork_from=str(plain.location))
    bench.tick(1, fork_from=str(plain.location), allow_loss=True)
    assert seen(bench) == bench.expected() - before
