"""The queries and sinks of the rollback matrix, and what a query without any failure answers.

Rows come late on purpose, and whether a late row is dropped depends on where batches end. So the failure-free answer is
that of plain Spark over the same files in the same batches.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.parquet as pq

from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.releases import release_of
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from dagster_ckpt.spark.sinks.sink import sink_to
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from tests.helpers.local_spark import delta_conf, iceberg_conf
from tests.jobs.tables.iceberg import current, lake
from tests.servers.postgres import rows as table_rows

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

Row: TypeAlias = "tuple[Any, ...]"
Read: TypeAlias = "Callable[[], DataFrame]"
Started: TypeAlias = "tuple[DataStreamWriter, Callable[[DataStreamWriter], StreamingQuery]]"

#: Between two batches Spark may run one without data, if there is time for it, and which late rows are dropped depends
#: on that. Without these, the batches are told by their files.
NO_DATA = ("spark.sql.streaming.noDataMicroBatches.enabled", "false")
SCHEMA = "id int, k int, ts timestamp, v int"
#: Files with these numbers are an hour ahead: they close every window before them, and are not looked at themselves.
CLOSING = 60
CLOSING_FILES = 4
ROWS = 8


def rows_of(number: int) -> list[str]:
    """The rows of file ``number``: a minute of them, three ids seen before, two rows three minutes late."""
    minute = number if number < CLOSING else 60 + 10 * (number - CLOSING)
    rows = []
    for row in range(ROWS):
        when = max(0, minute - 3) if row in {2, 5} else minute
        key = number * 5 + row
        rows.append(
            {
                "id": key,
                "k": key % 3,
                "ts": f"2024-01-01T{when // 60:02}:{when % 60:02}:{row:02}Z",
                "v": key * 10 + number,
            }
        )
    return [json.dumps(row) for row in rows]


def land(directory: Path, number: int) -> Path:
    """Write file ``number``."""
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{number:04}.json"
    hidden.write_text("\n".join(rows_of(number)), encoding="utf-8")
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))  # the source takes files in this order
    file = directory / f"{number:04}.json"
    hidden.rename(file)
    return file


#: How often a job is made until its sources have read in step; a machine under load needs more than one.
TRIES = 5
JOIN = "stream-stream join"
#: Seconds; Spark begins at whole multiples of it.
TICK = 0.5
#: The time of the first row, and so of id 0.
_BEGIN = 1_704_067_200


def _stateless(read: Read) -> DataFrame:
    return read().selectExpr("id", "v", "cast(ts as long) AS at")


def _window(read: Read) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    grouped = read().withWatermark("ts", "1 minute").groupBy(f.window("ts", "1 minute"), "k")
    counted = grouped.agg(f.count("*").alias("n"), f.sum("v").alias("v"))
    return counted.selectExpr("k AS id", "v", "cast(window.start as long) AS at", "n")


def _deduplication(read: Read) -> DataFrame:
    # Which of two rows in one batch stays is up to the order in which Spark reads them, so only the id is looked at;
    # twelve seconds an id keep those of the closing files apart.
    return read().dropDuplicates(["id"]).selectExpr("id", "id AS v", f"{_BEGIN} + 12 * id AS at")


def _join(read: Read) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    left = read().withWatermark("ts", "1 minute")
    right = read().withWatermark("ts", "1 minute").selectExpr("id AS rid", "ts AS rts", "v AS rv")
    matching = f.expr("id = rid AND rts BETWEEN ts - INTERVAL 4 MINUTES AND ts + INTERVAL 4 MINUTES")
    return left.join(right, matching).selectExpr("id", "v", "cast(ts as long) AS at", "rv")


def _transform_with_state(read: Read) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - only where Spark is

    class Running(StatefulProcessor):
        """A running total by key, told with every batch: its answer shows where batches ended."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total bigint")

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: Any,
            rows: Any,
            timerValues: Any,  # noqa: N803 - Spark's name
        ) -> Iterator[pd.DataFrame]:
            import pandas  # noqa: PLC0415, ICN001 - on the worker

            stored = self.total.get()
            total = stored[0] if stored else 0
            latest = 0
            for frame in rows:
                total += int(frame["v"].sum())
                latest = max(latest, int(frame["at"].max()))
            self.total.update((total,))
            yield pandas.DataFrame({"id": [key[0]], "v": [total], "at": [latest]})

        def close(self) -> None:
            pass

    rows = read().selectExpr("k", "v", "cast(ts as long) AS at").groupBy("k")
    return rows.transformWithStateInPandas(Running(), "id int, v bigint, at bigint", "Append", "None")


QUERIES: Mapping[str, Callable[[Read], DataFrame]] = {
    "stateless": _stateless,
    "window aggregation": _window,
    "dropDuplicates": _deduplication,
    JOIN: _join,
    "transformWithStateInPandas": _transform_with_state,
}

