"""A query that throws in a task, and restarts in the same process and Spark application."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows it by
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.failures.case import Case, case, first_commit
from benchmarks.failures.stream import CONF, PARALLELISM
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.config.recovery import RestoreRequest
from dagster_ckpt.config.restart import RestartStrategies
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.spark import (
    Event,
    Restarting,
    Started,
    StreamingJob,
    StreamingRun,
    start_session,
    supervise,
)
from dagster_ckpt.spark.events import SparkStarted
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

_THROWN = re.compile(r"thrown at (\d+)")


class InRun:
    """A stream of distinct ids into a Parquet file sink whose tasks throw every so many batches."""

    NAME = "recovery"
    NEW_PER_BATCH = 1_000

    def __init__(self, directory: Path, keys: int, restarts: int, every: int, delay: float) -> None:
        self._directory = directory
        self._keys = keys
        self._restarts = restarts
        self._every = every
        self._delay = delay
        self._attempts = 0
        self._catalog = CheckpointCatalog(open_filesystem(str(directory / "checkpoints")), self.NAME)
        self._times: dict[str, float] = {}
        self._spark: SparkSession | None = None

    def run(self, done: Callable[[Case], None]) -> None:
        """Drive the stream to its end, through every failure, and check that its output is exact.

        Args:
            done: gets each case at once.
        """
        ids = self._land()
        job = StreamingJob(
            name=self.NAME,
            query=self._query,
            session=self._session,
            config=CheckpointConfig(interval="1 s"),
            restart=RestartStrategies.fixed_delay_restart(self._restarts, timedelta(seconds=self._delay)),
            filesystem=self._catalog.filesystem,
            working_directory=self._directory / "live",
            deployment="benchmark",
            inline_threshold=DEFAULT_INLINE_THRESHOLD,
        )

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            def seen(event: Event) -> None:
                self._note_time(event)
                emit(event)

            return StreamingRun(
                job, run_id=str(uuid.uuid4()), request=RestoreRequest(), series=None, clock=SystemClock(), emit=seen
            )

        try:
            result = supervise(start, partial(self._watch, done))
        finally:
            if self._spark is not None:
                self._spark.stop()
        if result.status is not JobStatus.FINISHED:
            raise RuntimeError(f"The stream ended {result.status}")
        files = FileSink(self._directory / "output").committed_files()
        found = np.concatenate([pq.ParquetFile(file).read()["id"].to_numpy() for file in files])
        if not np.array_equal(np.sort(found), np.arange(ids)):
            raise RuntimeError(f"The output is not exact: {len(found)} rows, {ids} expected")

    def _note_time(self, event: Event) -> None:
        """On the thread that drives Spark: when it happened, before anything else is done about it."""
        now = time.time()
        if isinstance(event, Restarting):
            thrown = _THROWN.search(event.error)
            if thrown is None:
                raise RuntimeError(f"Another failure than the one asked for: {event.error}")
            self._times = {"thrown": int(thrown[1]) / 1000, "noticed": now}
        elif isinstance(event, SparkStarted):
            self._times["Spark started"] = now
        elif isinstance(event, Started):
            self._times["query started"] = now

    def _watch(self, done: Callable[[Case], None], event: Event) -> None:
        """On the main thread: after a restart, wait for the first new commit and make a case of it."""
        if not isinstance(event, Started) or event.epoch == 1:
            return
        times, restored = dict(self._times), event.restored
        claim, chosen = self._catalog.records.epochs.read_claim(event.epoch), self._catalog.choice()
        if restored is None or claim is None or chosen is None:
            raise RuntimeError("The restart began from nothing")
        committed = first_commit(CheckpointLocation(Path(chosen[1].live)), restored.batch)
        claimed = datetime.fromisoformat(claim.claimed_at).timestamp()
        found = case(
            times["thrown"],
            {
                "detection": times["noticed"],
                "decision": claimed,
                "process_start": claimed,
                "spark_start": times["Spark started"],
                "restore": times["Spark started"] + event.restore_seconds,
                "first_batch": committed,
            },
            {"query started": times["query started"], "first batch committed": committed},
            restored.batch,
        )
        done(found)

    def _query(self, session: SparkSession) -> DataStreamWriter:
        """Each id once. The attempt fails at a file of its own, so that its successor gets past it."""
        self._attempts += 1
        last = self._attempts > self._restarts
        limit = 2**31 - 1 if last else self._every * self._attempts
        now = F.expr("java_method('java.lang.System', 'currentTimeMillis')")
        rows = (
            session.readStream.schema("id LONG, file INT")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._directory / "input"))
        )
        checked = rows.select(
            F.when(F.col("file") >= limit, F.raise_error(F.concat(F.lit("thrown at "), now)).cast("long"))
            .otherwise(F.col("id"))
            .alias("id")
        )
        writer = checked.dropDuplicates(["id"]).writeStream.format("parquet")
        return writer.option("path", str(self._directory / "output")).trigger(availableNow=True)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = start_session(self.NAME, f"local[{PARALLELISM}]", CONF)
            self._spark.sparkContext.setLogLevel("OFF")  # every failure is wanted here and is shown as a case
        return self._spark

    def _land(self) -> int:
        """Write the input: the first file fills the state, each later one repeats some ids; how many ids there are."""
        directory = self._directory / "input"
        directory.mkdir(parents=True)
        ids = 0
        for number in range(self._every * (self._restarts + 1) + 1):
            new = self._keys if number == 0 else self.NEW_PER_BATCH
            first = max(ids - self.NEW_PER_BATCH, 0)
            table = pa.table(
                {
                    "id": np.arange(first, ids + new, dtype="int64"),
                    "file": np.full(ids + new - first, number, dtype="int32"),
                }
            )
            path = directory / f"{number:06}.parquet"
            pq.write_table(table, path)
            os.utime(path, (time.time() - 86_400 + number,) * 2)  # Spark takes files by modification time
            ids += new
        return ids
