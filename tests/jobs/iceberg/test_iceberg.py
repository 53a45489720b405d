"""Real queries into real Iceberg tables: crashes, rollbacks, forks, others that write, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.config.checkpoint_config import CheckpointConfig
from dagster_ckpt.errors import InvalidConfiguration, QueryFailed, SinkMismatch, SinkNotEmpty
from dagster_ckpt.spark.events import Started
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.iceberg.change import Change
from dagster_ckpt.spark.sinks.iceberg.table import IcebergTable
from tests.jobs.harness import Bench, Query, eventually
from tests.jobs.plain.plain import leaves
from tests.jobs.tables.common import committed, dying, into, run_without_checkpoint
from tests.jobs.tables.iceberg import call, current, expire, lake, opened, seen, snapshots, sql, table_of
from tests.jobs.tables.moving import move_there_and_back, to_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

pytestmark = pytest.mark.releases

_OF_FILES = "of Hadoop's files"


def to_iceberg(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return into(IcebergSink(table_of(bench, session)), bench, session)


def to_iceberg_and_dying(bench: Bench, session: SparkSession) -> DataStreamWriter:
    return into(dying(IcebergSink(table_of(bench, session))), bench, session)


@pytest.fixture
def table(bench: Bench) -> Bench:
    """A job that was run twice, a file each time: chk-1 of batch 0 and chk-2 of batch 1."""
    bench.query = to_iceberg
    bench.tick(1)
    bench.tick(1)
    assert seen(bench) == bench.expected()
    return bench


def die_after_the_table_has_it(bench: Bench) -> None:
    """Land a file whose batch is in the table, while Spark's commit log does not have the batch."""
    before = len(snapshots(bench)) if (bench.sink / "db").exists() else 1  # of the creation
    bench.query = to_iceberg_and_dying
    bench.land(1)
    with pytest.raises(QueryFailed):
        bench.launch().result()
    bench.query = to_iceberg
    assert len(snapshots(bench)) == before + 2, "the claim and the batch"


def test_the_table_is_exact_through_a_life(bench: Bench) -> None:
    """Before the first checkpoint; salvaged; lost with the live location; rolled back; and a crash after that."""
    bench.query = to_iceberg
    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 2
    first = bench.tick(1)
    assert "set back" in first.started.sink, "the batch of the dead run was taken back"
    assert seen(bench) == bench.expected()
    bench.files_per_trigger = 1

    run_without_checkpoint(bench, 2)
    salvaged = bench.tick(1).started.restored
    assert salvaged is not None
    assert salvaged.kind == "salvage"
    assert seen(bench) == bench.expected()

    die_after_the_table_has_it(bench)
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 2
    bench.tick(1)
    assert seen(bench) == bench.expected()

    bench.files_per_trigger = 5
    numbers = [item.batch for item in bench.checkpoints()]
    back = bench.tick(1, restore_from="chk-1")
    assert "set back" in back.started.sink
    assert back.completed[-1].batch in numbers, "a number that another batch had before"
    assert seen(bench) == bench.expected()

    abandoned = max((item for item in bench.checkpoints() if item.epoch < back.completed[0].epoch), key=_batch)
    forward = bench.tick(1, restore_from=abandoned.reference)
    assert "set back" in forward.started.sink
    assert seen(bench) == bench.expected()


def _batch(metadata: Any) -> int:
    return int(metadata.batch)


def test_rows_that_others_append_stay(table: Bench) -> None:
    """And a column that others add. What a rollback has deleted beside them does not come back, which is told."""
    run_without_checkpoint(table, 1)
    newest = snapshots(table)[-1]
    sql(table, "INSERT INTO {table} VALUES (-1, -10), (-2, -20)")
    sql(table, "ALTER TABLE {table} ADD COLUMN note STRING")
    shutil.rmtree(table.working)
    table.files_per_trigger = 3
    launch = table.tick(1)
    assert "removed" in launch.started.sink
    theirs = Counter([(-1, -10), (-2, -20)])
    assert seen(table) == table.expected() + theirs
    assert newest in snapshots(table), "nothing was rewritten"
    assert current(table.sink).schema().column_names == ["id", "v", "note"]
    back = table.tick(1, restore_from="chk-1")
    assert "removed" in back.started.sink
    assert seen(table) == table.expected() + theirs
    sql(table, "INSERT INTO {table} VALUES (-3, -30, 'theirs')")
    refusal = table.refused(SinkMismatch, restore_from=launch.completed[-1].reference)
    assert "the file cannot come back alone" in refusal.message


