"""A Delta table that a job writes to: crashes, rollbacks, other writers, and tables that cannot go back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import InvalidConfiguration, QueryFailed, SinkMismatch, SinkNotEmpty
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.sinks.delta import DeltaSink
from tests.jobs.harness import Bench, Query, Row, eventually
from tests.jobs.plain.plain import leaves
from tests.jobs.tables.common import dying, into, run_without_checkpoint
from tests.jobs.tables.delta import seen, sql, version, without_old_log
from tests.jobs.tables.moving import move_there_and_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.releases


def to_delta(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return into(DeltaSink(bench.sink), bench, session)


def to_delta_and_dying(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return into(dying(DeltaSink(bench.sink)), bench, session)


@pytest.fixture
def table(bench: Bench) -> Bench:
    """A job that was run twice, a file each time: chk-1 of batch 0 and chk-2 of batch 1."""
    bench.query = to_delta
    bench.tick(1)
    bench.tick(1)
    assert seen(bench) == bench.expected()
    return bench


def die_after_the_table_has_it(bench: Bench) -> None:
    """Land a file whose batch is in the table, while Spark's commit log does not have the batch."""
    before = version(bench) if bench.sink.exists() else 0  # that of the empty table
    bench.query = to_delta_and_dying
    bench.land(1)
    with pytest.raises(QueryFailed):
        bench.launch().result()
    bench.query = to_delta
    assert version(bench) == before + 2, "the claim and the batch"


def test_the_table_is_exact_through_a_life(bench: Bench) -> None:
    """Before the first checkpoint; salvaged; lost with the live location; rolled back; and a crash after that."""
    bench.query = to_delta
    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 2
    first = bench.tick(1)
    assert first.started.sink, "the batch of the dead run was taken back"
    assert seen(bench) == bench.expected()
    bench.files_per_trigger = 1

    run_without_checkpoint(bench, 2)
    salvaged = bench.tick(1).started.restored
    assert salvaged is not None
    assert salvaged.kind == "salvage"
    assert seen(bench) == bench.expected()

    die_after_the_table_has_it(bench)
    assert seen(bench) == bench.expected()
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 2
    bench.tick(1)
    assert seen(bench) == bench.expected()

    bench.files_per_trigger = 5
    numbers = [item.batch for item in bench.checkpoints()]
    back = bench.tick(1, restore_from="chk-1")
    assert "removed" in back.started.sink
    assert back.completed[-1].batch in numbers, "a number that another batch had before"
    assert seen(bench) == bench.expected()
    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    bench.tick(1)
    assert seen(bench) == bench.expected()

    abandoned = max((item for item in bench.checkpoints() if item.epoch < back.completed[0].epoch), key=_batch)
    forward = bench.tick(1, restore_from=abandoned.reference)
    assert "put back" in forward.started.sink
    assert seen(bench) == bench.expected()


def _batch(metadata: Any) -> int:
    return int(metadata.batch)


def appended(bench: Bench) -> Counter[Row]:
    sql(bench, "INSERT INTO {table} (id, v) VALUES (-1, -10), (-2, -20)")
    return Counter([(-1, -10), (-2, -20)])


def compacted(bench: Bench) -> Counter[Row]:
    before = version(bench)
    sql(bench, "OPTIMIZE {table}")
    assert version(bench) > before
    return Counter()


def evolved(bench: Bench) -> Counter[Row]:
    sql(bench, "ALTER TABLE {table} ADD COLUMN (note STRING)")
    return Counter()


def edited(bench: Bench) -> Counter[Row]:
    """A row that the checkpoint covers."""
    sql(bench, "DELETE FROM {table} WHERE id = 0")
    return Counter({(0, 0): -1})


def all_of_it(bench: Bench) -> Counter[Row]:
    changed = Counter[Row]()
    for each in (evolved, edited, appended, compacted):
        changed.update(each(bench))
    return changed


