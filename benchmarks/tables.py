"""What a sink of a table costs: the format's own writer against it, in pairs A B B A ...

    .venv-spark-4.2/bin/python benchmarks/tables.py --output delta.json
    .venv-spark-4.1/bin/python benchmarks/tables.py --output iceberg.json

The same stateless query over the same Parquet files, one file to a batch, in one session, into a new table each time.
A is ``format("delta")`` or ``format("iceberg")``, whichever is for the Spark that runs this. B is a ``DeltaSink`` or an
``IcebergSink``, whose claim comes before the query. Nothing else of the library runs: what checkpoints cost is measured
by ``overhead.py``. Time is the sum of the batches' ``triggerExecution`` in Spark's own progress reports, for both.
Processor time is that of this process and its JVM from the query's start to its end, which says more on a busy machine.
Iceberg's catalog is a database of SQLite. The environments are those of ``tools/test_spark.py``.
Reports become a page by

    python benchmarks/tables.py --page docs/reference/table-sinks.md --reports iceberg.json delta.json
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.postgres_sink import OURS, PLAIN, Options, figures_of, ratio_of, summarize  # noqa: E402
from benchmarks.transactional_sink import land, start_spark  # noqa: E402
from dagster_ckpt.spark import DeltaSink, IcebergSink, sink_to  # noqa: E402
from dagster_ckpt.spark.sinks.sink import SinkRun  # noqa: E402
from dagster_ckpt.testing.maven import alone  # noqa: E402
from tests.helpers.local_spark import delta_conf, iceberg_conf  # noqa: E402
from tests.jobs.tables.iceberg import lake  # noqa: E402


def run_query(kind: str, spark: SparkSession, of: str, directory: Path, options: Options) -> dict[str, Any]:
    """One query from nothing to its end, into a new table."""
    name = f"t{uuid.uuid4().hex}"
    live, path = directory / "run", str(directory / "tables" / name)
    table = f"{lake(spark, directory / 'lake')}.db.{name}" if of == "iceberg" else f"delta.`{path}`"
    source = spark.readStream.schema("k LONG, v DOUBLE").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(directory / "input"))
    if kind == OURS:
        sink = IcebergSink(table) if of == "iceberg" else DeltaSink(path)
        sink.attach(name, stream)
        sink.adopt(uuid.uuid4().hex)
        sink.begin(SinkRun(live / f"000001-{uuid.uuid4().hex[:8]}", 1, None, lambda: None, lambda _: None))
        writer = sink_to(stream, sink)
    else:
        writer = stream.writeStream.format(of)
        writer = writer if of == "iceberg" else writer.option("path", path)
    writer = writer.option("checkpointLocation", str(live / "checkpoint")).trigger(availableNow=True)
    before = _processor_seconds()
    query = writer.toTable(table) if (kind, of) == (PLAIN, "iceberg") else writer.start()
    query.awaitTermination()
    spent = _processor_seconds() - before
    figures = figures_of(kind, query, spark.table(table).count(), options)
    figures["cpu_ms_a_batch"] = 1000 * spent / options.batches
    shutil.rmtree(live)
    return figures


def _processor_seconds() -> float:
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=10, help="batches of a query")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of a query of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "tables", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every query; default: in the directory")
    parser.add_argument("--page", type=Path, help="measure nothing, and write a Markdown page of the reports")
    parser.add_argument("--reports", type=Path, nargs="+", default=[], help="what --output wrote")
    arguments = vars(parser.parse_args())
    page, reports = arguments.pop("page"), arguments.pop("reports")
    if page:
        page.write_text(_page([json.loads(report.read_text("utf-8")) for report in reports]), encoding="utf-8")
        return 0
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "tables.json").absolute()
    options = Options(**arguments)
    conf = {**delta_conf(), **iceberg_conf()}
    if not conf:
        parser.error("Neither Delta nor Iceberg is for this Spark. Run it in an environment of tools/test_spark.py.")
    of = "delta" if delta_conf() else "iceberg"
    shutil.rmtree(directory, ignore_errors=True)
    land(directory / "input", options.rows, options.batches, options.seed)
    runs: list[dict[str, Any]] = []
    with alone():
        spark = start_spark("tables", conf)
    release = spark.version
    try:
        for kind in (PLAIN, OURS):  # warms the JVM up
            run_query(kind, spark, of, directory, options)
        for pair in range(options.pairs):
            for kind in (PLAIN, OURS) if pair % 2 == 0 else (OURS, PLAIN):
                runs.append(run_query(kind, spark, of, directory, options))
                print(f"{len(runs):>4} {kind} {runs[-1]['batch_ms_median']:>8,.0f} ms a batch", flush=True)
    finally:
        spark.stop()
    summary = summarize(runs, options)
    cpu, cpu_interval = ratio_of("cpu_ms_a_batch", runs, options)
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "format": of,
        "spark": release,
        "packages": conf["spark.jars.packages"].split(",")[0],
        "parameters": arguments,
        "runs": runs,
        "summary": {
            **summary,
            "latency_B_to_A": 1 / summary["ratio_B_to_A"],
            "latency_95": [1 / ratio for ratio in reversed(summary["ratio_95"])],
            "cpu_ms_a_batch_A": statistics.median(run["cpu_ms_a_batch"] for run in runs if run["kind"] == PLAIN),
            "cpu_ms_a_batch_B": statistics.median(run["cpu_ms_a_batch"] for run in runs if run["kind"] == OURS),
            "cpu_B_to_A": cpu,
            "cpu_95": cpu_interval,
        },
    }
    for name, value in report["summary"].items():
        print(f"{name.replace('_', ' '):<24} {value}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


def _page(reports: list[dict[str, Any]]) -> str:
    """The page of the documentation."""
    lines = [
        "# What the sinks of tables cost",
        "",
        "Made by `benchmarks/tables.py`. One stateless query reads the same files, one a batch, and writes them into a",
        "new table each time, in one session, in pairs A B B A ...: **A** by the format's own writer",
        '(`format("iceberg")`, `format("delta")`), **B** by the sink. Only the writer differs. Neither query has',
        "checkpoints of this library; what these cost stands in [measured](measured.md). *Latency* is Spark's",
        "`triggerExecution` without the first batch of each query, as the median; the ratio is the geometric mean of",
        "the pairs' ratios. *Processor time* is that of Python and the JVM, per batch. *Load* is that of the machine,",
        "as the mean of one-minute averages.",
        "",
        "| sink | Spark | rows a batch | latency A, B | B - A | latency B to A, 95 % | processor time B to A, 95 % | "
        "pairs, batches each | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        told, given = report["summary"], report["parameters"]
        a, b = told["batch_ms_median_A"], told["batch_ms_median_B"]
        sink = {"iceberg": "IcebergSink", "delta": "DeltaSink"}[report["format"]]
        latency, cpu = (
            f"**{told[ratio]:.2f}**, {told[interval][0]:.2f} to {told[interval][1]:.2f}"
            for ratio, interval in (("latency_B_to_A", "latency_95"), ("cpu_B_to_A", "cpu_95"))
        )
        lines.append(
            f"| `{sink}` | {report['spark']} | {given['rows']:,} | {a:,.0f} ms, {b:,.0f} ms | {b - a:,.0f} ms "
            f"| {latency} | {cpu} | {given['pairs']}, {given['batches']} | {told['load_mean']:.1f} |"
        )
    machines = sorted({f"{each['machine']['cpus']} cores, Python {each['machine']['python']}" for each in reports})
    days = sorted({each["measured_at"][:10] for each in reports})
    packages = sorted({each["packages"].partition(":")[2] for each in reports})
    lines += ["", f"{'; '.join(machines)}; a local disk; {', '.join(packages)}; measured on {', '.join(days)}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
