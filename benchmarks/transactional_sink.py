"""What a transactional file sink costs: Spark's own file sink against it, in pairs A B B A ...

    python benchmarks/transactional_sink.py --output transactional_sink.json

1. The same stateless query over the same Parquet files, one file to a batch, in one session: A writes with Spark's
   parquet sink, B with a ``TransactionalFileSink`` whose checkpoints complete every ``--every`` batches, on a thread of
   their own, as in a job. Nothing else of the library runs: what checkpoints cost is measured by ``overhead.py``. Time
   is the sum of the batches' ``triggerExecution`` in Spark's own progress reports, for both.
2. The commit alone, by number of files, as it is (files moved one by one, then listed) and as it could be (a directory
   per commit, renamed as a whole).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata  # noqa: E402
from dagster_ckpt.filesystem import PosixFileSystem  # noqa: E402
from dagster_ckpt.spark import TransactionalFileSink, sink_to, start_session  # noqa: E402
from dagster_ckpt.spark.sinks.pending_files import PendingFiles  # noqa: E402
from dagster_ckpt.spark.sinks.sink import SinkRun  # noqa: E402
from dagster_ckpt.spark.sinks.transactions import DataFile, TransactionLog  # noqa: E402
from dagster_ckpt.stored_json import Json  # noqa: E402

PLAIN, TRANSACTIONAL = "A", "B"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    rows: int
    batches: int
    pairs: int
    every: int
    repeats: int
    seed: int


def start_spark(name: str, conf: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """The session of all queries."""
    spark = start_session(
        name,
        "local[2]",
        {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            **conf,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def land(directory: Path, rows: int, batches: int, seed: int) -> None:
    """The files that every query reads, one a batch, in order of modification."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number in range(batches):
        table = pa.table({"k": random.integers(0, 1 << 40, rows), "v": random.random(rows)})
        pq.write_table(table, directory / f"{number:06}.parquet")
        os.utime(directory / f"{number:06}.parquet", (1_700_000_000 + number,) * 2)


