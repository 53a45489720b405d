"""What a Delta table asks of its writers holds for a DeltaSink, too, and a rollback leaves each feature intact."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import CheckpointFailure, SinkMismatch
from dagster_ckpt.spark.sinks.delta import Commit, DeltaSink, DeltaTable
from dagster_ckpt.spark.sinks.delta.commits import parse_commit
from tests.helpers.spark.streaming import confs
from tests.jobs.harness import Bench
from tests.jobs.tables.common import Starts
from tests.jobs.tables.delta import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

pytestmark = pytest.mark.releases

_LONG = pytest.mark.exhaustive
_PROPERTIES = "TBLPROPERTIES"


def rows_of(bench: Bench, *ids: int) -> DataFrame:
    """A row for each id: ``v`` is ten times the id."""
    return bench.spark.createDataFrame([(each, 10 * each) for each in ids], "id INT, v INT").coalesce(1)


def ids(bench: Bench) -> list[int]:
    """What plain Spark finds, with the value that belongs to each id."""
    found = sql(bench, "SELECT id, v FROM {table}")
    assert all(row.v == 10 * row.id for row in found)
    return sorted(row.id for row in found)


def commit_of(bench: Bench, number: int) -> Commit:
    return parse_commit(number, (bench.sink / "_delta_log" / f"{number:020}.json").read_text())


def version(bench: Bench) -> int:
    return max(int(path.stem) for path in (bench.sink / "_delta_log").glob("[0-9]*.json") if path.stem.isdigit())


def operations(bench: Bench) -> Counter[str]:
    return Counter(commit_of(bench, number).operation for number in range(version(bench) + 1))


def starts_of(bench: Bench, *, job: str = "orders", options: dict[str, object] | None = None) -> Starts[DeltaSink]:
    directory = bench.root / f"storage of {job}"
    directory.mkdir(parents=True)
    return Starts(directory, rows_of(bench), lambda: DeltaSink(bench.sink, options=options), job)


def created(bench: Bench, columns: str = "id INT, v INT", then: str = "", **properties: str) -> None:
    told = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    sql(bench, f"CREATE TABLE {{table}} ({columns}) USING delta {then} {f'{_PROPERTIES} ({told})' if told else ''}")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("columns", "constraint", "wrong", "said"),
    [
        ("id INT, v INT", "small CHECK (id < 100)", "100 AS id, 1000 AS v", "CHECK constraint small"),
        ("id INT NOT NULL, v INT", "", "CAST(NULL AS INT) AS id, 0 AS v", "NOT NULL constraint violated"),
        ("id INT, v INT GENERATED ALWAYS AS (10 * id)", "", "1 AS id, 11 AS v", "Generated Column"),
        ("id INT, v INT, n BIGINT GENERATED ALWAYS AS IDENTITY", "", "1 AS id, 10 AS v, 7L AS n", "IDENTITY column n"),
        ("id INT, v INT", "", "1 AS id, 'ten' AS v", "Failed to merge fields 'v' and 'v'"),
        ("id INT, v INT", "", "1 AS id, 10 AS v, 'new' AS more", "schema mismatch"),
    ],
    ids=["CHECK", "NOT NULL", "generated", "identity", "type", "column"],
)
def test_rows_that_the_table_refuses_are_not_written(
    bench: Bench, columns: str, constraint: str, wrong: str, said: str
) -> None:
    """Delta names what they violate; the table has none of the batch, and takes the next one."""
    created(bench, columns)
    if constraint:
        sql(bench, f"ALTER TABLE {{table}} ADD CONSTRAINT {constraint}")
    sink = starts_of(bench).begun(1)
    sink.write_batch(rows_of(bench, 1, 2), 0)
    with pytest.raises(Exception, match=said):
        sink.write_batch(rows_of(bench, 3).selectExpr(*wrong.split(", ")), 1)
    assert ids(bench) == [1, 2]
    sink.write_batch(rows_of(bench, 4), 1)
    assert ids(bench) == [1, 2, 4]


def changes(bench: Bench) -> None:
    """Whoever follows the change feed from the beginning has what the table has."""
    feed = bench.spark.read.format("delta").option("readChangeFeed", True).option("startingVersion", 0)
    found = Counter[int]()
    for row in feed.load(str(bench.sink)).collect():
        found[row.id] += {"insert": 1, "delete": -1}[row["_change_type"]]
    assert +found == Counter(ids(bench))


def row_ids(bench: Bench) -> None:
    found = [row[0] for row in sql(bench, "SELECT _metadata.row_id FROM {table}")]
    assert len(set(found)) == len(found) > 0
    assert None not in found


def generated(bench: Bench) -> None:
    assert all(row.half == row.id // 2 for row in sql(bench, "SELECT id, half FROM {table} WHERE id >= 0"))


def numbered(bench: Bench) -> None:
    found = [row.n for row in sql(bench, "SELECT n FROM {table}")]
    assert len(set(found)) == len(found) > 0


def defaulted(bench: Bench) -> None:
    assert {row.more for row in sql(bench, "SELECT more FROM {table} WHERE id >= 0")} == {"none"}


def clustered(bench: Bench) -> None:
    assert sql(bench, "DESCRIBE DETAIL {table}")[0].clusteringColumns == ["id"]


def timed(bench: Bench) -> None:
    found = [row.timestamp for row in sql(bench, "DESCRIBE HISTORY {table}")]
    assert found == sorted(found, reverse=True)


def has_checkpoints(bench: Bench) -> None:
    assert any(".checkpoint." in path.name for path in (bench.sink / "_delta_log").iterdir())


def compatible(bench: Bench) -> None:
    """Every file says so."""
    added = [add for number in range(1, version(bench) + 1) for add in commit_of(bench, number).added.values()]
    assert added
    assert all(add["tags"]["ICEBERG_COMPAT_VERSION"] == "2" for add in added)


def nothing_more(bench: Bench) -> None:
    del bench


_MAPPED = {"columnMapping.mode": "name", "minReaderVersion": "2", "minWriterVersion": "5"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("columns", "then", "properties", "holds"),
    [
        pytest.param("id INT, v INT", "", {"enableChangeDataFeed": "true"}, changes, id="change feed", marks=_LONG),
        pytest.param(
            "id INT, v INT",
            "",
            {"enableChangeDataFeed": "true", "enableDeletionVectors": "true"},
            changes,
            id="change feed and deletion vectors",
            marks=_LONG,
        ),
        pytest.param("id INT, v INT", "", {"enableRowTracking": "true"}, row_ids, id="row tracking", marks=_LONG),
        pytest.param("id INT, v INT", "PARTITIONED BY (id)", _MAPPED, nothing_more, id="column mapping", marks=_LONG),
        pytest.param(
            "id INT, v INT", "", {"enableInCommitTimestamps": "true"}, timed, id="in-commit timestamps", marks=_LONG
        ),
        pytest.param("id INT, v INT", "CLUSTER BY (id)", {}, clustered, id="clustering", marks=_LONG),
        pytest.param(
            "id INT, v INT, half INT GENERATED ALWAYS AS (CAST(id / 2 AS INT))",
            "PARTITIONED BY (half)",
            {},
            generated,
            id="partitioned by a generated column",
            marks=_LONG,
        ),
        pytest.param(
            "id INT, v INT, n BIGINT GENERATED ALWAYS AS IDENTITY", "", {}, numbered, id="identity", marks=_LONG
        ),
        pytest.param(
            "id INT, v INT, more STRING DEFAULT 'none'",
            "",
            {"feature.allowColumnDefaults": "supported"},
            defaulted,
            id="default",
            marks=_LONG,
        ),
        pytest.param(
            "id INT, v INT",
            "",
            {"checkpointPolicy": "v2", "checkpointInterval": "1"},
            has_checkpoints,
            id="v2 checkpoints",
            marks=_LONG,
        ),
        pytest.param(
            "id INT, v INT",
            "",
            {**_MAPPED, "enableIcebergCompatV2": "true"},
            compatible,
            id="Iceberg compat",
            marks=_LONG,
        ),
        pytest.param(
            "id INT, v INT",
            "",
            {"autoOptimize.autoCompact": "true", "autoOptimize.optimizeWrite": "true"},
            nothing_more,
            id="automatic compaction",
            marks=_LONG,
        ),
    ],
)
def test_a_table_keeps_its_feature_through_rollbacks(
    bench: Bench, columns: str, then: str, properties: dict[str, str], holds: Callable[[Bench], None]
) -> None:
    """Back, forward to what that has abandoned, and back over a compaction of rows of others and of the job."""
    created(bench, columns, then, **properties)
    starts = starts_of(bench)
    with confs(bench.spark, {"spark.databricks.delta.autoCompact.minNumFiles": "2"}):
        sink = starts.begun(1)
        sink.write_batch(rows_of(bench, 0, 1), 0)
        covered = starts.position(sink, 1, 0)
        sink.write_batch(rows_of(bench, 2, 3), 1)
        ahead = starts.position(sink, 1, 1)
        assert ids(bench) == [0, 1, 2, 3]
        sink = starts.begun(2, covered)
        assert ids(bench) == [0, 1]
        sink.write_batch(rows_of(bench, 5, 6, 7), 1)
        sink = starts.begun(3, ahead)
        assert ids(bench) == [0, 1, 2, 3]
        holds(bench)
        sink.write_batch(rows_of(bench, 8), 2)
        sql(bench, "INSERT INTO {table} (id, v) VALUES (-1, -10)")
        if kept := [0] if "autoOptimize.autoCompact" in properties else []:
            assert operations(bench)["OPTIMIZE"] > 1
        else:
            sql(bench, "DELETE FROM {table} WHERE id = 0")
            sql(bench, "OPTIMIZE {table}")
        assert ids(bench) == [-1, *kept, 1, 2, 3, 8]
        sink = starts.begun(4, covered)
        assert ids(bench) == [-1, *kept, 1]
        sink.write_batch(rows_of(bench, 4), 1)
    assert ids(bench) == [-1, *kept, 1, 4]
    holds(bench)


@pytest.mark.exhaustive
@_LONG
def test_types_that_the_table_may_widen_are_widened(bench: Bench) -> None:
    created(bench, enableTypeWidening="true")
    starts = starts_of(bench, options={"mergeSchema": True})
    sink = starts.begun(1)
    sink.write_batch(rows_of(bench, 1), 0)
    covered = starts.position(sink, 1, 0)
    wide = rows_of(bench, 2).selectExpr("id", "CAST(10 * id AS BIGINT) AS v")
    sink.write_batch(wide, 1)
    assert sql(bench, "SELECT v FROM {table} WHERE id = 2")[0].v == 20
    sink = starts.begun(2, covered)
    assert ids(bench) == [1]
    sink.write_batch(wide, 1)
    assert ids(bench) == [1, 2]
    assert dict(bench.spark.read.format("delta").load(str(bench.sink)).dtypes)["v"] == "bigint"


@pytest.mark.exhaustive
def test_rows_come_back_only_if_delta_has_looked_at_them(bench: Bench) -> None:
    """The table got a constraint while they were away."""
    created(bench)
    starts = starts_of(bench)
    sink = starts.begun(1)
    sink.write_batch(rows_of(bench, 1), 0)
    covered = starts.position(sink, 1, 0)
    sink.write_batch(rows_of(bench, 100), 1)
    ahead = starts.position(sink, 1, 1)
    sink = starts.begun(2, covered)
    sql(bench, "ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < 100)")
    with pytest.raises(SinkMismatch, match="got a constraint"):
        starts.begun(3, ahead)
    assert ids(bench) == [1]
    sql(bench, "ALTER TABLE {table} DROP CONSTRAINT small")
    starts.begun(4, ahead)
    assert ids(bench) == [1, 100]


def test_a_table_whose_commits_a_catalog_coordinates_is_refused(bench: Bench) -> None:
    """By Delta, before anything is written; nobody needs the catalog for that."""
    created(bench, enableInCommitTimestamps="true", enableDeletionVectors="true")
    first = bench.sink / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    (protocol,) = (line["protocol"] for line in lines if "protocol" in line)
    for features in (protocol["readerFeatures"], protocol["writerFeatures"]):
        features += ["catalogManaged", "vacuumProtocolCheck"]
    first.write_text("\n".join(map(json.dumps, lines)))
    for checksum in first.parent.glob("*.crc"):
        checksum.unlink()
    (first.parent / f".{first.name}.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointFailure, match="Path-based access is not allowed for Catalog-Managed table"):
        starts_of(bench).begun(1)
    assert version(bench) == 0


@pytest.mark.exhaustive
def test_the_next_commit_of_each_writer_is_under_the_lock_of_all(bench: Bench) -> None:
    """A start has Delta forget its own object of the table, by which the others take turns."""
    created(bench)
    tables = [DeltaTable(bench.spark, str(bench.sink)) for _ in range(2)]
    assert not tables[0]._log.equals(tables[1]._log)
    first, second = (table._transaction().deltaLog() for table in tables)
    assert first.equals(second)


@_LONG
def test_writers_of_one_process_take_turns(bench: Bench) -> None:
    """On a local disk a version can take the place of another; within a process Delta's lock sees to that."""
    jobs, batches = 3, 4
    failed: list[Exception] = []

    def write(number: int) -> None:
        starts = starts_of(bench, job=f"job {number}")
        try:
            sink = starts.attached()
            assert sink._table.version == 0
            opened.wait()
            starts.begin(sink, 1)
            for batch in range(batches):
                sink.write_batch(rows_of(bench, 100 * number + batch), batch)
        except Exception as error:
            failed.append(error)

    created(bench)
    opened = threading.Barrier(jobs, timeout=120)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(jobs)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failed, failed
    assert ids(bench) == [100 * number + batch for number in range(jobs) for batch in range(batches)]