@pytest.mark.exhaustive
def test_a_column_that_others_add_while_the_job_runs(table: Bench) -> None:
    """And drop again, so that the table has an earlier schema. Each batch fits the schema of its time."""
    table.until_done = False
    launch = table.launch()
    eventually("the query starts", lambda: bool(launch.of(Started)), unless=launch.check)
    for change in ("ADD COLUMN note STRING", "DROP COLUMN note", "ADD COLUMN of_day INT"):
        batch = committed(table.live())
        table.land(1)
        eventually("a batch commits", lambda batch=batch: committed(table.live()) > batch, unless=launch.check)  # type: ignore[misc]
        sql(table, f"ALTER TABLE {{table}} {change}")
    launch.run.cancel()
    launch.result()
    table.until_done = True
    table.tick(1)
    assert current(table.sink).schema().column_names == ["id", "v", "of_day"]
    assert seen(table) == table.expected()


@pytest.mark.exhaustive
def test_files_that_were_staged_before_a_change_of_the_table_are_added_after_it(table: Bench) -> None:
    """A batch is staged for what was known of the table, and committed to what the table is then."""
    written = IcebergTable(table.spark, table_of(table))
    staged = written.stage(table.spark.createDataFrame([(-1, -10)], "id INT, v INT"), {})
    for change in ("ADD COLUMN note STRING", "RENAME COLUMN v TO w", "ALTER COLUMN w TYPE BIGINT"):
        sql(table, f"ALTER TABLE {{table}} {change}")
    opened(table).updateSpec().addField("id").commit()
    newest = current(table.sink).metadata.current_snapshot_id
    written.commit(lambda history: Change({"dagster_ckpt.job": "another"}, staged) if history.head == newest else 0)
    rows = current(table.sink).scan(row_filter="id < 0").to_arrow().to_pylist()
    assert rows == [{"id": -1, "w": -10, "note": None}]
    assert sql(table, "SELECT id, w FROM {table} WHERE id < 0") == [(-1, -10)]