class Commits(threading.Thread):
    """Completes a checkpoint of a running query every so many batches, and times what its sink does then."""

    def __init__(self, sink: TransactionalFileSink, live: Path, every: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.milliseconds: list[float] = []
        self._sink, self._live, self._every = sink, live, every

    def run(self) -> None:
        done = -1
        while True:
            ended = self.ended.wait(0.02)
            last = max((int(path.name) for path in (self._live / "commits").glob("[0-9]*")), default=-1)
            if last >= done + self._every or (ended and last > done):
                self.milliseconds.append(commit(self._sink, last))
                done = last
            if ended:
                return


def commit(sink: TransactionalFileSink, batch: int) -> float:
    """Tell a sink that a checkpoint of ``batch`` is complete; milliseconds."""
    began = time.perf_counter()
    sink.completed(cast("CheckpointMetadata", SimpleNamespace(batch=batch, name="chk")))
    return (time.perf_counter() - began) * 1000


def run_query(kind: str, spark: SparkSession, source: Path, directory: Path, options: Options) -> dict[str, Any]:
    """One query from nothing to its end."""
    rows = spark.readStream.schema("k LONG, v DOUBLE").option("maxFilesPerTrigger", 1).parquet(str(source))
    live, output = directory / "checkpoint", directory / "out"
    commits: Commits | None = None
    if kind == PLAIN:
        writer = rows.writeStream.format("parquet").option("path", str(output))
    else:
        sink = TransactionalFileSink(output)
        sink.begin(SinkRun(directory / f"000001-{uuid.uuid4().hex[:8]}", 1, None, lambda: None, lambda _: None))
        writer = sink_to(rows, sink)
        commits = Commits(sink, live, options.every)
        commits.start()
    query = writer.option("checkpointLocation", str(live)).trigger(availableNow=True).start()
    query.awaitTermination()
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    if commits is not None:
        commits.ended.set()
        commits.join()
    read = spark.read.parquet(str(output)).count()
    if read != options.rows * options.batches or len(reports) != options.batches:
        raise RuntimeError(f"{kind}: {read} rows and {len(reports)} batches are not what was to be written")
    # The first batch of a query pays for its planning.
    seconds = sum(report["durationMs"]["triggerExecution"] for report in reports[1:]) / 1000
    shutil.rmtree(directory)
    return {
        "kind": kind,
        "rows_per_second": options.rows * (options.batches - 1) / seconds,
        "commit_ms": [] if commits is None else commits.milliseconds,
        "load": os.getloadavg()[0],
    }


def commit_alone(directory: Path, files: int, options: Options) -> dict[str, Any]:
    """Milliseconds of a commit of so many files, moved one by one and as one directory, in turns."""
    moved: list[float] = []
    renamed: list[float] = []
    sink = TransactionalFileSink(directory / "moved")
    start = directory / f"000001-{uuid.uuid4().hex[:8]}"
    sink.begin(SinkRun(start, 1, None, lambda: None, lambda _: None))
    pending = PendingFiles(directory / "moved" / "_transactions")
    visible = PosixFileSystem(directory / "renamed")
    for batch in range(options.repeats):
        write(pending.target(start.name, batch), files)
        pending.complete(start.name, batch)
        moved.append(commit(sink, batch))
        staged = directory / "renamed" / "_pending" / str(batch)
        write(staged, files)
        began = time.perf_counter()
        staged.rename(directory / "renamed" / f"commit={batch}")
        visible.sync_directories(["."])
        renamed.append((time.perf_counter() - began) * 1000)
    return {"files": files, "moved_ms": statistics.median(moved), "renamed_ms": statistics.median(renamed)}


def write(directory: Path, files: int) -> None:
    """Some files of 4 KiB."""
    directory.mkdir(parents=True)
    for _ in range(files):
        (directory / f"part-00000-{uuid.uuid4()}.parquet").write_bytes(bytes(4096))


def restore(directory: Path, commits: int) -> dict[str, float]:
    """Seconds to find out what counts in a sink with many commits of a file each, as a restore does."""
    sink = TransactionalFileSink(directory / "many")
    start = directory / f"000001-{uuid.uuid4().hex[:8]}"
    sink.begin(SinkRun(start, 1, None, lambda: None, lambda _: None))
    log = TransactionLog(directory / "many" / "_transactions")
    with mock.patch("os.fsync"):  # only what reads them is measured
        for batch in range(commits):
            file = DataFile(f"part-00000-{uuid.uuid4()}.parquet", 0, batch, start.name)
            (directory / "many" / file.path).touch()
            log.commit([file], batch)
    position: dict[str, Json] = {"batch": commits - 1, "attempt": start.name}
    fresh = TransactionalFileSink(directory / "many")
    began = time.perf_counter()
    fresh.check(position, directory)
    checked = time.perf_counter()
    fresh.rollback_to(position, directory, 2)
    done = time.perf_counter()
    lists = len(list((directory / "many" / "_transactions" / "commits").iterdir()))
    return {
        "commits": commits,
        "lists": lists,
        "check_s": checked - began,
        "rollback_s": done - checked,
    }


def summarize(runs: list[dict[str, Any]], options: Options) -> dict[str, Any]:
    """The ratio B/A of each pair, their geometric mean, and its interval by 10,000 resamples of the pairs."""
    pairs = [sorted(runs[at : at + 2], key=lambda run: str(run["kind"])) for at in range(0, len(runs), 2)]
    logs = np.log([pair[1]["rows_per_second"] / pair[0]["rows_per_second"] for pair in pairs])
    random = np.random.default_rng(options.seed)
    means = random.choice(logs, (10_000, len(logs))).mean(axis=1)
    commits = [value for run in runs for value in run["commit_ms"]]
    return {
        "rows_per_second_A": statistics.median(pair[0]["rows_per_second"] for pair in pairs),
        "rows_per_second_B": statistics.median(pair[1]["rows_per_second"] for pair in pairs),
        "ratio_B_to_A": float(np.exp(logs.mean())),
        "ratio_95": [float(value) for value in np.exp(np.percentile(means, [2.5, 97.5]))],
        "commit_ms_median": statistics.median(commits),
        "commit_ms_max": max(commits),
        "load_mean": statistics.fmean(run["load"] for run in runs),
    }


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=20, help="batches of a query")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of a query of each kind")
    parser.add_argument("--every", type=int, default=5, help="batches between two checkpoints")
    parser.add_argument("--repeats", type=int, default=20, help="commits for each number of files")
    parser.add_argument("--commits", type=int, default=10_000, help="commits of the sink that is restored; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "artifacts" / "transactional_sink", help="emptied first"
    )
    parser.add_argument("--output", type=Path, help="JSON with every query; default: in the directory")
    arguments = vars(parser.parse_args())
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "transactional_sink.json").absolute()
    commits = arguments.pop("commits")
    options = Options(**arguments)
    shutil.rmtree(directory, ignore_errors=True)
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "parameters": arguments,
    }
    report["commit_alone"] = [
        commit_alone(directory / f"alone-{files}", files, options) for files in (1, 10, 100, 1000)
    ]
    for case in report["commit_alone"]:
        _say(case)
    if commits:
        report["restore"] = restore(directory / "restore", commits)
        _say(report["restore"])
    if options.pairs:
        report["runs"] = _pairs(directory, options)
        report["summary"] = summarize(report["runs"], options)
        _say(report["summary"])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


def _pairs(directory: Path, options: Options) -> list[dict[str, Any]]:
    land(directory / "input", options.rows, options.batches, options.seed)
    spark = start_spark("transactional-sink")
    runs: list[dict[str, Any]] = []
    try:
        for kind in (PLAIN, TRANSACTIONAL):  # warms the JVM up
            run_query(kind, spark, directory / "input", directory / "run", options)
        for pair in range(options.pairs):
            for kind in (PLAIN, TRANSACTIONAL) if pair % 2 == 0 else (TRANSACTIONAL, PLAIN):
                runs.append(run_query(kind, spark, directory / "input", directory / "run", options))
                print(f"{len(runs):>4} {kind} {runs[-1]['rows_per_second']:>12,.0f} rows/s", flush=True)
    finally:
        spark.stop()
    return runs


def _say(figures: Mapping[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<24} {value}")


if __name__ == "__main__":
    sys.exit(main())
