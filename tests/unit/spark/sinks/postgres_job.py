"""A sink in PostgreSQL driven as a job drives it, without Spark: starts, batches, crashes, and starts that are paused.

The database is a real one, and so are the copies of the tasks. Only the rows come from memory.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import psycopg
import pyarrow as pa

from dagster_ckpt.errors import Fenced
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.sink import SinkRun
from dagster_ckpt.stored_json import Json
from tests.servers.postgres import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "public.delays"
NOWHERE = Path("nowhere")


class Rows:
    """A batch of Spark with an integer ``id`` and a text ``v``, in two partitions."""

    columns = ("id", "v")
    dtypes = (("id", "int"), ("v", "string"))

    def __init__(self, values: Iterable[tuple[int, str | None]]) -> None:
        every = list(values)
        self._partitions = [every[::2], every[1::2]]

    def mapInArrow(self, function: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Rows:  # noqa: N802
        assert schema == "task bigint, copied bigint"
        self._told = [
            (row["task"], row["copied"])
            for partition in self._partitions
            for batch in function(iter([_arrow(partition)]))
            for row in batch.to_pylist()
        ]
        return self

    def collect(self) -> list[tuple[int, int]]:
        return self._told


def _arrow(values: Sequence[tuple[int, str | None]]) -> pa.RecordBatch:
    ids, texts = pa.array([row[0] for row in values], pa.int32()), pa.array([row[1] for row in values], pa.string())
    return pa.RecordBatch.from_arrays([ids, texts], ["id", "v"])


def batch_rows(batch: int, label: str) -> list[tuple[int, str]]:
    """Three rows of a batch; ``label`` tells who wrote them."""
    return [(10 * batch + number, f"{label} {batch}") for number in range(3)]


class Died(BaseException):
    """The process is gone."""


class Steps:
    """Every statement, copy and end of a transaction of one thread, counted; one of them may do something else.

    Args:
        at: the step before which ``action`` is called.
        action: raises, or waits.
    """

    def __init__(self, at: int = -1, action: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._at, self._action = at, action
        self._thread = threading.get_ident()

    def step(self) -> None:
        if threading.get_ident() == self._thread:
            self.count += 1
            if self.count - 1 == self._at:
                self._action()

    @contextmanager
    def watching(self) -> Iterator[Steps]:
        self._thread = threading.get_ident()
        with (
            mock.patch.object(psycopg.Connection, "execute", self._before(psycopg.Connection.execute)),
            mock.patch.object(psycopg.Cursor, "copy", self._before(psycopg.Cursor.copy)),
            mock.patch.object(psycopg.Transaction, "__exit__", self._around(psycopg.Transaction.__exit__)),
        ):
            yield self

    def _before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(itself: Any, *arguments: Any, **named: Any) -> Any:
            self.step()
            return method(itself, *arguments, **named)

        return stepped

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(itself: Any, *arguments: Any) -> Any:
            self.step()
            done = method(itself, *arguments)
            self.step()
            return done

        return stepped


@dataclass
class Job:
    """A job with a sink, and what a reader of the sink must find.

    Attributes:
        reach: its database.
        root: a directory for its starts.
        lineage: the lineage of its starts.
        epoch: the epoch of its newest start.
        patience: of its sinks.
        table: that its sinks write to.
        claims: the epochs that the starts of the job have claimed.
    """

    reach: str
    root: Path
    lineage: str = "lineage"
    epoch: int = 0
    patience: float = 30.0
    table: str = TABLE
    claims: list[int] = field(default_factory=list)
    sink: PostgresSink = field(init=False)
    directory: Path = field(init=False)

    def new(self) -> PostgresSink:
        """The sink of a new start, not begun."""
        self.epoch = max([self.epoch, *self.claims]) + 1
        self.claims.append(self.epoch)
        self.directory = self.root / f"{self.epoch:06}-{uuid.uuid4().hex[:8]}"
        with mock.patch.object(PostgresSink, "patience", self.patience):
            self.sink = PostgresSink(self.reach, self.table)
        return self.sink

    def beside(self) -> Job:
        """The same job on another host."""
        return replace(self, root=self.root / "beside")

    def start(self, position: Mapping[str, Json] | None = None) -> Job:
        """A start from a checkpoint, or from nothing into an empty sink."""
        self.new()
        self.go(position)
        return self

    def go(self, position: Mapping[str, Json] | None = None, *, after: int | None = None) -> str:
        """What a start does after :meth:`new` and before its first batch; what its rollback said.

        Args:
            position: of the checkpoint that it restores.
            after: the batch of that checkpoint, if a repartition of the state has taken a number since the position.
        """
        said = ""
        if position is not None:
            self.sink.check(position, NOWHERE)
        if max(self.claims) > self.epoch:  # as where the choice is recorded
            raise Fenced("a newer run has taken the job over")
        self.sink.adopt(self.lineage)
        if position is not None:
            said = self.sink.rollback_to(position, NOWHERE, self.epoch)
        begins = position if position is None or after is None else {**position, "batch": after}
        self.sink.begin(SinkRun(self.directory, self.epoch, begins, lambda: None, lambda _: None))
        return said

    def write(self, batch: int, label: str) -> dict[str, Json]:
        """Write the rows of a batch; the position of a checkpoint after it."""
        return self.write_rows(batch, batch_rows(batch, label))

    def write_rows(self, batch: int, values: Iterable[tuple[int, str | None]]) -> dict[str, Json]:
        self.sink.write_batch(cast("DataFrame", Rows(values)), batch)
        return RecordedPositions(self.directory).pin_position(batch, lambda source, _: source)

    def found(self) -> Counter[tuple[Any, ...]]:
        """What an independent reader finds."""
        return Counter(rows(self.reach, f"SELECT id, v, batch FROM {self.table}"))

    def staged(self) -> list[str]:
        """The staging tables that are there."""
        found = rows(self.reach, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dagster_ckpt_staging%'")
        return [name for (name,) in found]


def expected(*written: tuple[int, str]) -> Counter[tuple[Any, ...]]:
    """The rows of these batches, each by whoever wrote it."""
    return Counter((*row, batch) for batch, label in written for row in batch_rows(batch, label))
