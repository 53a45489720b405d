"""Jobs that read an Iceberg table: exact through a rollback, and what preflight finds when snapshots are gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import RestoreRefused
from tests.jobs.tables.iceberg import lake
from tests.jobs.tables.sources import TableBench, having_read_four, is_exact_after_a_rollback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.releases


class IcebergBench(TableBench):
    """Its input is an Iceberg table."""

    by_name = False

    def table(self, session: SparkSession) -> str:
        return f"{lake(session, self.source)}.db.rows"

    def append(self, rows: DataFrame) -> None:
        name = self.table(self.spark)
        writer = rows.writeTo(name).using("iceberg")
        writer.append() if self.spark.catalog.tableExists(name) else writer.create()

    def read(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 1)
        return reader.table(self.table(session)) if self.by_name else reader.load(self.table(session))

    def call(self, procedure: str, arguments: str) -> None:
        catalog = self.table(self.spark).partition(".")[0]
        self.spark.sql(f"CALL {catalog}.system.{procedure}(table => 'db.rows', {arguments})").collect()

    def snapshots(self) -> list[int]:
        """Of the table, the oldest first."""
        told = self.spark.sql(f"SELECT snapshot_id FROM {self.table(self.spark)}.snapshots ORDER BY committed_at")
        return [int(row[0]) for row in told.collect()]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> IcebergBench:
    return having_read_four(IcebergBench, spark, tmp_path / "job")


def test_a_table_that_has_all_is_read_exactly_after_a_rollback(table: IcebergBench) -> None:
    is_exact_after_a_rollback(table, "has every snapshot from")


@pytest.mark.parametrize("by_name", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_snapshot_that_has_expired_is_named(table: IcebergBench, by_name: bool) -> None:
    """Those before the checkpoint may expire, but the first one not if the query ends when it has read all."""
    table.by_name = by_name
    last = table.snapshots()[-1]
    table.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")
    assert "under the trigger availableNow Iceberg counts from there" in table.refused(RestoreRefused).message
    table.run_and_cancel(1)
    table.assert_exact()
    shutil.rmtree(table.working)
    table.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")
    refused = table.refused(RestoreRefused)
    assert f"has no snapshot {last} any more, with which the next batch begins" in refused.message
    assert "history.expire.max-snapshot-age-ms" in refused.hint


@pytest.mark.exhaustive
def test_a_table_that_was_rolled_back_is_refused(table: IcebergBench) -> None:
    *_, before, last = table.snapshots()
    table.call("rollback_to_snapshot", f"snapshot_id => {before}")
    table.land(1)
    assert f"does not come from snapshot {last}" in table.refused(RestoreRefused).message
