"""A catalog of Iceberg in a directory of its own, and what readers find in the table of a job."""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.jobs.harness import Bench, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["call", "configure", "current", "expire", "lake", "opened", "seen", "snapshots", "sql", "table_of"]

_CATALOG = "catalog.db"


def lake(session: SparkSession, warehouse: Path, *, hadoop: bool = False) -> str:
    """The name of a catalog of its own, with the namespace ``db``."""
    catalog = f"lake_{zlib.crc32(str(warehouse).encode()):08x}"
    configure(session, catalog, warehouse, hadoop=hadoop)
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.db")
    return catalog


def configure(session: SparkSession, catalog: str, warehouse: Path, *, hadoop: bool = False) -> None:
    """Add a catalog in a database of SQLite, which several processes may share; or of Hadoop's files."""
    warehouse.mkdir(parents=True, exist_ok=True)
    where = {"type": "hadoop"} if hadoop else {"type": "jdbc", "uri": f"jdbc:sqlite:{warehouse / _CATALOG}"}
    session.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {**where, "warehouse": str(warehouse)}.items():
        session.conf.set(f"spark.sql.catalog.{catalog}.{key}", value)


def table_of(bench: Bench, session: SparkSession | None = None, *, hadoop: bool = False) -> str:
    """The name of a job's table, for a session of a query or the test's own."""
    return f"{lake(session or bench.spark, bench.sink, hadoop=hadoop)}.db.out"


def current(warehouse: Path) -> Any:
    """The job's table as a reader without Spark finds it."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415 - only where an Iceberg is for this Spark

    if (warehouse / _CATALOG).exists():
        with closing(sqlite3.connect(warehouse / _CATALOG, timeout=60)) as database:
            ((where,),) = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    else:
        metadata = warehouse / "db" / "out" / "metadata"
        where = str(metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json")
    return StaticTable.from_metadata(where)


def opened(bench: Bench) -> Any:
    """The job's table for calls of Iceberg's that have no statement in plain Spark."""
    jvm: Any = bench.spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(bench.spark._jsparkSession, table_of(bench))
    table.refresh()
    return table


def seen(bench: Bench) -> Counter[Row]:
    """What a reader without Spark finds."""
    rows = current(bench.sink).scan(selected_fields=("id", "v")).to_arrow().to_pylist()
    return Counter((row["id"], row["v"]) for row in rows)


def snapshots(bench: Bench) -> list[int]:
    """The line of the current snapshot, the first one first."""
    metadata = current(bench.sink).metadata
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    line, at = [], metadata.current_snapshot_id
    while at is not None:
        line.append(at)
        at = parents.get(at)
    return line[::-1]


def sql(bench: Bench, statement: str) -> list[Any]:
    """Run a statement on ``{table}``."""
    return bench.spark.sql(statement.format(table=table_of(bench))).collect()


def call(bench: Bench, procedure: str, arguments: str) -> list[Any]:
    """Call a procedure of Iceberg for the job's table."""
    catalog = table_of(bench).partition(".")[0]
    return bench.spark.sql(f"CALL {catalog}.system.{procedure}(table => 'db.out', {arguments})").collect()


def expire(bench: Bench) -> None:
    """Remove every snapshot but the current one, as far as Iceberg lets it."""
    call(bench, "expire_snapshots", "older_than => TIMESTAMP '2099-01-01 00:00:00', retain_last => 1")
