"""Streaming queries of the tests, and running them: live with captures, and again from a snapshot."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster_ckpt.errors import CaptureIncomplete
from dagster_ckpt.spark.capture.from_disk import capture
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.prepare import prepare_location

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from dagster_ckpt.checkpoint.format.snapshot import Snapshot

SCHEMA = "k int, id int, ts timestamp, v int"
Output: TypeAlias = dict[int, list[tuple[Any, ...]]]
Query: TypeAlias = "Callable[[Callable[[], DataFrame]], DataFrame]"

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PREFIX = "spark.sql.streaming.stateStore"
_ROCKS = {f"{_PREFIX}.providerClass": _ROCKSDB}
_CHANGELOG = {f"{_PREFIX}.rocksdb.changelogCheckpointing.enabled": "true"}
_V2 = {f"{_PREFIX}.checkpointFormatVersion": "2"}

VARIANTS: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocks": _ROCKS,
    "rocks+changelog": _ROCKS | _CHANGELOG,
    "rocks-v2": _ROCKS | _V2,
    "rocks-v2+changelog": _ROCKS | _CHANGELOG | _V2,
}

#: Spark deletes as eagerly as it can, so that a capture races with it at every batch.
EAGER = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    f"{_PREFIX}.minDeltasForSnapshot": "3",
    f"{_PREFIX}.rocksdb.ratioExtraSpaceAllowedInCheckpoint": "0",
    f"{_PREFIX}.ratioExtraSpaceAllowedInCheckpoint": "0",
}


def _stateless(read: Callable[[], DataFrame]) -> DataFrame:
    return read().selectExpr("k", "id", "v")


def _aggregation(read: Callable[[], DataFrame]) -> DataFrame:
    return read().groupBy("k").agg({"id": "count", "v": "sum"})


def _count(read: Callable[[], DataFrame]) -> DataFrame:
    return read().groupBy().agg({"id": "count", "v": "sum"})


def _deduplication(read: Callable[[], DataFrame]) -> DataFrame:
    return read().dropDuplicates(["id"])


def _join(read: Callable[[], DataFrame]) -> DataFrame:
    left = read().withWatermark("ts", "5 minutes")
    right = read().withWatermark("ts", "5 minutes").selectExpr("id AS rid", "ts AS rts", "v AS rv")
    return left.join(right, _expr("id = rid AND rts BETWEEN ts - INTERVAL 3 MINUTES AND ts"))


def _chained(read: Callable[[], DataFrame]) -> DataFrame:
    from pyspark.sql import functions  # noqa: PLC0415

    unique = read().withWatermark("ts", "2 minutes").dropDuplicatesWithinWatermark(["id"])
    windows = unique.groupBy(functions.window("ts", "2 minutes")).agg({"v": "sum", "id": "count"})
    return windows.selectExpr("window.start", "window.end", "`sum(v)`", "`count(id)`")


def _with_state(read: Callable[[], DataFrame]) -> DataFrame:
    def running(key: tuple[int], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas  # noqa: PLC0415, ICN001 - on the worker

        total = state.get[0] if state.exists else 0
        total += sum(int(rows["v"].sum()) for rows in batches)
        state.update((total,))
        yield pandas.DataFrame({"k": [key[0]], "total": [total]})

    grouped = read().groupBy("k")
    return grouped.applyInPandasWithState(running, "k int, total bigint", "total bigint", "update", "NoTimeout")


def _transform_with_state(read: Callable[[], DataFrame]) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415

    class Running(StatefulProcessor):
        """A running total, and the ids seen as a list (a second column family)."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total bigint")
            self.seen = handle.getListState("seen", "id int")

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: Any,
            rows: Any,  # frames, but Spark's signature also allows Rows
            timerValues: Any,  # noqa: N803 - Spark's name
        ) -> Iterator[pd.DataFrame]:
            import pandas  # noqa: PLC0415, ICN001 - on the worker

            stored = self.total.get()
            total = stored[0] if stored else 0
            for frame in rows:
                total += int(frame["v"].sum())
                for number in frame["id"]:
                    self.seen.appendValue((int(number),))
            self.total.update((total,))
            yield pandas.DataFrame({"k": [key[0]], "total": [total], "seen": [len(list(self.seen.get()))]})

        def close(self) -> None:
            pass

    grouped = read().groupBy("k")
    return grouped.transformWithStateInPandas(Running(), "k int, total bigint, seen int", "Update", "None")