_PREFIX = "spark.sql.streaming.stateStore"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

#: With the newest format of state that the running release of Spark keeps.
CHANGELOG = "RocksDB changelog"
BACKENDS: Mapping[str, Mapping[str, str]] = {
    "HDFSBacked": {f"{_PREFIX}.providerClass": _HDFS, f"{_PREFIX}.checkpointFormatVersion": "1"},
    "RocksDB": {
        f"{_PREFIX}.providerClass": _ROCKSDB,
        f"{_PREFIX}.rocksdb.changelogCheckpointing.enabled": "false",
        f"{_PREFIX}.checkpointFormatVersion": "1",
    },
    CHANGELOG: {
        f"{_PREFIX}.providerClass": _ROCKSDB,
        f"{_PREFIX}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{_PREFIX}.checkpointFormatVersion": str(max(release_of(version("pyspark")).formats.state)),
    },
}

FILE, TRANSACTIONAL = "file", "transactional"
FOREACH_BATCH, REPLACING = "foreachBatch, with rollback", "foreachBatch, replacing"
SINKS = (FILE, TRANSACTIONAL, FOREACH_BATCH, REPLACING)
#: Whoever writes to it puts the way to the database into a file beside the directory.
POSTGRES = "PostgreSQL"
DELTA, ICEBERG = "Delta table", "Iceberg table"


def table_sinks() -> tuple[str, ...]:
    """The sinks that write tables, as far as there are any for the running release of Spark."""
    return (POSTGRES, *([DELTA] if delta_conf() else []), *([ICEBERG] if iceberg_conf() else []))


def rescaled_tables() -> tuple[str, ...]:
    """Those of :func:`table_sinks`, where the running release of Spark repartitions state."""
    from pyspark import __version__ as release  # noqa: PLC0415 - tests without Spark do not pay for the import

    return table_sinks() if release_of(release).repartitions_state else ()


