"""What a PostgresSink costs: a plain ``foreachBatch`` that copies into the table against it, in pairs A B B A ...

    python benchmarks/postgres_sink.py --output postgres_sink.json

The same stateless query over the same Parquet files, one file to a batch, in one session. A copies each partition
straight into the table, as a JDBC writer or a ``COPY`` by hand does: nothing is recorded, half a batch is seen, and a
batch that runs again is there twice. B is a ``PostgresSink``: rows go through a staging table, and one transaction
moves them and writes the batch into the ledger. Both copy with the same function. Time is the sum of the batches'
``triggerExecution`` in Spark's own progress reports, for both. The server is PostgreSQL of this machine, with its
defaults, in a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.transactional_sink import land, start_spark  # noqa: E402
from dagster_ckpt.spark import PostgresSink, sink_to  # noqa: E402
from dagster_ckpt.spark.sinks.postgres.staging import copying  # noqa: E402
from dagster_ckpt.spark.sinks.sink import SinkRun  # noqa: E402
from tests.servers.postgres import rows, running  # noqa: E402

PLAIN, OURS = "A", "B"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    rows: int
    batches: int
    pairs: int
    seed: int


def run_query(kind: str, spark: SparkSession, reach: str, directory: Path, options: Options) -> dict[str, Any]:
    """One query from nothing to its end, into a new table."""
    name = f"t{uuid.uuid4().hex}"
    rows(reach, f"CREATE TABLE {name} (k bigint, v double precision, batch bigint)")
    source = spark.readStream.schema("k LONG, v DOUBLE").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(directory / "input"))
    live = directory / "run"
    if kind == PLAIN:

        def write(batch_rows: DataFrame, batch: int) -> None:
            copy = copying(reach, f"COPY {name} FROM STDIN (FORMAT csv)")
            del batch  # the number of the task goes where it would be
            batch_rows.mapInArrow(copy, "task bigint, copied bigint").collect()

        writer = stream.writeStream.foreachBatch(write)
    else:
        sink = PostgresSink(reach, name)
        sink.adopt(name)
        sink.begin(SinkRun(live / f"000001-{uuid.uuid4().hex[:8]}", 1, None, lambda: None, lambda _: None))
        writer = sink_to(stream, sink)
    query = writer.option("checkpointLocation", str(live / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    ((written,),) = rows(reach, f"SELECT count(*) FROM {name}")  # noqa: S608 - a name of ours
    figures = figures_of(kind, query, written, options)
    rows(reach, f"DROP TABLE {name}")
    shutil.rmtree(live)
    return figures


def figures_of(kind: str, query: StreamingQuery, written: int, options: Options) -> dict[str, Any]:
    """What a query of a kind cost, by Spark's own progress reports.

    Raises:
        RuntimeError: the query did not write what it was to write.
    """
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    if written != options.rows * options.batches or len(reports) != options.batches:
        raise RuntimeError(f"{kind}: {written} rows and {len(reports)} batches are not what was to be written")
    # The first batch of a query pays for its planning, and where the query makes its table, for that.
    milliseconds = [report["durationMs"]["triggerExecution"] for report in reports[1:]]
    return {
        "kind": kind,
        "batch_ms_median": statistics.median(milliseconds),
        "rows_per_second": options.rows * (options.batches - 1) / sum(milliseconds) * 1000,
        "load": os.getloadavg()[0],
    }


def summarize(runs: list[dict[str, Any]], options: Options) -> dict[str, Any]:
    """The ratio B/A of the pairs' rows per second, as :func:`ratio_of` tells, and the medians of both kinds."""
    figures = {
        f"{figure}_{kind}": statistics.median(run[figure] for run in runs if run["kind"] == kind)
        for figure in ("rows_per_second", "batch_ms_median")
        for kind in (PLAIN, OURS)
    }
    ratio, interval = ratio_of("rows_per_second", runs, options)
    return {
        **figures,
        "ratio_B_to_A": ratio,
        "ratio_95": interval,
        "load_mean": statistics.fmean(run["load"] for run in runs),
    }


def ratio_of(figure: str, runs: list[dict[str, Any]], options: Options) -> tuple[float, list[float]]:
    """The geometric mean of the pairs' ratios B/A of a figure, and its interval by 10,000 resamples of the pairs."""
    pairs = [sorted(runs[at : at + 2], key=lambda run: str(run["kind"])) for at in range(0, len(runs), 2)]
    logs = np.log([pair[1][figure] / pair[0][figure] for pair in pairs])
    means = np.random.default_rng(options.seed).choice(logs, (10_000, len(logs))).mean(axis=1)
    return float(np.exp(logs.mean())), [float(value) for value in np.exp(np.percentile(means, [2.5, 97.5]))]


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=10, help="batches of a query")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of a query of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "postgres_sink", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every query; default: in the directory")
    arguments = vars(parser.parse_args())
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "postgres_sink.json").absolute()
    options = Options(**arguments)
    shutil.rmtree(directory, ignore_errors=True)
    land(directory / "input", options.rows, options.batches, options.seed)
    runs: list[dict[str, Any]] = []
    spark = start_spark("postgres-sink")
    try:
        with running("fsync=on") as server:
            reach = server.database()
            for kind in (PLAIN, OURS):  # warms the JVM up
                run_query(kind, spark, reach, directory, options)
            for pair in range(options.pairs):
                for kind in (PLAIN, OURS) if pair % 2 == 0 else (OURS, PLAIN):
                    runs.append(run_query(kind, spark, reach, directory, options))
                    print(f"{len(runs):>4} {kind} {runs[-1]['rows_per_second']:>12,.0f} rows/s", flush=True)
    finally:
        spark.stop()
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "parameters": arguments,
        "runs": runs,
        "summary": summarize(runs, options),
    }
    for name, value in report["summary"].items():
        print(f"{name.replace('_', ' '):<24} {value}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
