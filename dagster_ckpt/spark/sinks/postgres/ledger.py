"""The bookkeeping of a sink in its database: which start may write, and which batches count.

One row for each sink, in the table ``dagster_ckpt_sinks`` beside the sink's table. Whoever writes or rolls back locks
that row first, compares it, and changes it in the transaction of the rows themselves. So of two runs that believe that
the job is theirs, one waits for the other, and then finds that the row names another start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from dagster_ckpt.spark.sinks.postgres.database import LEDGER, Table

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["Entry", "Ledger"]

_CREATE = """
    CREATE TABLE IF NOT EXISTS {ledger} (
        sink text PRIMARY KEY, job_id text NOT NULL, epoch bigint NOT NULL, takeover bigint NOT NULL, start text,
        batch bigint NOT NULL, line text NOT NULL, pruned bigint NOT NULL DEFAULT -1, written_at timestamptz NOT NULL
    )
"""
_LOOK = "SELECT job_id, epoch, takeover, start, batch, line, pruned FROM {ledger} WHERE sink = %s"
_INSERT = """
    INSERT INTO {ledger} (sink, job_id, epoch, takeover, start, batch, line, written_at)
    VALUES (%(sink)s, %(job_id)s, %(epoch)s, %(takeover)s, %(start)s, %(batch)s, %(line)s, now())
    ON CONFLICT DO NOTHING
"""
_UPDATE = """
    UPDATE {ledger}
    SET job_id = %(job_id)s, epoch = %(epoch)s, takeover = %(takeover)s, start = %(start)s, batch = %(batch)s,
        line = %(line)s, pruned = least(pruned, %(batch)s), written_at = now()
    WHERE sink = %(sink)s
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of a sink.

    Attributes:
        job_id: the lineage that writes.
        epoch: the epoch of the newest start.
        takeover: how often a start has taken the sink over.
        start: the start that may write, ``None`` between its rollback and its first batch.
        batch: the newest batch in the table, -1 for none.
        line: the earlier starts whose batches count, each with the last batch, in order.
        pruned: rows up to this batch may have been deleted on purpose.
    """

    job_id: str
    epoch: int
    takeover: int
    start: str | None
    batch: int
    line: Sequence[tuple[str, int]]
    pruned: int = -1

    def starts(self) -> list[tuple[str, int]]:
        """Every start whose batches count, with the last of its batches."""
        last = self.line[-1][1] if self.line else -1
        own = [(self.start, self.batch)] if self.start is not None and self.batch > last else []
        return [*self.line, *own]

    def covers(self, start: str, batch: int) -> bool:
        """Whether what ``start`` wrote up to ``batch`` counts."""
        return any(name == start and batch <= last for name, last in self.starts())

    def until(self, batch: int) -> list[tuple[str, int]]:
        """The starts whose batches count after a rollback to ``batch``."""
        kept: list[tuple[str, int]] = []
        for name, last in self.starts():
            if batch < 0 or (kept and kept[-1][1] >= batch):
                break
            kept.append((name, min(last, batch)))
        return kept


class Ledger:
    """The entry of one sink.

    Args:
        table: the sink's table.
        patience: seconds after which PostgreSQL ends a session that holds the entry and says nothing.
    """

    def __init__(self, table: Table, patience: float) -> None:
        self._table = table
        self._patience = patience

    def read(self, connection: Connection) -> Entry | None:
        """The entry, ``None`` if there is none."""
        there = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
        if connection.execute(there, (self._table.schema, LEDGER)).fetchone() is None:
            return None
        return self._select(connection, _LOOK)

    @contextmanager
    def locked(self, connection: Connection) -> Iterator[Entry | None]:
        """A transaction that holds the entry; no other transaction can change it, or read it for a change."""
        with connection.transaction():
            # A client that is stopped in here holds the entry until PostgreSQL ends its session.
            idle = f"{int(self._patience * 1000)}ms"
            connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (idle,))
            # A batch that Spark has committed must survive a crash of PostgreSQL.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            yield self._select(connection, _LOOK + " FOR UPDATE")

    def create(self, connection: Connection) -> None:
        """Create the table of the ledger, if it is not there."""
        from psycopg import errors  # noqa: PLC0415 - an extra

        statement = self._table.statement(_CREATE)
        try:
            connection.execute(statement)
        except (errors.UniqueViolation, errors.DuplicateTable):  # another sink creates the table at this moment
            connection.execute(statement)

    def insert(self, connection: Connection, entry: Entry) -> bool:
        """Write the first entry; ``False`` if there is an entry."""
        return connection.execute(self._table.statement(_INSERT), self._values(entry)).rowcount == 1

    def update(self, connection: Connection, entry: Entry) -> None:
        """Write the entry; the transaction has :meth:`locked` it."""
        connection.execute(self._table.statement(_UPDATE), self._values(entry))

    def _select(self, connection: Connection, statement: LiteralString) -> Entry | None:
        row = connection.execute(self._table.statement(statement), (self._table.name,)).fetchone()
        if row is None:
            return None
        job_id, epoch, takeover, start, batch, line, pruned = row
        earlier = [(str(name), int(last)) for name, last in json.loads(line)]
        return Entry(job_id, epoch, takeover, start, batch, earlier, pruned)

    def _values(self, entry: Entry) -> Mapping[str, object]:
        return {
            "sink": self._table.name,
            "job_id": entry.job_id,
            "epoch": entry.epoch,
            "takeover": entry.takeover,
            "start": entry.start,
            "batch": entry.batch,
            "line": json.dumps(list(entry.line)),
        }
