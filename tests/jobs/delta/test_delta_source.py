"""Jobs that read a Delta table: exact through a rollback, and what preflight finds when the table has forgotten."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from dagster_ckpt.errors import RestoreRefused, RestoreWithLoss
from dagster_ckpt.spark.preflight.table_sources import CHECK
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks.delta.table import DeltaTable
from tests.helpers.spark.streaming import confs
from tests.jobs.harness import OFTEN, copied
from tests.jobs.starting.test_named_sources import NAMED, NamedJob
from tests.jobs.tables.delta import forget_log
from tests.jobs.tables.sources import TableBench, having_read_four, is_exact_after_a_rollback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

pytestmark = pytest.mark.releases


class DeltaBench(TableBench):
    """Its input is a Delta table."""

    def append(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(str(self.source))

    def read(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.format("delta").options(maxFilesPerTrigger="1", **self.options)
        return reader.load(str(self.source))

    def vacuum(self) -> None:
        """Join the table's files, and delete those that the table does not have any more."""
        table = deltalake.DeltaTable(str(self.source))
        table.optimize.compact()
        assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DeltaBench:
    return having_read_four(DeltaBench, spark, tmp_path / "job")


def test_a_table_that_has_all_is_read_exactly_after_a_rollback(table: DeltaBench) -> None:
    is_exact_after_a_rollback(table, "has all 2 versions from 4 on")


@pytest.mark.exhaustive
def test_a_version_that_the_log_has_forgotten_is_named(table: DeltaBench) -> None:
    table.land(3)
    forget_log(table.spark, table.source, 5)
    refused = table.refused(RestoreRefused)
    assert "no version 4 any more" in refused.message
    assert "delta.logRetentionDuration" in refused.hint


def test_files_that_vacuum_has_deleted_are_counted(table: DeltaBench) -> None:
    """Those that the query has read may go; those it has yet to read may not."""
    table.vacuum()
    table.tick(0)
    table.land(2)
    table.vacuum()
    refused = table.refused(RestoreRefused)
    assert re.search(r"VACUUM has deleted 2 files with 16 rows of the Delta table .*/in of source 0", refused.message)
    assert "delta.deletedFileRetentionDuration" in refused.hint
    with confs(table.spark, {"spark.sql.files.ignoreMissingFiles": "true"}):
        assert "Spark would read nothing in their place" in table.refused(RestoreWithLoss).message
        table.tick(0, allow_loss=True)
    assert table.lost() == Counter((key, key * 10) for number in (4, 5) for key in range(number * 5, number * 5 + 8))


@pytest.mark.exhaustive
def test_in_the_midst_of_the_version_that_the_query_began_with(spark: SparkSession, tmp_path: Path) -> None:
    """Of the four files that a restore begins with, as many may be gone as were read."""
    bench = DeltaBench(spark, tmp_path / "job", query=copied)
    bench.tick(4, bench.job(config=OFTEN))
    early = next(each for each in bench.checkpoints() if each.facts.sources[0].offset["isStartingVersion"])
    read = early.facts.sources[0].offset["index"] + 1
    bench.vacuum()
    refused = bench.refused(RestoreRefused, restore_from=early.reference)
    assert "VACUUM has deleted 4 files" in refused.message
    assert f"these, except {read} at most" in refused.message


@pytest.mark.exhaustive
def test_a_table_that_is_read_by_its_name(table: DeltaBench) -> None:
    table.spark.sql(f"CREATE TABLE named_source USING delta LOCATION '{table.source}'")
    try:
        table.query = lambda bench, session: bench.write(session.readStream.table("named_source").select("id", "v"))
        table.land(1)
        launch = table.tick(0)
        told = [item.reason for item in launch.started.preflight.findings if item.check == CHECK]
        assert "has all 1 versions from 4 on" in told[0]
        table.land(3)
        forget_log(table.spark, table.source, 6)
        assert "no version 5 any more" in table.refused(RestoreRefused).message
    finally:
        table.spark.sql("DROP TABLE named_source")


@pytest.mark.exhaustive
def test_another_table_in_its_place_is_refused(table: DeltaBench) -> None:
    shutil.rmtree(table.source)
    table.landed = 0
    table.land(2)
    assert "is another table than the checkpoint's" in table.refused(RestoreRefused).message


@pytest.mark.exhaustive
def test_an_older_copy_of_the_table_is_a_loss(table: DeltaBench, tmp_path: Path) -> None:
    """Spark would not notice that the versions which it has read come again with other rows."""
    shutil.copytree(table.source, tmp_path / "copy")
    table.tick(2)
    shutil.rmtree(table.source)
    (tmp_path / "copy").rename(table.source)
    DeltaTable(table.spark, str(table.source))  # Delta forgets what it has cached of the path
    assert (
        "ends at version 3, and the checkpoint had read all before version 6" in table.refused(RestoreWithLoss).message
    )


class _BesideFiles(NamedJob):
    """The source b is a Delta table, which writes no log of its own."""

    def land(self, source: str, ids: Iterable[int]) -> None:
        if source != "b":
            super().land(source, ids)
            return
        rows = self.bench.spark.createDataFrame([(id_,) for id_ in ids], "id int").coalesce(1)
        rows.write.format("delta").mode("append").save(str(self.root / source))

    def read(self, source: str, reader: DataStreamReader) -> DataFrame:
        if source != "b":
            return super().read(source, reader).select("id")
        return reader.format("delta").option("maxFilesPerTrigger", 1).load(str(self.root / source))


def test_a_named_table_left_out_for_longer_is_read_again_by_consent_only(spark: SparkSession, tmp_path: Path) -> None:
    """Spark then begins the table anew: all its rows come a second time."""
    if not release_of(spark.version).named_sources:
        pytest.skip("this Spark has no named sources")
    job = _BesideFiles(spark, tmp_path)
    with confs(spark, NAMED):
        job.sources = ["a", "b"]
        for source, id_ in (("a", 1), ("b", 101), ("b", 102)):
            job.land(source, [id_])
        job.bench.tick()
        assert job.bench.checkpoints()[-1].facts.read_sources == ["a", "b"]

        job.sources = ["a"]
        for id_ in (2, 3, 4):
            job.land("a", [id_])
        shutil.rmtree(job.bench.working)
        job.bench.tick(allow_loss=True)
        assert job.bench.checkpoints()[-1].facts.read_sources == ["a", "b"]

        job.sources = ["a", "b"]
        shutil.rmtree(job.bench.working)
        assert "it has read b before, and after batch 4" in job.bench.refused(RestoreWithLoss).message
        assert job.seen() == [1, 2, 3, 4, 101, 102]
        job.bench.tick(allow_loss=True)
        assert job.seen() == [1, 2, 3, 4, 101, 101, 102, 102]

        job.sources = ["a", "b", "c"]  # a new one needs no consent
        job.land("c", [201])
        shutil.rmtree(job.bench.working)
        job.bench.tick()
        assert job.seen()[-1] == 201
