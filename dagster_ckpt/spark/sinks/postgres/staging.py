"""The rows of one batch on their way: tasks copy them into a staging table, and one statement moves them.

Each attempt of a task marks its rows with a number of its own, and tells it to the driver. The driver moves the rows
whose numbers Spark has handed it, one attempt for each partition; so rows of an attempt that Spark has repeated, or of
a task that was declared dead, are left behind.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, LiteralString

from dagster_ckpt.errors import CheckpointFailure, InvalidConfiguration
from dagster_ckpt.spark.sinks.postgres.database import ENCODING, SIGNS_OF_LIFE, Conninfo, Database, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import Connection, sql
    from pyspark.sql import DataFrame

__all__ = ["Staging", "copying", "sweep"]

_log = logging.getLogger(__name__)

_CREATE = (
    "CREATE UNLOGGED TABLE {staging} AS SELECT {columns}, 0::bigint AS dagster_ckpt_task FROM {table} WITH NO DATA"
)
_COPY = "COPY {staging} ({columns}, dagster_ckpt_task) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
_MOVE = """
    INSERT INTO {table} ({columns}, {batch})
    SELECT {columns}, %s FROM {staging} WHERE dagster_ckpt_task = ANY(%s)
"""
_COPIED = "task bigint, copied bigint"
#: Spark's types that have a text PostgreSQL reads; the words before a bracket.
_PLAIN = frozenset(
    (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "varchar", "char"),
        *("date", "timestamp", "timestamp_ntz", "binary"),
    )
)
#: How long a table that a task still holds is waited for.
_WAIT_TO_DROP = "2s"


class Staging:
    """The staging table of one batch. If the batch fails, the next start of the job drops the table.

    Args:
        database: the database of the sink.
        epoch: the epoch of the start.
        rows: the batch.

    Raises:
        InvalidConfiguration: a column is of a type without a text that PostgreSQL reads.
    """

    def __init__(self, database: Database, epoch: int, rows: DataFrame) -> None:
        from psycopg import sql  # noqa: PLC0415 - an extra

        self._database = database
        self._columns = sql.SQL(", ").join(map(sql.Identifier, rows.columns))
        self._rows = rows
        for name, kind in rows.dtypes:
            if kind.partition("(")[0] not in _PLAIN or "%" in name:
                raise InvalidConfiguration(
                    f"A PostgresSink does not write the column {name!r} of type {kind}.",
                    hint="Select to_json() of a nested column and write it to a column of type jsonb, or select its "
                    "fields; rename a column with a percent sign.",
                )
        self._name = f"{_prefix(database.table)}{epoch}_{secrets.token_hex(4)}"

    def create(self, connection: Connection) -> None:
        """Create the table."""
        # Unlogged: rows that PostgreSQL loses in a crash are missed when they are counted, and the batch runs again.
        connection.execute(self._statement(_CREATE))

    def fill(self) -> Sequence[tuple[int, int]]:
        """Have Spark copy the rows into the table; the number and the rows of each task."""
        copy = copying(self._database.conninfo, self._statement(_COPY).as_string())
        return [(row[0], row[1]) for row in self._rows.mapInArrow(copy, _COPIED).collect()]

    def move(self, connection: Connection, copied: Sequence[tuple[int, int]], batch: int) -> None:
        """Move the rows into the sink's table, in the caller's transaction.

        Raises:
            CheckpointFailure: other rows arrived than were copied.
        """
        sent = sum(count for _, count in copied)
        if not sent:
            return
        moved = connection.execute(self._statement(_MOVE), (batch, [task for task, _ in copied])).rowcount
        if moved != sent:
            raise CheckpointFailure(
                f"Batch {batch} has {sent} rows, and {moved} of them arrived in {self._database.table}.",
                hint="PostgreSQL was restarted in between, or a trigger or a rule of the table drops rows. The batch "
                "was not written, and runs again.",
            )

    def drop(self, connection: Connection) -> None:
        """Drop the table, if no task holds it; else a later start does."""
        _drop(connection, self._database.table, self._name)

    def _statement(self, text: LiteralString) -> sql.Composed:
        return self._database.table.statement(text, staging=self._name, columns=self._columns)


def copying(conninfo: Conninfo, statement: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that copies a partition in a transaction of its own, and tells the number and the count of the rows.

    The function imports all it needs by itself: Spark's workers need psycopg and PyArrow, and not this package.

    Args:
        conninfo: how to reach the database.
        statement: a ``COPY ... FROM STDIN`` in CSV and UTF-8 of the columns and the number of the task.
    """
    defaults, encoding = dict(SIGNS_OF_LIFE), dict(ENCODING)

    def copy_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import secrets  # noqa: PLC0415

        import psycopg  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import csv  # noqa: PLC0415

        def as_text(column: pa.Array) -> pa.Array:
            if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
                texts = [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
                return pa.array(texts, pa.string())
            if pa.types.is_timestamp(column.type) and column.type.tz is not None:
                return column.cast(pa.timestamp("us", "UTC"))
            return column

        task, copied = secrets.randbits(62), 0
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is not None:
            where = conninfo if isinstance(conninfo, str) else conninfo()
            told = {**defaults, **psycopg.conninfo.conninfo_to_dict(where), **encoding}
            known = psycopg.conninfo.make_conninfo("", **told)
            options = csv.WriteOptions(include_header=False)
            with psycopg.connect(known) as connection, connection.cursor().copy(statement) as copy:
                while first is not None:
                    count = first.num_rows
                    numbers = pa.repeat(task, count)
                    names = [str(at) for at in range(first.num_columns + 1)]
                    columns = [*map(as_text, first.columns), numbers]
                    text = pa.BufferOutputStream()
                    csv.write_csv(pa.RecordBatch.from_arrays(columns, names), text, options)
                    copy.write(memoryview(text.getvalue()))
                    copied += count
                    first = next(filled, None)
        yield pa.RecordBatch.from_pydict({"task": [task], "copied": [copied]})

    return copy_partition


def sweep(connection: Connection, table: Table) -> None:
    """Drop the staging tables that earlier starts of a sink have left."""
    found = connection.execute(
        "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)",
        (table.schema, _prefix(table)),
    ).fetchall()
    for (name,) in found:
        _drop(connection, table, name)


def _prefix(table: Table) -> str:
    """The beginning of the names of a sink's staging tables, short enough for PostgreSQL."""
    return f"dagster_ckpt_staging_{zlib.crc32(str(table).encode()):08x}_"


def _drop(connection: Connection, table: Table, name: str) -> None:
    import psycopg  # noqa: PLC0415 - an extra

    try:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (_WAIT_TO_DROP,))
            connection.execute(table.statement("DROP TABLE IF EXISTS {staging}", staging=name))
    except psycopg.Error as error:
        _log.warning(
            "The staging table %s.%s is still there, and the next start drops it: %s", table.schema, name, error
        )
