"""The table that a sink writes to: connections, what can be wrong with the table, and the words for an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString, TypeAlias

from dagster_ckpt.errors import CheckpointError, CheckpointFailure, InvalidConfiguration
from dagster_ckpt.shown_text import first_line

if TYPE_CHECKING:
    from psycopg import Connection, Error, sql

__all__ = ["ENCODING", "FORGET", "LEDGER", "SIGNS_OF_LIFE", "Conninfo", "Database", "Table"]

#: The table of the bookkeeping, in the schema of the sink's table.
LEDGER = "dagster_ckpt_sinks"

#: How to reach the database: a connection string of libpq, or a function that makes one for each connection.
Conninfo: TypeAlias = str | Callable[[], str]

#: By default libpq waits for two hours for a server that is gone without a last packet. With these it waits for two
#: minutes. What the connection string says comes first.
SIGNS_OF_LIFE: Mapping[str, str | int | None] = {
    "keepalives_idle": 60,
    "keepalives_interval": 15,
    "keepalives_count": 4,
    "tcp_user_timeout": 120_000,
}

#: What every connection speaks. By default PGCLIENTENCODING or the database chooses, and the copies are UTF-8 anyway.
ENCODING: Mapping[str, str] = {"client_encoding": "UTF8"}

_KINDS_OF_TABLE = ("r", "p")
_INTEGERS = ("integer", "bigint")


@dataclass(frozen=True, slots=True)
class Table:
    """A table by its name.

    Attributes:
        schema: the schema, which also holds the bookkeeping.
        name: the name in the schema.
        batch_column: the column with the number of the batch that wrote a row.
    """

    schema: str
    name: str
    batch_column: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def ledger(self) -> str:
        """The table of the bookkeeping, for people."""
        return f"{self.schema}.{LEDGER}"

    def statement(self, text: LiteralString, **names: sql.Composable | str) -> sql.Composed:
        """A statement with its names put in: ``{table}``, ``{ledger}``, ``{batch}`` for the column, and ``names``.

        A name that is given as text is a relation of the same schema.
        """
        from psycopg import sql  # noqa: PLC0415 - an extra

        def relation(name: sql.Composable | str) -> sql.Composable:
            return sql.Identifier(self.schema, name) if isinstance(name, str) else name

        known = {"table": relation(self.name), "ledger": relation(LEDGER), "batch": sql.Identifier(self.batch_column)}
        return sql.SQL(text).format(**known, **{key: relation(name) for key, name in names.items()})

    def shown(self, text: LiteralString) -> str:
        """A statement as :meth:`statement` makes it, for people to run; ``{schema}`` and ``{sink}`` are known, too."""
        from psycopg import sql  # noqa: PLC0415 - an extra

        names = {"schema": sql.Identifier(self.schema), "sink": sql.Literal(self.name)}
        return f"`{self.statement(text, **names).as_string().strip()}`"


class Database:
    """Connections to the database of one table.

    Args:
        conninfo: how to reach the database.
        table: the table.

    Raises:
        InvalidConfiguration: psycopg is not installed.
    """

    def __init__(self, conninfo: Conninfo, table: Table) -> None:
        try:
            import psycopg  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise InvalidConfiguration(
                f"A PostgresSink needs psycopg, which cannot be imported: {error}.",
                hint='Run `pip install "dagster-ckpt[postgres]"`.',
            ) from error
        self.conninfo = conninfo
        self.table = table

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection whose transactions see what others have committed before each statement.

        Raises:
            CheckpointFailure: the database failed; to try again can help.
            InvalidConfiguration: the role lacks a permission.
        """
        import psycopg  # noqa: PLC0415 - an extra

        where = self.conninfo if isinstance(self.conninfo, str) else self.conninfo()
        try:
            told = {**SIGNS_OF_LIFE, **psycopg.conninfo.conninfo_to_dict(where), **ENCODING}
            with psycopg.connect(psycopg.conninfo.make_conninfo("", **told), autocommit=True) as connection:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                yield connection
        except psycopg.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Error) -> CheckpointError:
        from psycopg import errors  # noqa: PLC0415 - an extra

        said = first_line(error)
        if isinstance(error, errors.InsufficientPrivilege):
            return InvalidConfiguration(f"PostgreSQL refuses the sink {self.table}: {said}.", hint=_grants(self.table))
        return CheckpointFailure(
            f"PostgreSQL failed for the sink {self.table}: {said}.",
            hint="The transaction was written whole or not at all; the restart finds out which. The job tries again by "
            "its restart strategy.",
        )

    def inspect(self, connection: Connection, error: type[CheckpointError] = InvalidConfiguration) -> None:
        """Check that the table can be written and rolled back.

        Args:
            connection: a connection to the database.
            error: the error for a table or column that is missing.

        Raises:
            InvalidConfiguration: the table cannot be a sink, or the role lacks a permission.
        """
        table = self.table
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            raise InvalidConfiguration(
                f"Database {connection.info.dbname!r} has the encoding SQL_ASCII, so PostgreSQL does not know which "
                "characters a text has.",
                hint="Write to a database with the encoding UTF8.",
            )
        found = connection.execute(_RELATION, (table.schema, table.name)).fetchone()
        if found is None:
            raise error(
                f"There is no table {table} in database {connection.info.dbname!r}.",
                hint=f'Create it with the columns of the query and a column "{table.batch_column}" bigint. {_PUT_BACK}',
            )
        oid, kind, persistence, secured, *granted = found
        if kind not in _KINDS_OF_TABLE:
            raise InvalidConfiguration(f"{table} is not a table.", hint="Write to a table, and read through a view.")
        if persistence != "p":
            raise InvalidConfiguration(
                f"The table {table} is unlogged, so a crash of PostgreSQL would empty it.",
                hint=f"Run {table.shown('ALTER TABLE {table} SET LOGGED')}.",
            )
        if not all(granted):
            lacks = [name for name, has in zip(_PRIVILEGES, granted, strict=True) if not has]
            raise InvalidConfiguration(
                f"Role {connection.info.user!r} lacks {', '.join(lacks)} for the sink {table}.", hint=_grants(table)
            )
        if secured:
            raise InvalidConfiguration(
                f"Row security hides rows of {table} from role {connection.info.user!r}, so a rollback would leave "
                "them.",
                hint="Give the job a role with BYPASSRLS.",
            )
        if (part := connection.execute(_UNSOUND, (oid,)).fetchone()) is not None:
            why, change = _WHY_UNSOUND[part[2]]
            raise InvalidConfiguration(
                f"The table {table} also holds the rows of {part[0]}.{part[1]}, which {why}.",
                hint=f"Run `ALTER TABLE ... {change}`, or give the sink another table.",
            )
        kind = self._columns(connection).get(table.batch_column)
        if kind not in _INTEGERS:
            is_what = "is missing" if kind is None else f"is of type {kind}"
            raise error(
                f'The column "{table.batch_column}" of {table}, with the batch of each row, {is_what}.',
                hint=f"Run {table.shown('ALTER TABLE {table} ADD COLUMN {batch} bigint')}, or name another column with "
                "PostgresSink(batch_column=...).",
            )

    def refuse_shared(self, connection: Connection) -> None:
        """Check that no other sink writes to a part of the table, or to a table that this one is a part of.

        Raises:
            InvalidConfiguration: one does, so a rollback of either would delete rows of both.
        """
        own = (self.table.schema, self.table.name, LEDGER)
        for schema, names in connection.execute(_RELATIVES, own).fetchall():
            of_schema = Table(schema, "", self.table.batch_column).statement(_SINK_AMONG)
            found = connection.execute(of_schema, (names,)).fetchone()
            if found is not None:
                other = Table(schema, found[0], self.table.batch_column)
                raise InvalidConfiguration(
                    f"{other}, to which another PostgresSink writes, shares rows with {self.table}.",
                    hint="A rollback of one would delete rows of the other. Give both jobs tables of their own; or, if "
                    f"no job writes to {other} any more, run {other.shown(FORGET)}.",
                )

    def check_columns(self, connection: Connection, written: Sequence[str]) -> None:
        """Check that the table has a column for each column of the query.

        Raises:
            InvalidConfiguration: the table lacks a column, or the query writes the column of the batch.
        """
        table = self.table
        if table.batch_column in written:
            raise InvalidConfiguration(
                f'The query has a column "{table.batch_column}", in which the sink {table} keeps the batch.',
                hint="Rename the query's column, or name another column with PostgresSink(batch_column=...).",
            )
        there = self._columns(connection)
        if missing := [name for name in written if name not in there]:
            raise InvalidConfiguration(
                f"The table {table} has no column {', '.join(map(repr, missing))}; it has {', '.join(there)}.",
                hint=f"Add the column by {table.shown('ALTER TABLE {table} ADD COLUMN ...')}, or select other columns "
                "in the query. Upper and lower case differ.",
            )

    def _columns(self, connection: Connection) -> dict[str, str]:
        """The type of each column by its name."""
        rows = connection.execute(_COLUMNS, (self.table.schema, self.table.name)).fetchall()
        return {str(name): str(kind) for name, kind in rows}