@pytest.mark.exhaustive
def test_a_compaction_is_undone_with_what_it_compacted(table: Bench) -> None:
    run_without_checkpoint(table, 1)
    call(table, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert current(table.sink).current_snapshot().summary.operation.value == "replace"
    table.tick(1, restore_from="chk-1")
    assert seen(table) == table.expected()


@pytest.mark.exhaustive
def test_maintenance_beside_rows_that_others_append(table: Bench) -> None:
    """Refused is only a compaction of files that the job wrote since its checkpoint, and the hint says how to go on."""
    run_without_checkpoint(table, 1)
    for key in (-1, -2):
        sql(table, f"INSERT INTO {{table}} VALUES ({key}, 0)")
    call(table, "rewrite_data_files", "where => 'id < 0', options => map('rewrite-all', 'true')")
    call(table, "rewrite_manifests", "use_caching => false")
    kept = snapshots(table)[-2:]
    assert [_operation(table, snapshot) for snapshot in kept] == ["replace", "replace"]
    shutil.rmtree(table.working)
    assert "removed" in table.tick(1).started.sink
    theirs = Counter([(-1, 0), (-2, 0)])
    assert seen(table) == table.expected() + theirs
    assert set(kept) <= set(snapshots(table))

    run_without_checkpoint(table, 1)
    sql(table, "INSERT INTO {table} VALUES (-3, 0)")
    right = snapshots(table)[-1]
    call(table, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    refusal = table.refused(SinkMismatch, restore_from=table.checkpoints()[-1].reference)
    assert f"snapshot {snapshots(table)[-1]} (replace)" in refusal.message
    assert f"set_current_snapshot to {right}" in refusal.hint
    call(table, "set_current_snapshot", f"snapshot_id => {right}")
    table.tick(1, restore_from=table.checkpoints()[-1].reference)
    assert seen(table) == table.expected() + theirs + Counter([(-3, 0)])


def _operation(bench: Bench, snapshot: int) -> str:
    (found,) = (item for item in current(bench.sink).metadata.snapshots if item.snapshot_id == snapshot)
    return str(found.summary.operation.value)


@pytest.mark.exhaustive
def test_the_rollback_of_another_job_in_the_table(table: Bench, tmp_path: Path) -> None:
    """Both jobs die with batches in the table, and each of them takes back its own."""
    other = Bench(table.spark, tmp_path / "other", name="other")
    other.query = lambda bench, session: into(IcebergSink(table_of(table, session)), bench, session)
    other.tick(1)
    run_without_checkpoint(other, 1)
    run_without_checkpoint(table, 1)
    shutil.rmtree(other.working)
    assert "removed" in other.tick(1).started.sink
    assert "delete" in [_operation(table, snapshot) for snapshot in snapshots(table)]
    shutil.rmtree(table.working)
    assert "removed" in table.tick(1).started.sink
    assert seen(table) == table.expected() + other.expected()
    other.tick(1)
    assert seen(table) == table.expected() + other.expected()


@pytest.mark.parametrize(
    "statement", ["UPDATE {table} SET v = -1 WHERE id > 10", "INSERT OVERWRITE {table} VALUES (1, 2)"]
)
def test_a_change_that_a_rollback_would_lose_is_refused(table: Bench, statement: str) -> None:
    """The hint says how to go on."""
    run_without_checkpoint(table, 1)
    right = snapshots(table)[-1]
    sql(table, statement)
    refusal = table.refused(SinkMismatch, restore_from="chk-1")
    assert f"snapshot {snapshots(table)[-1]} (overwrite)" in refusal.message
    assert f"set_current_snapshot to {right}" in refusal.hint
    call(table, "set_current_snapshot", f"snapshot_id => {right}")
    table.tick(1, restore_from="chk-1")
    assert seen(table) == table.expected()


def test_a_snapshot_that_has_expired(table: Bench) -> None:
    """Those of a line that was left are needed to go back to the line; in its own line the job needs only its own."""
    abandoned = table.checkpoints()[-1]
    table.files_per_trigger = 5
    table.tick(1, restore_from="chk-1")
    gone = [
        item.snapshot_id for item in current(table.sink).metadata.snapshots if item.snapshot_id not in snapshots(table)
    ]
    call(table, "expire_snapshots", f"snapshot_ids => array({', '.join(map(str, gone))})")
    refusal = table.refused(SinkMismatch, restore_from=abandoned.reference)
    assert "does not have snapshot" in refusal.message
    assert "newer checkpoint" in refusal.hint

    table.files_per_trigger = 1
    run_without_checkpoint(table, 1)
    oldest = snapshots(table)[:3]
    call(table, "expire_snapshots", f"snapshot_ids => array({', '.join(map(str, oldest))})")
    assert "set back" in table.tick(1, restore_from="chk-1").started.sink, "the checkpoint's own snapshot has expired"
    assert seen(table) == table.expected()
    expire(table)
    table.tick(1)
    assert seen(table) == table.expected()
    table.files_per_trigger = 9
    table.tick(1, restore_from="chk-1")
    assert seen(table) == table.expected(), "the branch has the batches since the last start from the checkpoint"


def test_retained_checkpoints_keep_their_snapshots(bench: Bench) -> None:
    """Those of others too, against every way to expire them; those of a checkpoint that retention has dropped go."""
    bench.query = to_iceberg
    few = bench.job(config=CheckpointConfig(interval="1 h", min_pause="1 h", num_retained=3))
    for number in range(3):
        bench.tick(1, few)
        sql(bench, f"INSERT INTO {{table}} VALUES ({-number}, -1)")
    theirs = Counter({(-number, -1): 1 for number in range(3)})
    sql(bench, "ALTER TABLE {table} SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')")
    run_without_checkpoint(bench, 2)
    oldest = bench.checkpoints()[0]
    expire(bench)
    assert snapshots(bench)[1] == position(oldest), "after the name of one that has expired"
    shutil.rmtree(bench.working)
    bench.files_per_trigger = 5
    assert "set back" in bench.tick(1, few).started.sink, "to what others appended before the batches"
    assert seen(bench) == bench.expected() + theirs
    expire(bench)
    assert "removed" in bench.tick(1, few, restore_from=bench.checkpoints()[0].reference).started.sink
    assert seen(bench) == bench.expected() + theirs

    for _ in range(3):
        before = bench.checkpoints()[0]
        bench.tick(1, few)
    assert before not in bench.checkpoints()
    expire(bench)
    assert snapshots(bench)[1] == position(before) != position(oldest), "until the next batch"
    assert [tuple(row) for row in sql(bench, "SELECT name, type FROM {table}.refs WHERE name != 'main'")] == [
        ("dagster_ckpt_tiny", "BRANCH")
    ]


def position(metadata: CheckpointMetadata) -> Any:
    assert metadata.sink is not None
    return metadata.sink["snapshot"]


@pytest.mark.exhaustive
def test_the_branch_that_keeps_snapshots_is_switched_off(table: Bench) -> None:
    assert "dagster_ckpt_tiny" in current(table.sink).refs()
    table.query = lambda bench, session: into(
        IcebergSink(table_of(bench, session), keep_snapshots=False), bench, session
    )
    for _ in range(2):
        table.tick(1)
        assert "dagster_ckpt_tiny" not in current(table.sink).refs()
    expire(table)
    assert "does not have snapshot" in table.refused(SinkMismatch, restore_from="chk-1").message


@pytest.mark.exhaustive
def test_a_batch_does_not_need_the_branch(table: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Here a tag has its name; a catalog may have no branches at all."""
    branches = opened(table).manageSnapshots()
    branches.removeBranch("dagster_ckpt_tiny").createTag("dagster_ckpt_tiny", snapshots(table)[-1]).commit()
    table.tick(1)
    assert seen(table) == table.expected()
    (warning,) = (record.message for record in caplog.records if "branch dagster_ckpt_tiny" in record.message)
    assert "keep_snapshots=False" in warning


@pytest.mark.exhaustive
def test_a_job_that_writes_seldom(table: Bench) -> None:
    """Others compact the table and expire its snapshots, the job's own among them."""
    sql(table, "INSERT INTO {table} VALUES (-1, 0)")
    call(table, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    expire(table)
    assert len(snapshots(table)) == 2, "the current snapshot, and the name of one that has expired"
    assert "batch 1 of job 'tiny'" in table.refused(SinkNotEmpty, restore_from="none").message
    sql(table, "DELETE FROM {table} WHERE id = -1")
    for files in (1, 0, 0, 0, 1):  # a start without a batch claims the table, and takes no checkpoint
        expire(table)
        table.tick(files)
        sql(table, "INSERT INTO {table} VALUES (-1, 0)")
        sql(table, "DELETE FROM {table} WHERE id = -1")
    assert seen(table) == table.expected()
    assert "does not have snapshot" in table.refused(SinkMismatch, restore_from="chk-1").message


@pytest.mark.exhaustive
def test_the_newest_snapshot_is_kept_by_a_tag(table: Bench) -> None:
    """While those that others made after it have expired; unlike a table that somebody has set back."""
    newest = snapshots(table)[-1]
    opened(table).manageSnapshots().createTag("kept", newest).commit()
    for key in (-1, -2):
        sql(table, f"INSERT INTO {{table}} VALUES ({key}, 0)")
    expire(table)
    assert newest not in snapshots(table)
    table.tick(1)
    theirs = Counter([(-1, 0), (-2, 0)])
    assert seen(table) == table.expected() + theirs

    earlier = snapshots(table)[-3]
    call(table, "set_current_snapshot", f"snapshot_id => {earlier}")
    sql(table, "INSERT INTO {table} VALUES (-3, 0)")
    call(table, "expire_snapshots", f"snapshot_ids => array({earlier})")
    assert "does not have snapshot" in table.refused(SinkMismatch).message


@pytest.mark.exhaustive
def test_a_start_from_nothing_that_dies_before_its_claim(table: Bench) -> None:
    """In a table that was emptied after an earlier lineage, whose snapshots are not those of the new one."""
    sql(table, "DELETE FROM {table}")

    def dead_before_the_claim(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sink = IcebergSink(table_of(bench, session))

        def die(*_: object) -> None:
            raise ZeroDivisionError("dead before the claim")

        setattr(sink, "adopt", die)  # noqa: B010
        return into(sink, bench, session)

    with pytest.raises(ZeroDivisionError):
        table.launch(table.job(query=dead_before_the_claim), restore_from="none").result()
    sql(table, "INSERT INTO {table} VALUES (-1, 0)")
    theirs = Counter([(-1, 0)])
    die_after_the_table_has_it(table)
    assert seen(table) != table.expected() + theirs
    table.tick(1)
    assert seen(table) == table.expected() + theirs, "the new lineage has begun, and takes back what is its own"


@pytest.mark.exhaustive
def test_a_table_that_is_not_the_one_is_refused(table: Bench) -> None:
    """Recreated by another session, while the job's has cached the table; and claimed, as the storage was emptied."""
    other = table.spark.newSession()
    name = f"{lake(other, table.sink)}.db.out"
    kept = shutil.copytree(table.sink, table.root / "kept")

    def recreating(bench: Bench, session: SparkSession) -> DataStreamWriter:
        assert session.table(table_of(bench, session)).count() == bench.expected().total()
        other.sql(f"DROP TABLE {name}")
        other.sql(f"CREATE TABLE {name} (id INT, v INT) USING iceberg")
        return to_iceberg(bench, session)

    with pytest.raises(SinkMismatch, match="a table with the id"):
        table.launch(table.job(query=recreating)).result()
    other.sql(f"DROP TABLE {name}")
    assert "there is no table" in table.refused(SinkMismatch).message
    shutil.rmtree(table.sink)
    kept.rename(table.sink)

    refusal = table.refused(SinkNotEmpty, restore_from="none")
    assert "batch 1 of job 'tiny'" in refusal.message
    shutil.rmtree(table.storage)
    assert "batch 1 of job 'tiny'" in table.refused(SinkNotEmpty).message
    sql(table, "DELETE FROM {table}")
    assert "claimed by epoch 2" in table.refused(SinkMismatch).message


@pytest.mark.exhaustive
def test_a_fork_begins_in_a_table_with_rows_of_others(table: Bench, tmp_path: Path) -> None:
    """Its first run dies with a batch in the table; the rows that were there before stay."""
    fork = Bench(table.spark, tmp_path / "fork", name="fork")

    def writing(make: Any) -> Query:
        return lambda _, session: into(make(IcebergSink(table_of(fork, session))), table, session)

    fork.spark.sql(f"CREATE TABLE {table_of(fork)} USING iceberg AS SELECT -1 AS id, -10 AS v")
    before = table.expected()
    pointer = str(table.storage / table.name / table.checkpoints()[-1].reference)
    table.land(1)
    with pytest.raises(QueryFailed):
        fork.launch(fork.job(query=writing(dying)), fork_from=pointer).result()
    table.land(1)
    table.files_per_trigger = 2
    fork.tick(0, fork.job(query=writing(lambda sink: sink)))
    assert seen(fork) == Counter({**(table.expected() - before), (-1, -10): 1})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    [
        "partitioned",
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (_OF_FILES, "of format 1", "of format 3")),
    ],
)
def test_other_kinds_of_tables(bench: Bench, kind: str) -> None:
    hadoop = kind == _OF_FILES
    if "format" in kind:
        properties = f"TBLPROPERTIES ('format-version' = '{kind[-1]}')"
        bench.spark.sql(f"CREATE TABLE {table_of(bench)} (id INT, v INT) USING iceberg {properties}")
    given: dict[str, Any] = {}
    if kind == "partitioned":
        given = {"partition_by": ["v"], "options": {"write-format": "orc", "snapshot-property.team": "delays"}}
    bench.query = lambda bench, session: into(
        IcebergSink(table_of(bench, session, hadoop=hadoop), **given), bench, session
    )
    if kind == "of format 3" and bench.spark.version.startswith("4.0"):
        assert "format version 3" in bench.refused(InvalidConfiguration).message
        return
    bench.tick(1)
    bench.tick(1)
    bench.files_per_trigger = 3
    bench.tick(1, restore_from="chk-1")
    assert seen(bench) == bench.expected()
    if kind == "partitioned":
        newest = current(bench.sink)
        assert len(newest.spec().fields) == 1
        assert newest.current_snapshot().summary.additional_properties["team"] == "delays"


@pytest.mark.exhaustive
def test_the_catalog_is_asked_once_for_a_batch(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that commits the batch has the newest metadata; each further look is a request to the catalog."""
    done: list[str] = []
    write, look = IcebergSink.write_batch, IcebergTable._metadata

    def looking(opened: IcebergTable) -> Any:
        done.append("look")
        return look(opened)

    def writing(sink: IcebergSink, rows: DataFrame, batch: int) -> None:
        done.append("batch")
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "_metadata", looking)
            write(sink, rows, batch)

    monkeypatch.setattr(IcebergSink, "write_batch", writing)
    table.tick(1)
    assert seen(table) == table.expected()
    assert done == ["batch"]


@pytest.mark.exhaustive
def test_manifests_are_merged_when_the_table_says_so(table: Bench) -> None:
    """Each batch adds a manifest. Without a merge, to read the table and to commit to it would take ever longer."""
    sql(table, "ALTER TABLE {table} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '3')")
    assert _manifests(table) == 2
    counts = []
    for _ in range(4):
        table.tick(1)
        counts.append(_manifests(table))
    assert max(counts) == 3, f"{counts} manifests"
    assert counts[-1] < 3, f"{counts} manifests"
    assert seen(table) == table.expected()
    table.tick(1, restore_from="chk-1")
    assert seen(table) == table.expected()


def _manifests(bench: Bench) -> int:
    return len(current(bench.sink).inspect.manifests())


@pytest.mark.exhaustive
def test_the_summary_tells_who_wrote_what(table: Bench) -> None:
    told = current(table.sink).current_snapshot().summary.additional_properties
    named = {name: value for name, value in told.items() if name.startswith("dagster_ckpt.")}
    assert len(named.pop("dagster_ckpt.start")) == 16
    assert named.pop("dagster_ckpt.lineage") == table.checkpoints()[-1].job_id
    assert named.pop("dagster_ckpt.before") == str(position(table.checkpoints()[0]))
    assert named == {"dagster_ckpt.job": "tiny", "dagster_ckpt.epoch": "2", "dagster_ckpt.batch": "1"}


def test_an_option_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="mergeSchema"):
        IcebergSink("lake.db.delays", options={"mergeSchema": "true"})


@pytest.mark.parametrize("name", ["lake.db.out.branch_audit", "lake.db.out.`tag_v1`", "lake.db.out.BRANCH_a"])
def test_the_name_of_a_branch_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="names a branch or a tag"):
        IcebergSink(name)


@pytest.mark.parametrize("setting", ["spark.wap.branch", pytest.param("spark.wap.id", marks=pytest.mark.exhaustive)])
def test_a_session_that_publishes_later_is_refused(bench: Bench, setting: str) -> None:
    """If the table takes part in that; without the setting readers see each batch."""

    def publishing_later(bench: Bench, session: SparkSession) -> DataStreamWriter:
        session.conf.set(setting, "audit")
        return to_iceberg(bench, session)

    def publishing(bench: Bench, session: SparkSession) -> DataStreamWriter:
        session.conf.unset(setting)
        return to_iceberg(bench, session)

    sql(bench, "CREATE TABLE {table} (id INT, v INT) USING iceberg TBLPROPERTIES ('write.wap.enabled' = 'true')")
    bench.query = publishing_later
    assert f"the session has {setting}" in bench.refused(InvalidConfiguration).message
    assert not snapshots(bench)
    bench.query = publishing
    bench.tick(1)
    assert seen(bench) == bench.expected()


@pytest.mark.exhaustive
def test_a_table_in_no_catalog_of_iceberg_is_refused(bench: Bench) -> None:
    bench.query = lambda bench, session: into(IcebergSink("delays"), bench, session)
    assert "catalog spark_catalog, which is not one of Iceberg" in bench.refused(InvalidConfiguration).message


@pytest.mark.exhaustive
def test_spark_alone_goes_on_with_the_state_of_an_exported_job(table: Bench, tmp_path: Path) -> None:
    leaves(table, tmp_path / "out")
    assert seen(table) == table.expected()


@pytest.mark.exhaustive
def test_a_stopped_job_moves_here_and_back(bench: Bench) -> None:
    move_there_and_back(bench, lambda bench, session: IcebergSink(table_of(bench, session)), lambda: seen(bench))


@pytest.mark.exhaustive
@pytest.mark.parametrize("then", ["expired", "made again"])
def test_a_first_batch_that_died_in_a_new_table_is_taken_back(bench: Bench, then: str) -> None:
    """Until the first checkpoint in the table, each restart goes back to the table before its first snapshot."""
    bench.query = to_files("before")
    bench.tick(2)
    left = bench.expected()
    bench.query = to_iceberg_and_dying
    bench.land(1)
    with pytest.raises(QueryFailed, match="dead after the commit of batch 2"):
        bench.launch(allow_loss=True).result()
    if then == "expired":
        expire(bench)
    else:
        sql(bench, "DROP TABLE {table}")
        sql(bench, "CREATE TABLE {table} (id bigint, v bigint) USING iceberg")
    bench.query = to_iceberg
    bench.launch(allow_loss=then != "expired").result()
    assert seen(bench) == bench.expected() - left