@pytest.mark.exhaustive
def test_what_others_do_stays(table: Bench) -> None:
    """After the checkpoint, when a batch of the job is in one file with rows of others."""
    run_without_checkpoint(table, 1)
    changed = all_of_it(table)
    shutil.rmtree(table.working)
    table.files_per_trigger = 3
    launch = table.tick(1)
    assert launch.started.restored is not None
    assert launch.started.restored.batch == 1
    expected = table.expected()
    expected.update(changed)
    assert seen(table) == +expected
    (columns,) = {tuple(row.asDict()) for row in sql(table, "SELECT * FROM {table} LIMIT 1")}
    assert columns == ("id", "v", "note")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE {table} SET v = -1 WHERE id > 10", "UPDATE"),
        pytest.param("INSERT OVERWRITE {table} VALUES (1, 2)", "WRITE", marks=pytest.mark.exhaustive),
        pytest.param("RESTORE TABLE {table} TO VERSION AS OF 0", "RESTORE", marks=pytest.mark.exhaustive),
    ],
)
def test_a_change_that_a_rollback_would_lose_is_refused(table: Bench, statement: str, said: str) -> None:
    run_without_checkpoint(table, 1)
    right = version(table)
    sql(table, statement)
    refusal = table.refused(SinkMismatch, restore_from="chk-1")
    assert f"version {right + 1} ({said})" in refusal.message
    sql(table, f"RESTORE TABLE {{table}} TO VERSION AS OF {right}")
    table.tick(1, restore_from="chk-1")
    assert seen(table) == table.expected()


def vacuumed(bench: Bench) -> None:
    bench.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # By default VACUUM lists the table in ten thousand tasks.
    bench.spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    sql(bench, "VACUUM {table} RETAIN 0 HOURS")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(vacuumed, "VACUUM"), pytest.param(without_old_log, "logRetentionDuration", marks=pytest.mark.exhaustive)],
)
def test_a_version_that_is_gone_is_refused_by_name(table: Bench, spoil: Callable[[Bench], None], said: str) -> None:
    abandoned = table.checkpoints()[-1]
    table.files_per_trigger = 5
    table.tick(1, restore_from="chk-1")
    spoil(table)
    refusal = table.refused(SinkMismatch, restore_from=abandoned.reference)
    assert said in refusal.message + refusal.hint
    table.tick(1)
    assert seen(table) == table.expected()


@pytest.mark.exhaustive
def test_a_job_that_wrote_nothing_goes_on_without_the_old_log(table: Bench) -> None:
    """Each start claims the table once more, and so does the next one when that log is gone, too."""
    others = Counter[Row]()
    for _ in range(2):
        others.update(appended(table))
        without_old_log(table)
        table.tick(0)
    assert seen(table) == table.expected() + others
    table.tick(1)
    assert seen(table) == table.expected() + others

    sql(table, "INSERT OVERWRITE {table} VALUES (1, 2)")
    without_old_log(table)
    assert "(WRITE)" in table.refused(SinkMismatch).message


@pytest.mark.exhaustive
def test_a_start_that_had_no_batch_goes_on_without_the_old_log(bench: Bench) -> None:
    bench.query = to_delta
    bench.until_done = False
    idle = bench.launch()
    eventually("the query starts", lambda: bool(idle.of(Started)), unless=idle.check)
    idle.run.cancel()
    assert idle.result().status is JobStatus.CANCELED
    bench.until_done = True
    others = appended(bench)
    without_old_log(bench)
    bench.tick(1)
    assert seen(bench) == bench.expected() + others