_PUT_BACK = "If the table was removed or changed by mistake, put it back as it was."
_PRIVILEGES = (
    "SELECT on the table",
    "INSERT on the table",
    "DELETE on the table",
    "CREATE on the schema",
    "USAGE on the schema",
)
#: Deletes a sink's entry from the ledger.
FORGET: LiteralString = "DELETE FROM {ledger} WHERE sink = {sink}"
_SINK_AMONG: LiteralString = "SELECT sink FROM {ledger} WHERE sink = ANY(%s) LIMIT 1"
_RELATION = """
    SELECT c.oid, c.relkind::text, c.relpersistence::text, row_security_active(c.oid),
        has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'INSERT'),
        has_table_privilege(c.oid, 'DELETE'),
        has_schema_privilege(n.oid, 'CREATE'), has_schema_privilege(n.oid, 'USAGE')
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
#: A table below the sink's, at any depth, whose rows a transaction of the sink cannot keep, or must not delete.
_UNSOUND = """
    WITH RECURSIVE below (part) AS (
        SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = %s
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN below ON i.inhparent = part
    )
    SELECT n.nspname, c.relname,
        CASE WHEN NOT c.relispartition THEN 'inherits' WHEN c.relkind = 'f' THEN 'foreign' ELSE 'unlogged' END
    FROM below JOIN pg_catalog.pg_class AS c ON c.oid = part JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE NOT c.relispartition OR c.relkind = 'f' OR c.relpersistence <> 'p' LIMIT 1