@dataclass(frozen=True)
class Target:
    """A sink in a directory, and what is in it.

    Attributes:
        kind: one of :data:`SINKS` or :func:`table_sinks`.
        path: its directory.
    """

    kind: str
    path: Path

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """A writer to it, with what this library offers for its kind."""
        if self.kind == FILE:
            return rows.writeStream.format("parquet").option("path", str(self.path))
        if self.kind == TRANSACTIONAL:
            return sink_to(rows, TransactionalFileSink(self.path))
        if self.kind == POSTGRES:
            return sink_to(rows, PostgresSink(self.reach.read_text(), "rows"))
        if self.kind == DELTA:
            return sink_to(rows, DeltaSink(self.path))
        if self.kind == ICEBERG:
            return sink_to(rows, IcebergSink(f"{lake(rows.sparkSession, self.path)}.db.out"))
        if self.kind == FOREACH_BATCH:
            return sink_to(rows, ForeachBatchSink("rows", self._append, rollback_to=self._remove_after))
        return sink_to(rows, ForeachBatchSink("rows", self.replace))

    @property
    def reach(self) -> Path:
        """The file that tells how to reach the database."""
        return self.path.with_name("postgres")

    def plain(self, rows: DataFrame) -> Started:
        """A writer to it by Spark alone, and how it is started."""
        if self.kind == ICEBERG:
            table = f"{lake(rows.sparkSession, self.path)}.db.out"
            columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
            rows.sparkSession.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING iceberg")
            return rows.writeStream.format("iceberg"), lambda writer: writer.toTable(table)
        if self.kind in {FILE, DELTA}:
            name = "parquet" if self.kind == FILE else "delta"
            writer = rows.writeStream.format(name).option("path", str(self.path))
        else:
            writer = rows.writeStream.foreachBatch(self._append if self.kind == FOREACH_BATCH else self.replace)
        return writer, lambda writer: writer.start()

    def rows(self) -> Counter[Row]:
        """What a reader who knows nothing of checkpoints finds, without the closing files' rows."""
        if self.kind in {FILE, TRANSACTIONAL}:
            files = [
                file
                for file in self.path.rglob("*.parquet")
                if not any(part.startswith(("_", ".")) for part in file.relative_to(self.path).parts)
            ]
            found: Iterator[Row] = (row for file in files for row in _of_arrow(pq.ParquetFile(file).read()))
        elif self.kind == POSTGRES:
            found = (row[:-1] for row in table_rows(self.reach.read_text(), "TABLE rows"))  # the last is the batch
        elif self.kind == DELTA:
            found = _of_arrow(_delta(self.path))
        elif self.kind == ICEBERG:
            found = _of_arrow(current(self.path).scan().to_arrow())
        else:
            found = (tuple(row) for file in self.path.glob("*.json") for row in json.loads(file.read_text()))
        return relevant(found)

    def _append(self, rows: DataFrame, batch: int) -> None:
        """Not idempotent: written twice, rows are there twice."""
        self._write(rows, f"{batch}-{uuid.uuid4().hex}.json")

    def replace(self, rows: DataFrame, batch: int) -> None:
        """Idempotent by batch id."""
        self._write(rows, f"{batch}.json")

    def _remove_after(self, batch: int, _: object) -> None:
        for file in self.path.glob("*.json"):
            if int(file.name.split("-")[0]) > batch:
                file.unlink()

    def _write(self, rows: DataFrame, name: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps([list(row) for row in rows.collect()])
        (self.path / f".{name}").write_text(text, encoding="utf-8")
        (self.path / f".{name}").rename(self.path / name)


def _of_arrow(table: Any) -> Iterator[Row]:
    return (tuple(row.values()) for row in table.to_pylist())


def _delta(path: Path) -> Any:
    import deltalake  # noqa: PLC0415 - only where Delta is

    return deltalake.DeltaTable(str(path)).to_pyarrow_table()


def relevant(rows: Iterator[Row]) -> Counter[Row]:
    """Rows whose time, the third value, is not that of a closing file."""
    first_hour = _BEGIN + 3600
    return Counter(row for row in rows if row[2] < first_hour - 180)


def paced(query: str, writer: DataStreamWriter) -> DataStreamWriter:
    """Let a query with two sources look for files at the beginning of each tick only."""
    return writer.trigger(processingTime=f"{TICK} seconds") if query == JOIN else writer


def between_ticks(query: str) -> None:
    """Wait until no source of a paced query is looking: in the middle of a tick."""
    if query == JOIN:
        time.sleep((0.6 * TICK - time.time()) % TICK)


def in_step(live: Path) -> bool:
    """Whether the sources of a query have read the same in each batch so far.

    Each side of a join lists the directory by itself. A file that lands in between is read by one of them a batch
    earlier than by the other, which is another question than a case asks.
    """
    location = CheckpointLocation(live)
    entries = [location.offsets(int(file.name)) for file in (live / "offsets").iterdir() if file.name.isdigit()]
    return all(len({json.dumps(entry.offset(source)) for source, _ in entry.sources}) == 1 for entry in entries)


def batches_of(sources: Path, source: Path) -> list[list[Path]]:
    """Which files of ``source`` were read together, by the logs below ``sources`` of a checkpointLocation."""
    found = []
    for log in sorted(sources.iterdir()):
        batches: dict[int, set[Path]] = {}
        for file in log.iterdir():
            if not file.name.startswith("."):
                for line in file.read_text(encoding="utf-8").splitlines()[1:]:
                    entry = json.loads(line)
                    batches.setdefault(entry["batchId"], set()).add(source / Path(entry["path"]).name)
        found.append([sorted(batches[number]) for number in sorted(batches)])
    assert all(other == found[0] for other in found)  # the two sides of a join read the same
    return found[0]


class FailureFree:
    """What plain Spark answers without a failure, by query and batches; each is computed once.

    Args:
        spark: a session.
        directory: for its files.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._known: dict[tuple[str, tuple[tuple[str, ...], ...]], Counter[Row]] = {}

    def answer(self, query: str, batches: Sequence[Sequence[Path]]) -> Counter[Row]:
        """The rows of ``query`` when each of ``batches`` (of input files) is one batch."""
        key = (query, tuple(tuple(file.name for file in batch) for batch in batches))
        if key not in self._known:
            self._known[key] = self._compute(query, batches)
        return self._known[key]

    def _compute(self, query: str, batches: Sequence[Sequence[Path]]) -> Counter[Row]:
        for _ in range(TRIES):
            root = self._directory / uuid.uuid4().hex
            found = self._run(query, batches, root)
            if in_step(root / "live"):
                shutil.rmtree(root)
                return relevant(iter(found))
        raise AssertionError(f"the two sides of {query} were out of step {TRIES} times")

    def _run(self, query: str, batches: Sequence[Sequence[Path]], root: Path) -> list[Row]:
        source = root / "in"
        (source / "none").mkdir(parents=True)
        found: list[Row] = []

        def collect(rows: DataFrame, _: int) -> None:
            found.extend(tuple(row) for row in rows.collect())

        session = self._spark.newSession()
        session.conf.set(*NO_DATA)
        rows = QUERIES[query](lambda: session.readStream.schema(SCHEMA).json(str(source / "*")))
        for key, value in BACKENDS["RocksDB"].items():
            session.conf.set(key, value)
        writer = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(root / "live"))
        running = paced(query, writer).start()
        try:
            for number, files in enumerate(batches):
                hidden = root / "next"
                hidden.mkdir()
                for file in files:
                    shutil.copy(file, hidden / file.name)
                between_ticks(query)
                hidden.rename(source / f"{number:04}")  # the source sees all of it at once
                running.processAllAvailable()
        finally:
            running.stop()
        return found