def _expr(text: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.expr(text)


#: name -> (query, output mode)
QUERIES: dict[str, tuple[Query, str]] = {
    "stateless": (_stateless, "append"),
    "aggregation": (_aggregation, "update"),
    "count": (_count, "update"),
    "deduplication": (_deduplication, "append"),
    "join": (_join, "append"),
    "chained": (_chained, "append"),
    "withState": (_with_state, "update"),
    "transformWithState": (_transform_with_state, "update"),
}


def write_input(directory: Path, files: range) -> None:
    """One small JSON file per number: 8 rows, ids seen in the file before too, some rows late."""
    directory.mkdir(exist_ok=True)
    for number in files:
        rows = []
        for row in range(8):
            late = 6 if row == 7 and number > 6 else 0
            minute = max(0, number - late)
            when = f"2024-01-01T{minute // 60:02}:{minute % 60:02}:{row * 7:02}Z"
            rows.append(
                f'{{"k": {(number + row) % 5}, "id": {number * 5 + row}, "ts": "{when}", "v": {number * 10 + row}}}'
            )
        file = directory / f"{number:04}.json"
        hidden = directory / f".{number:04}.json"  # the source must never see half a file
        hidden.write_text("\n".join(rows), encoding="utf-8")
        _stamp(hidden, number)
        hidden.rename(file)


def _stamp(file: Path, number: int) -> None:
    """The source takes files in order of their time."""
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


@contextmanager
def confs(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Session confs for one query."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


@dataclass
class Job:
    """One query over one input directory."""

    spark: SparkSession
    query: str
    settings: Mapping[str, str]
    source: Path

    def run(
        self,
        location: Path,
        *,
        files_per_trigger: int = 1,
        before_batch: Callable[[int], None] | None = None,
    ) -> Output:
        """Run to the end of the input; what each batch put out, sorted."""
        output: Output = {}

        def collect(frame: DataFrame, batch: int) -> None:
            if before_batch is not None:
                before_batch(batch)
            output[batch] = sorted(tuple(row) for row in frame.collect())

        with confs(self.spark, self.settings):
            running = (
                self.writer(files_per_trigger)
                .foreachBatch(collect)
                .option("checkpointLocation", str(location))
                .trigger(availableNow=True)
                .start()
            )
            try:
                running.awaitTermination()
            finally:
                running.stop()
        return output

    def writer(self, files_per_trigger: int = 1) -> DataStreamWriter:
        """The query, not started and without a sink."""

        def read() -> DataFrame:
            stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
            return stream.json(str(self.source))

        plan, mode = QUERIES[self.query]
        return plan(read).writeStream.outputMode(mode)


@dataclass
class Captures:
    """Captures every batch it can see committed, from a thread of its own, while the query runs."""

    location: CheckpointLocation
    pins: Path
    take: Callable[[CheckpointLocation, int, Path], Snapshot] = capture
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._poll, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _poll(self, stop: threading.Event) -> None:
        attempts = 0
        try:
            while not stop.wait(0.003):
                batch = self.location.last_committed()
                if batch is None or batch in self.snapshots:
                    continue
                attempts += 1
                try:
                    began = time.perf_counter()
                    self.snapshots[batch] = self.take(self.location, batch, self.pins / f"{batch}-{attempts}")
                    self.seconds.append(time.perf_counter() - began)
                except CaptureIncomplete as error:
                    self.incomplete.append(str(error))
        except BaseException as error:
            self.failure = error


def materialize(snapshot: Snapshot, target: Path) -> Path:
    """Write a snapshot to a fresh directory as the protocol does; returns the new checkpointLocation."""
    for file in snapshot.files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.local, path)
    prepare_location(target / "checkpoint")
    return target / "checkpoint"


def discard(live: Path) -> None:
    """Take a live location away at once; Spark's maintenance thread may still be writing there."""
    gone = live.rename(live.with_name(f"{live.name}-gone"))
    shutil.rmtree(gone, ignore_errors=True)


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
