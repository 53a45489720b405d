"""What checkpoints cost a stateful query: plain Spark against dagster_ckpt, in pairs A B B A ...

    python benchmarks/overhead.py --output overhead.json

The query is ``SELECT k, COUNT(*), SUM(v) GROUP BY k`` in update mode over Parquet files into Spark's ``noop`` sink,
with its state in RocksDB (changelog, format v2). The state is filled once, captured once, and every run goes on from
that one checkpoint in a fresh live location: A is plain Spark on a materialized copy, B is a supervised
``StreamingRun`` that restores it and takes a checkpoint each ``--interval`` seconds. Both have the same session
configuration (made by the same function) and read the same files, one file of random keys to a batch, as fast as
they can. Time is taken from Spark's own progress reports, the same way for both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
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

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.clock import SystemClock, iso  # noqa: E402
from dagster_ckpt.checkpoint.epochs import Choice, End  # noqa: E402
from dagster_ckpt.checkpoint.liveness import this_host  # noqa: E402
from dagster_ckpt.checkpoint.metadata import CheckpointMetadata  # noqa: E402
from dagster_ckpt.checkpoint.store import DEFAULT_INLINE_THRESHOLD, CompletedCheckpointStore  # noqa: E402
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, CheckpointingMode, JobStatus  # noqa: E402
from dagster_ckpt.config.restart import RestartStrategies  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation  # noqa: E402
from dagster_ckpt.spark.job import (  # noqa: E402
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    Started,
    StreamingJob,
)
from dagster_ckpt.spark.restore import prepare_location  # noqa: E402
from dagster_ckpt.spark.session import driver_jvm_pid, start_session, streaming_session  # noqa: E402
from dagster_ckpt.spark.streaming_run import StreamingRun  # noqa: E402
from dagster_ckpt.spark.streaming_source import StreamingSource  # noqa: E402
from dagster_ckpt.spark.supervisor import supervise  # noqa: E402
from dagster_ckpt.testing.dagster_dev import wait_for  # noqa: E402

JOB = "overhead"
PLAIN, CHECKPOINTED = "A", "B"
#: Spark snapshots RocksDB every 10 versions at the earliest; after 20 there is one, not only changelogs.
FILL_BATCHES = 20
#: Batches before the measured ones: the first loads the state, the next ones fill caches.
WARM_UP_BATCHES = 10
RETAINED = 10


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
    warm_up_runs: int
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
class Run:
    """One run of the query and what it cost."""

    kind: str
    load_before: float = -1.0
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
    """CPU seconds of this process and its JVM, and of everything else on the machine, since it was made."""

    def __init__(self, jvm: int | None) -> None:
        self._processes = [psutil.Process(), *([psutil.Process(jvm)] if jvm is not None else [])]
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


class Benchmark:
    """The prepared state and the runs that go on from it."""

    def __init__(self, options: Options, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._input = directory / "input"
        self._storage = directory / "prepared"
        self._clock = SystemClock()
        self._random = np.random.default_rng(options.seed)
        self._files = 0
        self._spark = start_session(
            JOB,
            "local[2]",
            {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "2g",
                "spark.sql.shuffle.partitions": str(options.partitions),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                # Maintenance uploads RocksDB snapshots. At Spark's 60 s a short run would see none, and new bytes
                # per checkpoint would look better than they are.
                "spark.sql.streaming.stateStore.maintenanceInterval": f"{round(options.maintenance * 1000)}ms",
                "spark.sql.streaming.numRecentProgressUpdates": "100000",
            },
        )
        self._spark.sparkContext.setLogLevel("ERROR")
        self._session: SparkSession = self._spark

    def stop(self) -> None:
        """Stop Spark."""
        self._spark.stop()

    def prepare(self) -> CheckpointMetadata:
        """Fill the state with every key, capture it with the library, and write the files to be measured."""
        options = self._options
        for keys in np.array_split(self._random.permutation(options.keys), FILL_BATCHES):
            self._write_input(keys)
        live = CheckpointLocation(self._directory / "fill" / "checkpoint")
        session = streaming_session(self._spark, None)
        writer = self._query(session).option("checkpointLocation", str(live.path))
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            wait_for(lambda: self._is_filled(query, live), "the state to be filled and snapshotted", seconds=600)
        finally:
            query.stop()
        metadata = self._capture(live)
        self._forget_state()
        shutil.rmtree(self._directory / "fill")
        for _ in range(WARM_UP_BATCHES + options.batches):
            self._write_input(self._random.integers(0, options.keys, options.rows))
        return metadata

    def run(self, kind: str) -> Run:
        """One run in a fresh directory, which is gone afterwards."""
        directory = self._directory / "run"
        shutil.rmtree(directory, ignore_errors=True)
        run = Run(kind)
        (self._plain if kind == PLAIN else self._checkpointed)(run, directory)
        self._forget_state()
        shutil.rmtree(directory)
        return run

    def _plain(self, run: Run, directory: Path) -> None:
        catalog = CheckpointCatalog(open_filesystem(str(self._storage)), JOB)
        prepared = catalog.resolve("chk-1")
        catalog.materialize(prepared, directory)
        live = directory / "checkpoint"
        prepare_location(live)
        self._settle(run)
        session = streaming_session(self._spark, prepared.facts)
        writer = self._query(session).queryName(JOB).option("checkpointLocation", str(live))
        cpu = self._cpu()
        query = writer.start()
        query.awaitTermination()
        run.cpu_seconds, run.others_cpu_seconds = cpu.since()
        self._measure(run, query)

    def _checkpointed(self, run: Run, directory: Path) -> None:
        shutil.copytree(self._storage, directory / "storage")
        storage = open_filesystem(str(directory / "storage"))
        catalog = CheckpointCatalog(storage, JOB)
        job = StreamingJob(
            name=JOB,
            query=self._query,
            session=lambda: self._spark,
            config=CheckpointConfig(interval=f"{round(self._options.interval * 1000)} ms", num_retained=RETAINED),
            restart=RestartStrategies.no_restart(),
            filesystem=storage,
            working_directory=directory / "live",
            deployment="benchmark",
            inline_threshold=DEFAULT_INLINE_THRESHOLD,
        )
        queries: list[StreamingQuery] = []
        cpus: list[Cpu] = []

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            def seen(event: Event) -> None:
                if isinstance(event, Started):
                    cpus.append(self._cpu())
                    queries.extend(self._session.streams.active)
                emit(event)

            return StreamingRun(
                job, run_id=str(uuid.uuid4()), restore_from="latest", series=None, clock=self._clock, emit=seen
            )

        self._settle(run)
        result = supervise(start, lambda event: _note(run, event, catalog))
        run.cpu_seconds, run.others_cpu_seconds = cpus[0].since()
        if result.status is not JobStatus.FINISHED:
            raise RuntimeError(f"The checkpointed run ended {result.status}")
        self._measure(run, queries[0])

    def _measure(self, run: Run, query: StreamingQuery) -> None:
        """Throughput over the measured batches, from the first one's trigger to the last one's commit."""
        if (error := query.exception()) is not None:
            raise error
        reports = [dict(report) for report in query.recentProgress if report["numInputRows"]]
        measured = reports[-self._options.batches :]
        expected = WARM_UP_BATCHES + self._options.batches
        if len(reports) != expected:
            raise RuntimeError(f"{len(reports)} batches with data instead of {expected}")
        durations = [float(report["batchDuration"]) for report in measured]
        run.rows = sum(int(report["numInputRows"]) for report in measured)
        run.seconds = _seconds(measured[-1]) + durations[-1] / 1000 - _seconds(measured[0])
        run.rows_per_second = run.rows / run.seconds
        run.batch_ms_p50, run.batch_ms_p95 = _percentile(durations, 50), _percentile(durations, 95)
        run.state_rows = sum(int(operator["numRowsTotal"]) for operator in measured[-1]["stateOperators"])
        run.last_batch = int(measured[-1]["batchId"])
        if run.state_rows != self._options.keys or run.rows != self._options.batches * self._options.rows:
            raise RuntimeError(f"Not the work that was to be measured: {run.rows} rows, {run.state_rows} keys")

    def _query(self, session: SparkSession) -> DataStreamWriter:
        self._session = session
        rows = session.readStream.schema("k LONG, v LONG").option("maxFilesPerTrigger", 1).parquet(str(self._input))
        counts = rows.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
        return counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)

    def _write_input(self, keys: np.ndarray[Any, Any]) -> None:
        """The next input file. Spark takes files by modification time, so each is a second later."""
        self._input.mkdir(parents=True, exist_ok=True)
        table = pa.table({"k": keys.astype("int64"), "v": self._random.integers(0, 1_000_000, len(keys))})
        hidden, target = self._input / ".next.parquet", self._input / f"{self._files:06}.parquet"
        pq.write_table(table, hidden)
        modified = time.time() - 86_400 + self._files
        os.utime(hidden, (modified, modified))
        hidden.replace(target)
        self._files += 1

    def _is_filled(self, query: StreamingQuery, live: CheckpointLocation) -> bool:
        if (error := query.exception()) is not None:
            raise error
        if live.last_committed() != FILL_BATCHES - 1:
            return False
        partitions = [live.path / "state" / "0" / str(number) for number in range(self._options.partitions)]
        return all(list(partition.glob("*.zip")) for partition in partitions)

    def _capture(self, live: CheckpointLocation) -> CheckpointMetadata:
        """The filled state as ``chk-1`` of a job that ended in order."""
        catalog = CheckpointCatalog(open_filesystem(str(self._storage)), JOB)
        catalog.filesystem.probe()
        run_id, now = uuid.uuid4().hex, iso(self._clock.time())
        claim = catalog.epochs.claim(
            token=uuid.uuid4().hex, series=None, run_id=run_id, host=this_host(), pid=os.getpid(), now=now
        )
        choice = Choice(run_id, None, 1, 0, str(live.path), this_host(), None, "the state is filled")
        catalog.epochs.record_choice(claim.epoch, choice)
        store = CompletedCheckpointStore(
            catalog,
            claim,
            job_id=run_id,
            first_id=1,
            restored_from=None,
            mode=CheckpointingMode.EXACTLY_ONCE.value,
            clock=self._clock,
        )
        source = StreamingSource(live, self._directory / "pins", None, self._spark.version, lambda: None)
        pending = store.begin()
        snapshot = source.pin(FILL_BATCHES - 1)
        try:
            metadata = store.write(pending, snapshot)
        finally:
            snapshot.release()
        end = End(JobStatus.FINISHED.value, "filled", discarded=False, ended_at=iso(self._clock.time()))
        catalog.epochs.record_end(claim.epoch, end)
        return metadata

    def _forget_state(self) -> None:
        """Unload every state store, so that each run begins with none, its maintenance at the same phase."""
        package = self._spark._jvm.org.apache.spark.sql.execution.streaming.state  # type: ignore[union-attr] # noqa: SLF001
        getattr(getattr(package, "StateStore$"), "MODULE$").stop()

    def _settle(self, run: Run) -> None:
        """What earlier runs left to the collector and the disk is not this run's cost."""
        self._spark._jvm.System.gc()  # type: ignore[union-attr] # noqa: SLF001
        os.sync()
        run.load_before = round(os.getloadavg()[0], 2)

    def _cpu(self) -> Cpu:
        return Cpu(driver_jvm_pid(self._spark))