"""
_WHY_UNSOUND = {
    "inherits": ("inherits from it, so a rollback would delete rows of both", "NO INHERIT"),
    "foreign": ("is on another server, so a crash could leave half a batch", "DETACH PARTITION"),
    "unlogged": ("is unlogged, so a crash of PostgreSQL would empty it", "SET LOGGED"),
}
#: The tables that have a row of the sink's table, or whose rows it has, by schemas with a ledger that can be read.
_RELATIVES = """
    WITH RECURSIVE self (oid) AS (
        SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s
    ), below (oid) AS (
        SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN self ON i.inhparent = self.oid
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN below ON i.inhparent = below.oid
    ), above (oid) AS (
        SELECT i.inhparent FROM pg_catalog.pg_inherits AS i JOIN self ON i.inhrelid = self.oid
        UNION SELECT i.inhparent FROM pg_catalog.pg_inherits AS i JOIN above ON i.inhrelid = above.oid
    )
    SELECT n.nspname, array_agg(c.relname::text) FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_class AS l ON l.relnamespace = n.oid AND l.relname = %s AND l.relkind = 'r'
    WHERE (c.oid IN (SELECT oid FROM below) OR c.oid IN (SELECT oid FROM above))
        AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(l.oid, 'SELECT')
    GROUP BY n.nspname
"""
_COLUMNS = """
    SELECT a.attname, pg_catalog.format_type(a.atttypid, NULL)
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def _grants(table: Table) -> str:
    of_schema = table.shown("GRANT USAGE, CREATE ON SCHEMA {schema} TO ...")
    of_table = table.shown("GRANT SELECT, INSERT, DELETE ON {table} TO ...")
    return f"Run {of_schema} and {of_table}. The role also reads and writes {table.ledger}."