@pytest.mark.parametrize("others_write", [False, True], ids=["alone", "others write"])
def test_a_start_from_nothing_that_dies_before_its_claim(table: Bench, others_write: bool) -> None:
    """In a table that was emptied after an earlier lineage, whose marks are not those of the new one."""
    sql(table, "DELETE FROM {table}")

    def dead_before_the_claim(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = DeltaSink(bench.sink)

        def die(*_: object) -> None:
            raise ZeroDivisionError("dead before the claim")

        setattr(sink, "adopt", die)  # noqa: B010
        return into(sink, bench, session)

    with pytest.raises(ZeroDivisionError):
        table.launch(table.job(query=dead_before_the_claim), restore_from="none").result()
    others = appended(table) if others_write else Counter[Row]()
    die_after_the_table_has_it(table)
    assert seen(table) != table.expected() + others
    shutil.rmtree(table.working)
    table.tick(1)
    assert seen(table) == table.expected() + others, "the new lineage has begun, and takes back what is its own"


def test_a_log_that_is_gone_before_the_first_checkpoint(bench: Bench) -> None:
    """The claim cannot be found: the refusal names the way on, and that is no checkpoint."""
    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    appended(bench)
    without_old_log(bench)
    refusal = bench.refused(SinkMismatch)
    assert "has no version" in refusal.message
    assert "Restore a newer checkpoint" not in refusal.hint
    assert f"delete all rows of {bench.sink} by DELETE FROM or write elsewhere" in refusal.hint
    assert "launch with restore_from: none" in refusal.hint


@pytest.mark.exhaustive
def test_rows_that_somebody_deletes_before_the_first_checkpoint(bench: Bench) -> None:
    """No checkpoint can be restored instead: the refusal names the way on, and that way works."""
    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    sql(bench, "DELETE FROM {table}")
    refusal = bench.refused(SinkMismatch)
    assert "(DELETE)" in refusal.message
    assert f"delete all rows of {bench.sink} by DELETE FROM or write elsewhere" in refusal.hint
    assert "launch with restore_from: none" in refusal.hint
    bench.tick(1, restore_from="none")
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_a_table_that_is_not_the_one_is_refused(table: Bench) -> None:
    """Recreated; and with the marks of a newer epoch, because the job's storage was emptied."""
    kept = table.root / "kept"
    table.sink.rename(kept)
    table.spark.range(1).selectExpr("1 AS id", "1 AS v").write.format("delta").save(str(table.sink))
    assert "with the id" in table.refused(SinkMismatch).message
    shutil.rmtree(table.sink)
    kept.rename(table.sink)
    refusal = table.refused(SinkNotEmpty, restore_from="none")
    assert "batch 1 of job 'tiny'" in refusal.message
    shutil.rmtree(table.storage)
    assert "batch 1 of job 'tiny'" in table.refused(SinkNotEmpty).message
    sql(table, "DELETE FROM {table}")
    assert "claimed by epoch 2" in table.refused(SinkMismatch).message


@pytest.mark.exhaustive
def test_a_table_that_takes_no_rows_back_or_forgets_its_writer_is_refused(bench: Bench) -> None:
    bench.query = to_delta
    sql(bench, "CREATE TABLE {table} (id INT, v INT) USING delta")
    for name, value in (("appendOnly", "true"), ("setTransactionRetentionDuration", "interval 7 days")):
        sql(bench, f"ALTER TABLE {{table}} SET TBLPROPERTIES ('delta.{name}' = '{value}')")
        assert f"delta.{name} = {value}" in bench.refused(InvalidConfiguration).message
        sql(bench, f"ALTER TABLE {{table}} UNSET TBLPROPERTIES ('delta.{name}')")
    bench.tick(1)
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_a_fork_begins_in_a_table_with_rows_of_others(table: Bench, tmp_path: Path) -> None:
    """Its first run dies with a batch in the table; the rows that were there before stay."""
    fork = Bench(table.spark, tmp_path / "fork", name="fork")

    def writing(sink: DeltaSink) -> Query:
        return lambda _, session: into(sink, table, session)

    fork.spark.sql(f"CREATE TABLE delta.`{fork.sink}` USING delta AS SELECT -1 AS id, -10 AS v")
    before = table.expected()
    pointer = str(table.storage / table.name / table.checkpoints()[-1].reference)
    table.land(1)
    with pytest.raises(QueryFailed):
        fork.launch(fork.job(query=writing(dying(DeltaSink(fork.sink)))), fork_from=pointer).result()
    table.land(1)
    table.files_per_trigger = 2
    fork.tick(0, fork.job(query=writing(DeltaSink(fork.sink))))
    assert seen(fork) == Counter({**(table.expected() - before), (-1, -10): 1})


@pytest.mark.exhaustive
def test_the_history_tells_who_wrote_what(table: Bench) -> None:
    told = [row["userMetadata"] for row in sql(table, "DESCRIBE HISTORY {table}") if row["userMetadata"]]
    assert json.loads(told[0]) == {"job": "tiny", "epoch": 2, "batch": 1}


@pytest.mark.parametrize(
    ("option", "value"),
    [("txnVersion", "7"), ("dataChange", False), ("replaceWhere", "day = 1"), ("partitionOverwriteMode", "dynamic")],
)
def test_an_option_that_an_append_has_no_room_for_is_refused(option: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=option):
        DeltaSink("/data/delays", options={option: value})


@pytest.mark.parametrize(
    ("option", "value"), [("OverwriteSchema", False), ("dataChange", "TRUE"), ("partitionOverwriteMode", "STATIC")]
)
def test_an_option_that_says_what_delta_does_anyhow_is_taken(option: str, value: object) -> None:
    DeltaSink("/data/delays", options={option: value})


@pytest.mark.exhaustive
def test_a_stopped_job_moves_here_and_back(bench: Bench) -> None:
    move_there_and_back(bench, lambda bench, _: DeltaSink(bench.sink), lambda: seen(bench))


@pytest.mark.exhaustive
def test_spark_alone_goes_on_with_the_state_of_an_exported_job(table: Bench, tmp_path: Path) -> None:
    leaves(table, tmp_path / "out")
    assert seen(table) == table.expected()
