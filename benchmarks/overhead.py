"""What checkpoints cost a stateful query: plain Spark against dagster_ckpt, in blocks A B B A ...

    python benchmarks/overhead.py --output overhead.json

The query is ``SELECT k, COUNT(*), SUM(v) GROUP BY k`` in update mode over Parquet files into Spark's ``noop`` sink,
with its state in RocksDB (changelog, format v2). The state is filled once and captured once, and two processes go on
from that one checkpoint, each with a JVM of its own: A is plain Spark on a materialized copy, B is a supervised
``StreamingRun`` that restores it and takes a checkpoint each ``--interval`` seconds. They take turns: one works through
a block of batches while the other is stopped (SIGSTOP), so what else the machine does hits both alike. Both have the
same session configuration (made by the same function) and read the same files, one file of random keys to a batch, as
fast as they can. Time is taken from Spark's own progress reports, the same way for both.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows it by
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint  # noqa: E402
from dagster_ckpt.checkpoint.control.epochs import Choice, End  # noqa: E402
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata  # noqa: E402
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD  # noqa: E402
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore  # noqa: E402
from dagster_ckpt.clock import SystemClock, iso  # noqa: E402
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, CheckpointingMode, JobStatus  # noqa: E402
from dagster_ckpt.config.recovery import RestoreRequest  # noqa: E402
from dagster_ckpt.config.restart import RestartStrategies  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.hosts import this_host  # noqa: E402
from dagster_ckpt.spark import (  # noqa: E402
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    Started,
    StreamingJob,
    StreamingRun,
    start_session,
    streaming_session,
    supervise,
)
from dagster_ckpt.spark.capture.source import StreamingSource  # noqa: E402
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation  # noqa: E402
from dagster_ckpt.spark.files.prepare import prepare_location  # noqa: E402
from dagster_ckpt.testing.dagster_dev import wait_for  # noqa: E402

JOB = "overhead"
PLAIN, CHECKPOINTED = "A", "B"
#: Spark snapshots RocksDB every 10 versions at the earliest; after 20 there is one, not only changelogs.
FILL_BATCHES = 20
RETAINED = 10
#: Seconds that one block may take at most.
PATIENCE = 900.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line; the README says what each is for."""

    keys: int
    batches: int
    pairs: int
    interval: float
    partitions: int
    touched: float
    maintenance: float
    warm_up_blocks: int
    seed: int

    @property
    def rows(self) -> int:
        """Rows, and about as many different keys, per measured batch."""
        return max(round(self.keys * self.touched), 1)


@dataclass(slots=True)
class Checkpoint:
    """One checkpoint taken while batches ran."""

    batch: int
    files: int
    full_bytes: int
    new_bytes: int
    written_bytes: int
    align_ms: float
    pin_ms: float
    write_ms: float


@dataclass(slots=True)
class Block:
    """Some batches in a row of one kind and what they cost."""

    kind: str
    rows: int = 0
    seconds: float = -1.0
    rows_per_second: float = -1.0
    batch_ms_p50: float = -1.0
    batch_ms_p95: float = -1.0
    cpu_seconds: float = -1.0
    others_cpu_seconds: float = -1.0
    state_rows: int = -1
    last_batch: int = -1
    failed_checkpoints: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)


class Cpu:
    """CPU seconds of some processes, and of everything else on the machine, since it was made."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._own, self._machine = self._own_now(), self._machine_now()

    def since(self) -> tuple[float, float]:
        """Own and others' CPU seconds."""
        own = self._own_now() - self._own
        return own, max(self._machine_now() - self._machine - own, 0.0)

    def _own_now(self) -> float:
        return sum(process.cpu_times().user + process.cpu_times().system for process in self._processes)

    @staticmethod
    def _machine_now() -> float:
        times = psutil.cpu_times()._asdict()
        return float(sum(times.get(kind, 0) for kind in ("user", "nice", "system", "irq", "softirq", "steal")))