def _note(run: Run, event: Event, catalog: CheckpointCatalog) -> None:
    if isinstance(event, CheckpointFailed):
        run.failed_checkpoints += 1
    # The last checkpoint is taken when the query has ended; it has no `align` and delays no batch.
    if isinstance(event, CheckpointCompleted) and "align" in event.metadata.timings_ms:
        metadata = event.metadata
        manifest = Path(catalog.pointer(metadata)) / "_metadata"
        inline = sum(len(file.inline) for file in metadata.files if file.inline is not None)
        run.checkpoints.append(
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


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of the README. ``runs`` are in pairs of A and B, in whichever order within a pair."""
    pairs = [sorted(runs[index : index + 2], key=lambda run: run.kind) for index in range(0, len(runs), 2)]
    ratios = [checkpointed.rows_per_second / plain.rows_per_second for plain, checkpointed in pairs]
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    bound = None
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        bound = round(math.exp(mean - student_t(0.95, len(logs) - 1) * error), 4)
    # In A B B A ... neighbours of one kind were run right after each other: what differs between them is noise.
    neighbours = [
        abs(math.log(second.rows_per_second / first.rows_per_second))
        for first, second in zip(runs[1::2], runs[2::2], strict=False)
        if first.kind == second.kind
    ]
    by_kind = {kind: [run for run in runs if run.kind == kind] for kind in (PLAIN, CHECKPOINTED)}
    taken = [checkpoint for run in by_kind[CHECKPOINTED] for checkpoint in run.checkpoints]
    seconds = {kind: sum(run.seconds for run in of) for kind, of in by_kind.items()}
    summary: dict[str, Any] = {
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_geometric_mean": round(math.exp(mean), 4),
        "ratio_lower_95": bound,
        "ratio_lower_95_method": "one-sided, Student's t on the log ratios of the pairs",
        "noise_between_equal_neighbours_median": round(statistics.median(neighbours), 4) if neighbours else None,
        "rows_per_second_median": {
            kind: round(statistics.median(run.rows_per_second for run in of)) for kind, of in by_kind.items()
        },
        "cpu_seconds_median": {
            kind: round(statistics.median(run.cpu_seconds for run in of), 2) for kind, of in by_kind.items()
        },
        "others_cpu_seconds_median": round(statistics.median(run.others_cpu_seconds for run in runs), 2),
        "measured_seconds": {kind: round(value, 1) for kind, value in seconds.items()},
        "checkpoints": len(taken),
        "failed_checkpoints": sum(run.failed_checkpoints for run in runs),
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


def _say_run(number: int | str, run: Run) -> None:
    new = statistics.fmean(item.new_bytes for item in run.checkpoints) if run.checkpoints else 0
    pin = _percentile([item.pin_ms for item in run.checkpoints], 95)
    print(
        f"{number:>4} {run.kind} {run.rows_per_second:>10,.0f} {run.seconds:>8.1f} {run.batch_ms_p50:>8.0f} "
        f"{run.batch_ms_p95:>8.0f} {run.cpu_seconds:>7.1f} {run.others_cpu_seconds:>7.1f} {run.load_before:>5.1f} "
        f"{len(run.checkpoints):>5} {pin:>8.1f} {new / 1e6:>8.2f}",
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
    parser.add_argument("--batches", type=int, default=80, help="measured batches per run, after 10 to warm up")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of one plain and one checkpointed run")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--partitions", type=int, default=2, help="state partitions")
    parser.add_argument("--touched", type=float, default=0.01, help="rows per batch as a share of the keys")
    parser.add_argument("--maintenance", type=float, default=10.0, help="seconds between Spark's state maintenance")
    parser.add_argument("--warm-up-runs", type=int, default=2, help="runs (A, B, A, ...) before the pairs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "overhead", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every run; default: overhead.json in the directory")
    arguments = vars(parser.parse_args())
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "overhead.json").absolute()
    options = Options(**arguments)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    benchmark = Benchmark(options, directory)
    runs: list[Run] = []
    try:
        prepared = benchmark.prepare()
        filled = {"bytes": prepared.size, "files": len(prepared.files), "seconds": round(time.monotonic() - began, 1)}
        print(
            f"{options.keys:,} keys in {filled['files']} files, {filled['bytes']:,} bytes, filled after "
            f"{filled['seconds']} s; {options.batches} batches of {options.rows:,} rows a run\n\n"
            " run      rows/s  seconds  p50 ms   p95 ms   cpu s  others  load  chks  pin p95   new MB",
            flush=True,
        )
        for number in range(options.warm_up_runs):
            _say_run("warm", benchmark.run(PLAIN if number % 2 == 0 else CHECKPOINTED))
        for pair in range(options.pairs):
            for kind in (PLAIN, CHECKPOINTED) if pair % 2 == 0 else (CHECKPOINTED, PLAIN):
                runs.append(benchmark.run(kind))
                _say_run(len(runs), runs[-1])
    finally:
        benchmark.stop()
    summary = {**summarize(runs), "minutes": round((time.monotonic() - began) / 60, 1)}
    _say_summary(summary)
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "parameters": asdict(options),
        "prepared": filled,
        "summary": summary,
        "runs": [asdict(run) for run in runs],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
