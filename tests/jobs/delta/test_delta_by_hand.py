"""What people do to the table of a job by hand: nothing is doubled, and no batch goes on in another table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import QueryFailed, SinkMismatch
from dagster_ckpt.spark.sinks.delta import DeltaSink
from tests.jobs.harness import Bench
from tests.jobs.tables.common import Starts, into
from tests.jobs.tables.delta import seen, sql, version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.releases


@pytest.fixture
def rows(bench: Bench) -> DataFrame:
    return bench.spark.range(3).selectExpr("cast(id AS int) AS id", "cast(10 * id AS int) AS v")


@pytest.fixture
def starts(bench: Bench, rows: DataFrame) -> Starts[DeltaSink]:
    bench.root.mkdir(parents=True)
    return Starts(bench.root, rows, lambda: DeltaSink(bench.sink))


def of(rows: DataFrame, batch: int) -> DataFrame:
    return rows.withColumn("id", rows["id"] + 100 * batch)


def ids(bench: Bench) -> list[int]:
    return sorted(row[0] for row in seen(bench).elements())


def restore(bench: Bench, to: int) -> None:
    sql(bench, f"RESTORE TABLE {{table}} TO VERSION AS OF {to}")


@pytest.mark.exhaustive
def test_a_restore_by_hand_doubles_nothing(bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]) -> None:
    """It brings back the batch that a rollback took, and keeps the marks: by them, nothing is to be taken back.

    A start from the same checkpoint takes the batch back once more. To a checkpoint of after the rollback no start
    goes back, until the RESTORE is undone as the refusal says.
    """
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    covered = starts.position(sink, 1, 0)
    sink.write_batch(of(rows, 1), 1)
    ahead = version(bench)
    starts.begun(2, covered)
    restore(bench, ahead)
    assert ids(bench) == [0, 1, 2, 100, 101, 102]
    sink = starts.begun(3, covered)
    assert ids(bench) == [0, 1, 2]

    rolled_back, right = starts.position(sink, 3, 0), version(bench)
    restore(bench, ahead)
    with pytest.raises(SinkMismatch, match=rf"version {right + 1} \(RESTORE\)") as refused:
        starts.begun(4, rolled_back)
    assert f"TO VERSION AS OF {right} " in refused.value.hint
    restore(bench, right)
    sink = starts.begun(5, rolled_back)
    sink.write_batch(of(rows, 1), 1)
    assert ids(bench) == [0, 1, 2, 100, 101, 102]


def test_an_older_copy_is_refused_although_others_have_brought_it_past_the_checkpoint(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]
) -> None:
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    copy = bench.root / "copy"
    shutil.copytree(bench.sink, copy)
    sink.write_batch(of(rows, 1), 1)
    covered = starts.position(sink, 1, 1)
    shutil.rmtree(bench.sink)
    copy.rename(bench.sink)
    for _ in range(3):
        of(rows, 50).write.format("delta").mode("append").save(str(bench.sink))
    with pytest.raises(SinkMismatch, match=r"with batch 1 of this job when .* an older copy without that batch"):
        starts.begun(2, covered)


@pytest.mark.exhaustive
def test_a_restore_by_hand_before_the_first_checkpoint(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]
) -> None:
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    ahead = version(bench)
    sink = starts.attached()
    sink.rollback_to_nothing(0, 2)
    starts.begin(sink, 2)
    assert ids(bench) == []
    right = version(bench)
    restore(bench, ahead)
    with pytest.raises(SinkMismatch, match=rf"version {right + 1} \(RESTORE\)"):
        starts.attached().rollback_to_nothing(0, 3)
    restore(bench, right)
    sink = starts.attached()
    sink.rollback_to_nothing(0, 4)
    starts.begin(sink, 4)
    sink.write_batch(of(rows, 0), 0)
    assert ids(bench) == [0, 1, 2]


@pytest.mark.exhaustive
def test_a_rollback_that_was_undone_by_hand_is_made_again(bench: Bench) -> None:
    """The run of the rollback fails before its first batch."""

    def to_delta(bench: Bench, session: SparkSession) -> DataStreamWriter:
        return into(DeltaSink(bench.sink), bench, session)

    def failing(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = DeltaSink(bench.sink)

        def fail(rows: DataFrame, batch: int) -> None:
            raise ZeroDivisionError(f"before batch {batch} of {rows}")

        sink.write_batch = fail  # type: ignore[method-assign]
        return into(sink, bench, session)

    bench.query = to_delta
    bench.tick(1)
    bench.tick(1)
    ahead = version(bench)
    bench.query = failing
    with pytest.raises(QueryFailed):
        bench.launch(restore_from="chk-1").result()
    restore(bench, ahead)
    assert seen(bench) == bench.expected()
    bench.query = to_delta
    assert "removed" in bench.tick(0).started.sink
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_a_table_that_is_created_again_under_a_running_job_is_not_written_to(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]
) -> None:
    """The new table has as many versions as the old one had, or fewer."""
    for epoch, appended in ((1, 2), (2, 0)):
        sink = starts.begun(epoch)
        sink.write_batch(of(rows, 0), 0)
        newest = version(bench)
        shutil.rmtree(bench.sink)
        rows.write.format("delta").save(str(bench.sink))
        for _ in range(appended):
            of(rows, 50).write.format("delta").mode("append").save(str(bench.sink))
        assert (version(bench) >= newest) == bool(appended)
        with pytest.raises(SinkMismatch, match="deleted and created again") as refused:
            sink.write_batch(of(rows, 1), 1)
        assert "Nothing was written" in refused.value.hint
        assert 100 not in ids(bench)
        shutil.rmtree(bench.sink)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE OR REPLACE TABLE {table} USING delta AS SELECT 7 AS id, 70 AS v", "with the id"),
        ("INSERT OVERWRITE {table} VALUES (7, 70)", "Another writer replaced rows"),
    ],
)
def test_rows_that_are_replaced_under_a_running_job(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink], statement: str, said: str
) -> None:
    """No start goes back to before that; a checkpoint that was taken after it covers what is there."""
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    before = starts.position(sink, 1, 0)
    sql(bench, statement)
    sink.write_batch(of(rows, 1), 1)
    after = starts.position(sink, 1, 1)
    sink.write_batch(of(rows, 2), 2)
    with pytest.raises(SinkMismatch, match=said):
        starts.begun(2, before)
    sink = starts.begun(2, after)
    assert ids(bench) == [7, 100, 101, 102]
    sink.write_batch(of(rows, 2), 2)
    assert ids(bench) == [7, 100, 101, 102, 200, 201, 202]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "setting",
    [
        "enableDeletionVectors = true",
        "columnMapping.mode = name",
        "enableChangeDataFeed = true",
        "enableRowTracking = true",
    ],
)
def test_a_rollback_in_a_table_with_a_feature_of_delta(bench: Bench, rows: DataFrame, setting: str) -> None:
    """The rows of the checkpoint and the change of others stay; a column has another name meanwhile, if it can."""
    name, _, value = setting.partition(" = ")
    sql(
        bench,
        "CREATE TABLE {table} (id INT, v INT, p INT) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.{name}' = '{value}')",
    )
    mapped = "Mapping" in name
    parts = rows.selectExpr("id", "v", "id % 2 AS p")
    sink = Starts(bench.root, parts, lambda: DeltaSink(bench.sink)).begun(1)
    sink.write_batch(of(parts, 0), 0)
    covered = Starts(bench.root, parts, lambda: DeltaSink(bench.sink)).position(sink, 1, 0)
    if mapped:
        sql(bench, "ALTER TABLE {table} RENAME COLUMN p TO q")
        parts = parts.withColumnRenamed("p", "q")
    starts = Starts(bench.root, parts, lambda: DeltaSink(bench.sink))
    sql(bench, "DELETE FROM {table} WHERE id = 0")
    sink.write_batch(of(parts, 1), 1)
    if mapped:
        sql(bench, "ALTER TABLE {table} ADD COLUMN (note STRING)")
    sink.write_batch(of(parts, 2), 2)
    last = starts.position(sink, 1, 2)

    def found() -> list[int]:
        return sorted(row["id"] for row in bench.spark.read.format("delta").load(str(bench.sink)).collect())

    sink = starts.begun(2, covered)
    assert found() == [1, 2]
    sink.write_batch(of(parts, 1), 1)
    starts.begun(3, last)
    assert found() == [1, 2, 100, 101, 102, 200, 201, 202]


@pytest.mark.exhaustive
def test_row_tracking_that_is_enabled_after_the_checkpoint_takes_no_row_away(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]
) -> None:
    """Delta tells then of each file once more, as if the file were new."""
    of(rows, 50).write.format("delta").save(str(bench.sink))
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    covered = starts.position(sink, 1, 0)
    sink.write_batch(of(rows, 1), 1)
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    sink = starts.begun(2, covered)
    assert ids(bench) == [0, 1, 2, 5000, 5001, 5002]
    sink.write_batch(of(rows, 1), 1)
    assert ids(bench) == [0, 1, 2, 100, 101, 102, 5000, 5001, 5002]


@pytest.mark.exhaustive
def test_files_from_before_column_mapping_was_removed_do_not_come_back(
    bench: Bench, rows: DataFrame, starts: Starts[DeltaSink]
) -> None:
    rows.limit(0).write.format("delta").option("delta.columnMapping.mode", "name").save(str(bench.sink))
    sink = starts.begun(1)
    sink.write_batch(of(rows, 0), 0)
    covered = starts.position(sink, 1, 0)
    sink.write_batch(of(rows, 1), 1)
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')")
    with pytest.raises(SinkMismatch, match="which has rewritten the others: their columns would read as NULL"):
        starts.begun(2, covered)
    assert ids(bench) == [0, 1, 2, 100, 101, 102]