def start_spark(options: Options) -> SparkSession:
    """The session of every process of this benchmark."""
    spark = start_session(
        JOB,
        "local[2]",
        {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": str(options.partitions),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # Maintenance uploads RocksDB snapshots. At Spark's 60 s a short benchmark would see few, and new bytes
            # per checkpoint would look better than they are.
            "spark.sql.streaming.stateStore.maintenanceInterval": f"{round(options.maintenance * 1000)}ms",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            # How often a query without new files looks for some.
            "spark.sql.streaming.pollingDelay": "100ms",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def query_over(session: SparkSession, files: Path) -> DataStreamWriter:
    """The query, over the files of one directory."""
    rows = session.readStream.schema("k LONG, v LONG").option("maxFilesPerTrigger", 1).parquet(str(files))
    counts = rows.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
    return counts.writeStream.format("noop").outputMode("update").trigger(processingTime="0 seconds")


class Input:
    """Files of random keys. Spark takes files by modification time, so each is a second later."""

    def __init__(self, directory: Path, *, keys: int, rows: int, batches: int, seed: int) -> None:
        self._directory = directory
        self._keys, self._rows, self._batches = keys, rows, batches
        self._random = np.random.default_rng(seed)
        self._written = 0
        directory.mkdir(parents=True)

    def every_key_once(self, files: int) -> list[Path]:
        """So many files that together hold each key once."""
        return [self._write(keys) for keys in np.array_split(self._random.permutation(self._keys), files)]

    def block(self) -> list[Path]:
        """The files of a block, one per batch."""
        return [self._write(self._random.integers(0, self._keys, self._rows)) for _ in range(self._batches)]

    def _write(self, keys: np.ndarray[Any, Any]) -> Path:
        target = self._directory / f"{self._written:06}.parquet"
        table = pa.table({"k": keys.astype("int64"), "v": self._random.integers(0, 1_000_000, len(keys))})
        pq.write_table(table, target)
        modified = time.time() - 86_400 + self._written
        os.utime(target, (modified, modified))
        self._written += 1
        return target


class Feed:
    """The directory every query reads: one path, because Spark's source logs name files by it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "input"
        self.directory.mkdir(parents=True, exist_ok=True)

    def show(self, files: Sequence[Path]) -> None:
        """Let the query that runs now see ``files``."""
        for file in files:
            os.link(file, self.directory / file.name)

    def hide(self, files: Sequence[Path]) -> None:
        """Take them away again, before another query runs."""
        for file in files:
            (self.directory / file.name).unlink()


def fill(options: Options, directory: Path, files: Sequence[Path], answer: Connection) -> None:
    """Fill the state with every key and capture it with the library; a process of its own."""
    spark = start_spark(options)
    live = CheckpointLocation(directory / "fill" / "checkpoint")
    feed = Feed(directory)
    feed.show(files)
    writer = query_over(streaming_session(spark, None), feed.directory)
    query = writer.option("checkpointLocation", str(live.path)).start()

    def filled() -> bool:
        if (error := query.exception()) is not None:
            raise error
        if live.last_committed() != FILL_BATCHES - 1:
            return False
        partitions = [live.path / "state" / "0" / str(number) for number in range(options.partitions)]
        return all(list(partition.glob("*.zip")) for partition in partitions)

    wait_for(filled, "the state to be filled and snapshotted", seconds=PATIENCE)
    query.stop()
    metadata = _capture(live, directory, spark.version)
    spark.stop()
    shutil.rmtree(directory / "fill")
    # The last one stays: a query that goes on from here looks at the last batch's files once more.
    feed.hide(files[:-1])
    answer.send({"bytes": metadata.size, "files": len(metadata.files)})


def _capture(live: CheckpointLocation, directory: Path, spark_version: str) -> CheckpointMetadata:
    """The filled state as ``chk-1`` of a job that ended in order."""
    clock = SystemClock()
    catalog = CheckpointCatalog(open_filesystem(str(directory / "prepared")), JOB)
    catalog.filesystem.probe()
    run_id, now = uuid.uuid4().hex, iso(clock.time())
    claim = catalog.records.epochs.claim(
        token=uuid.uuid4().hex, series=None, run_id=run_id, host=this_host(), pid=os.getpid(), now=now
    )
    choice = Choice(run_id, None, 1, 0, str(live.path), this_host(), None, "the state is filled")
    catalog.records.epochs.record_choice(claim.epoch, choice)
    store = CompletedCheckpointStore(
        catalog,
        claim,
        job_id=run_id,
        first_id=1,
        restored_from=None,
        mode=CheckpointingMode.EXACTLY_ONCE.value,
        clock=clock,
    )
    pending = store.begin()
    snapshot = StreamingSource(live, directory / "pins", None, spark_version, lambda: None, clock).pin(FILL_BATCHES - 1)
    try:
        metadata = store.write(pending, snapshot)
    finally:
        snapshot.release()
    end = End(JobStatus.FINISHED.value, "filled", discarded=False, ended_at=iso(clock.time()))
    catalog.records.epochs.record_end(claim.epoch, end)
    return metadata


class Worker:
    """One kind's query in its own process: is told files, answers what working through them cost."""

    def __init__(self, kind: str, options: Options, directory: Path, orders: Connection) -> None:
        self._kind = kind
        self._options = options
        self._directory = directory / kind
        self._prepared = directory / "prepared"
        self._feed = Feed(directory)
        self._orders = orders
        self._seen = FILL_BATCHES - 1
        self._checkpoints: list[Checkpoint] = []
        self._failed = 0

    def run(self) -> None:
        """Serve blocks until there are no more orders."""
        spark = start_spark(self._options)
        if self._kind == PLAIN:
            self._plain(spark)
        else:
            self._checkpointed(spark)

    def _plain(self, spark: SparkSession) -> None:
        catalog = CheckpointCatalog(open_filesystem(str(self._prepared)), JOB)
        prepared = catalog.resolve("chk-1")
        materialize_checkpoint(catalog, prepared, self._directory / "live")
        live = self._directory / "live" / "checkpoint"
        prepare_location(live)
        writer = query_over(streaming_session(spark, prepared.facts), self._feed.directory)
        query = writer.queryName(JOB).option("checkpointLocation", str(live)).start()
        self._serve(query, live)
        spark.stop()

    def _checkpointed(self, spark: SparkSession) -> None:
        shutil.copytree(self._prepared, self._directory / "storage")
        storage = open_filesystem(str(self._directory / "storage"))
        catalog = CheckpointCatalog(storage, JOB)
        sessions: list[SparkSession] = []

        def query(session: SparkSession) -> DataStreamWriter:
            sessions.append(session)
            return query_over(session, self._feed.directory)

        job = StreamingJob(
            name=JOB,
            query=query,
            session=lambda: spark,
            config=CheckpointConfig(interval=f"{round(self._options.interval * 1000)} ms", num_retained=RETAINED),
            restart=RestartStrategies.no_restart(),
            filesystem=storage,
            working_directory=self._directory / "live",
            deployment="benchmark",
            inline_threshold=DEFAULT_INLINE_THRESHOLD,
        )

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            return StreamingRun(
                job, run_id=str(uuid.uuid4()), request=RestoreRequest(), series=None, clock=SystemClock(), emit=emit
            )

        def serve() -> None:
            live = next((self._directory / "live").glob("*/checkpoint"))
            (running,) = sessions[-1].streams.active
            self._serve(running, live)

        def seen(event: Event) -> None:
            self._note(event, catalog)
            if isinstance(event, Started):
                threading.Thread(target=serve, daemon=True).start()

        if supervise(start, seen).status is not JobStatus.FINISHED:
            raise RuntimeError("The checkpointed run did not end in order")

    def _serve(self, query: StreamingQuery, live: Path) -> None:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        location = CheckpointLocation(live)
        self._orders.send("ready")
        while (files := self._orders.recv()) is not None:
            self._checkpoints, self._failed = [], 0
            cpu = Cpu(processes)
            self._feed.show(files)
            last = self._seen + len(files)
            wait_for(partial(self._is_done, query, location, last), f"batch {last}", seconds=PATIENCE)
            own, others = cpu.since()
            self._feed.hide(files)
            block = Block(self._kind, cpu_seconds=own, others_cpu_seconds=others)
            self._measure(block, query, last)
            if self._kind == CHECKPOINTED:
                # Its cost is no part of the block: at one a second, as many were taken within as it takes seconds.
                wait_for(partial(self._has, last), f"the checkpoint of batch {last}", seconds=PATIENCE)
                block.checkpoints = [item for item in self._checkpoints if item.batch < last]
                block.failed_checkpoints = self._failed
            self._seen = last
            self._orders.send(block)
        query.stop()

    @staticmethod
    def _is_done(query: StreamingQuery, location: CheckpointLocation, batch: int) -> bool:
        if not query.isActive:
            raise query.exception() or RuntimeError("The query stopped")
        return location.last_committed() == batch

    def _has(self, batch: int) -> bool:
        return any(item.batch == batch for item in self._checkpoints)

    def _measure(self, block: Block, query: StreamingQuery, last: int) -> None:
        """Throughput from the first batch's trigger to the last one's commit, as Spark reports them."""

        def reports() -> list[dict[str, Any]]:
            if (error := query.exception()) is not None:
                raise error
            found = [dict(report) for report in query.recentProgress if report["numInputRows"]]
            return [report for report in found if self._seen < report["batchId"] <= last]

        wait_for(lambda: len(reports()) == last - self._seen, f"the reports up to batch {last}", seconds=PATIENCE)
        measured = reports()
        durations = [float(report["batchDuration"]) for report in measured]
        block.rows = sum(int(report["numInputRows"]) for report in measured)
        block.seconds = _seconds(measured[-1]) + durations[-1] / 1000 - _seconds(measured[0])
        block.rows_per_second = block.rows / block.seconds
        block.batch_ms_p50, block.batch_ms_p95 = _percentile(durations, 50), _percentile(durations, 95)
        block.state_rows = sum(int(operator["numRowsTotal"]) for operator in measured[-1]["stateOperators"])
        block.last_batch = last
        if block.state_rows != self._options.keys or block.rows != self._options.batches * self._options.rows:
            raise RuntimeError(f"Not the work that was to be measured: {block.rows} rows, {block.state_rows} keys")

    def _note(self, event: Event, catalog: CheckpointCatalog) -> None:
        if isinstance(event, CheckpointFailed):
            self._failed += 1
        # The very last checkpoint is taken when the query has ended; it has no `align` and delays no batch.
        if isinstance(event, CheckpointCompleted) and "align" in event.metadata.timings_ms:
            metadata = event.metadata
            manifest = Path(catalog.pointer(metadata)) / "_metadata"
            inline = sum(len(file.inline) for file in metadata.files if file.inline is not None)
            self._checkpoints.append(
                Checkpoint(
                    batch=metadata.batch,
                    files=len(metadata.files),
                    full_bytes=metadata.size,
                    new_bytes=metadata.new_bytes,
                    written_bytes=metadata.new_bytes - inline + manifest.stat().st_size,
                    align_ms=metadata.timings_ms["align"],
                    pin_ms=metadata.timings_ms["pin"],
                    write_ms=metadata.timings_ms["write"],
                )
            )


class Turns:
    """A worker's process, which runs only while it has a block to work through.

    Args:
        target: the body of the process; it gets the arguments, and its end of the pipe that blocks go through.
        arguments: for it.
    """

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()
        self._all = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        self._pause()

    def block(self, files: Sequence[Path]) -> Any:
        """Let it work through ``files``; what it says of that."""
        self._go_on()
        self._orders.send(files)
        block = self._answer()
        self._pause()
        return block

    def stop(self) -> None:
        """End it in order."""
        self._go_on()
        self._orders.send(None)
        self._process.join(PATIENCE)

    def kill(self) -> None:
        """End it as it is."""
        for process in self._all:
            if process.is_running():
                process.kill()

    def _answer(self) -> Any:
        if not self._orders.poll(PATIENCE):
            raise TimeoutError("A worker did not answer")
        return self._orders.recv()

    def _pause(self) -> None:
        for process in self._all:
            process.suspend()

    def _go_on(self) -> None:
        for process in reversed(self._all):
            process.resume()


def work(kind: str, options: Options, directory: Path, orders: Connection) -> None:
    """The body of a worker's process."""
    Worker(kind, options, directory, orders).run()


def _seconds(report: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(report["timestamp"])).timestamp()


def _percentile(values: Sequence[float], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 3) if values else float("nan")


def student_t(probability: float, freedom: int) -> float:
    """The quantile of Student's t for a probability above one half, by Simpson's rule and bisection."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        points = np.linspace(0, middle, 20_001)
        density = scale * (1 + points**2 / freedom) ** (-(freedom + 1) / 2)
        weights = np.ones(len(points))
        weights[1:-1:2], weights[2:-1:2] = 4, 2
        below = 0.5 + float(density @ weights) * middle / 20_000 / 3
        low, high = (middle, high) if below < probability else (low, middle)
    return (low + high) / 2


def summarize(blocks: Sequence[Block]) -> dict[str, Any]:
    """The figures of the README. ``blocks`` are in pairs of A and B, in whichever order within a pair."""
    pairs = [sorted(blocks[index : index + 2], key=lambda block: block.kind) for index in range(0, len(blocks), 2)]
    ratios = [checkpointed.rows_per_second / plain.rows_per_second for plain, checkpointed in pairs]
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    bound = None
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        bound = round(math.exp(mean - student_t(0.95, len(logs) - 1) * error), 4)
    # In A B B A ... neighbours of one kind followed each other: what differs between them is noise.
    neighbours = [
        abs(math.log(second.rows_per_second / first.rows_per_second))
        for first, second in zip(blocks[1::2], blocks[2::2], strict=False)
        if first.kind == second.kind
    ]
    by_kind = {kind: [block for block in blocks if block.kind == kind] for kind in (PLAIN, CHECKPOINTED)}
    taken = [checkpoint for block in by_kind[CHECKPOINTED] for checkpoint in block.checkpoints]
    seconds = {kind: sum(block.seconds for block in of) for kind, of in by_kind.items()}
    summary: dict[str, Any] = {
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_geometric_mean": round(math.exp(mean), 4),
        "ratio_lower_95": bound,
        "ratio_lower_95_method": "one-sided, Student's t on the log ratios of the pairs",
        "noise_between_equal_neighbours_median": round(statistics.median(neighbours), 4) if neighbours else None,
        "rows_per_second_median": {
            kind: round(statistics.median(block.rows_per_second for block in of)) for kind, of in by_kind.items()
        },
        "cpu_seconds_mean": {
            kind: round(statistics.fmean(block.cpu_seconds for block in of), 2) for kind, of in by_kind.items()
        },
        "others_cpu_seconds_mean": round(statistics.fmean(block.others_cpu_seconds for block in blocks), 2),
        "measured_seconds": {kind: round(value, 1) for kind, value in seconds.items()},
        "checkpoints": len(taken),
        "failed_checkpoints": sum(block.failed_checkpoints for block in blocks),
    }
    if taken:
        summary |= _checkpoint_figures(taken)
    return summary


def _checkpoint_figures(taken: Sequence[Checkpoint]) -> dict[str, Any]:
    def spread(values: Sequence[float]) -> dict[str, float]:
        return {
            "p50": _percentile(values, 50),
            "p95": _percentile(values, 95),
            "max": round(max(values), 3),
            "mean": round(statistics.fmean(values), 3),
        }

    full = statistics.fmean(checkpoint.full_bytes for checkpoint in taken)
    new = [checkpoint.new_bytes for checkpoint in taken]
    return {
        "pin_ms": spread([checkpoint.pin_ms for checkpoint in taken]),
        "align_ms": spread([checkpoint.align_ms for checkpoint in taken]),
        "write_ms": spread([checkpoint.write_ms for checkpoint in taken]),
        "files_median": statistics.median(checkpoint.files for checkpoint in taken),
        "full_copy_bytes_mean": round(full),
        "new_bytes": spread(new),
        "new_bytes_percent_of_full_copy": {
            "median": round(100 * statistics.median(new) / full, 2),
            "mean": round(100 * statistics.fmean(new) / full, 2),
        },
        "written_with_manifest_bytes_mean": round(statistics.fmean(checkpoint.written_bytes for checkpoint in taken)),
        "new_bytes_total": sum(new),
    }


def _say_block(number: int | str, block: Block) -> None:
    new = statistics.fmean(item.new_bytes for item in block.checkpoints) if block.checkpoints else 0
    pin = max((item.pin_ms for item in block.checkpoints), default=math.nan)
    print(
        f"{number:>4} {block.kind} {block.rows_per_second:>10,.0f} {block.seconds:>8.1f} {block.batch_ms_p50:>8.0f} "
        f"{block.batch_ms_p95:>8.0f} {block.cpu_seconds:>7.1f} {block.others_cpu_seconds:>7.1f} "
        f"{len(block.checkpoints):>5} {pin:>8.1f} {new / 1e6:>8.2f}",
        flush=True,
    )


def _say_summary(summary: Mapping[str, Any]) -> None:
    print()
    for name, value in summary.items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(
                f"{key} {part:,}" if isinstance(part, int | float) else f"{key} {part}" for key, part in value.items()
            )
        print(f"{name.replace('_', ' '):<40} {shown}")


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of state")
    parser.add_argument("--batches", type=int, default=3, help="batches per block")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of one plain and one checkpointed block")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--partitions", type=int, default=2, help="state partitions")
    parser.add_argument("--touched", type=float, default=0.01, help="rows per batch as a share of the keys")
    parser.add_argument("--maintenance", type=float, default=10.0, help="seconds between Spark's state maintenance")
    parser.add_argument("--warm-up-blocks", type=int, default=3, help="blocks of each kind before the pairs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "overhead", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every block; default: overhead.json in the directory")
    arguments = vars(parser.parse_args())
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "overhead.json").absolute()
    options = Options(**arguments)
    # So that no stopped process outlives this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    prepared, blocks = measure(options, directory)
    summary = {**summarize(blocks), "minutes": round((time.monotonic() - began) / 60, 1)}
    _say_summary(summary)
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "parameters": asdict(options),
        "prepared": prepared,
        "summary": summary,
        "blocks": [asdict(block) for block in blocks],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


def measure(options: Options, directory: Path) -> tuple[dict[str, int], list[Block]]:
    """Fill the state, then blocks A B B A ...; what was filled, and the blocks."""
    context = multiprocessing.get_context("spawn")
    staged = Input(
        directory / "files", keys=options.keys, rows=options.rows, batches=options.batches, seed=options.seed
    )
    ours, theirs = context.Pipe(duplex=False)
    filling = context.Process(target=fill, args=(options, directory, staged.every_key_once(FILL_BATCHES), theirs))
    filling.start()
    theirs.close()
    prepared: dict[str, int] = ours.recv()
    filling.join()
    print(
        f"{options.keys:,} keys in {prepared['files']} files, {prepared['bytes']:,} bytes; blocks of "
        f"{options.batches} batches of {options.rows:,} rows\n\n"
        " block    rows/s  seconds  p50 ms   p95 ms   cpu s  others  chks  max pin   new MB",
        flush=True,
    )
    workers: dict[str, Turns] = {}
    blocks: list[Block] = []
    try:
        for kind in (PLAIN, CHECKPOINTED):
            workers[kind] = Turns(work, kind, options, directory)
        for _ in range(options.warm_up_blocks):
            files = staged.block()
            for worker in workers.values():
                _say_block("warm", worker.block(files))
        for pair in range(options.pairs):
            files = staged.block()
            for kind in (PLAIN, CHECKPOINTED) if pair % 2 == 0 else (CHECKPOINTED, PLAIN):
                blocks.append(workers[kind].block(files))
                _say_block(len(blocks), blocks[-1])
            for file in files:
                file.unlink()
        for worker in workers.values():
            worker.stop()
    finally:
        for worker in workers.values():
            worker.kill()
    return prepared, blocks


if __name__ == "__main__":
    sys.exit(main())
