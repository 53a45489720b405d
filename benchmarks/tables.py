"""What a sink of a table costs: the format's own writer against it, in turns A F B, B F A ...

    .venv-spark-4.2/bin/python benchmarks/tables.py --rows 20000 200000 1000000 --output delta.json
    .venv-spark-4.1/bin/python benchmarks/tables.py --rows 20000 200000 1000000 --output iceberg.json

The same stateless query over the same Parquet files, one file to a batch, in one session, into a new table each time.
A is ``format("delta")`` or ``format("iceberg")``, by ``--format`` or whichever is for the Spark that runs this. F is a
``foreachBatch`` that appends its rows by the format's own ``DataFrameWriter``, which plans a query for them, and does
nothing else, so that a batch that runs again is there twice. B is a ``DeltaSink`` or an ``IcebergSink``, whose claim
comes before the query. Nothing else of the library runs: what checkpoints cost is measured by ``overhead.py``. Time is
that of the batches' ``triggerExecution`` in Spark's own progress reports.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.postgres_sink import OURS, PLAIN, Options, figures_of, ratio_of  # noqa: E402
from benchmarks.transactional_sink import land, start_spark  # noqa: E402
from dagster_ckpt.spark import DeltaSink, IcebergSink, sink_to  # noqa: E402
from dagster_ckpt.spark.sinks.sink import SinkRun  # noqa: E402
from dagster_ckpt.testing.maven import alone  # noqa: E402
from tests.helpers.local_spark import delta_conf, iceberg_conf  # noqa: E402
from tests.jobs.tables.iceberg import lake  # noqa: E402

FLOOR = "F"
#: The kinds of a turn, each of which is compared with another by its neighbours in time.
_KINDS = (PLAIN, FLOOR, OURS)
_FORMATS = {"delta": delta_conf, "iceberg": iceberg_conf}


@dataclass(frozen=True)
class _Options(Options):
    """The command line; a table that is partitioned has eight partitions, and each batch rows for all of them."""

    partitioned: bool


def run_query(kind: str, spark: SparkSession, of: str, directory: Path, options: _Options) -> dict[str, Any]:
    """One query from nothing to its end, into a new table."""
    name = f"t{uuid.uuid4().hex}"
    live, path = directory / "run", str(directory / "tables" / name)
    table = f"{lake(spark, directory / 'lake')}.db.{name}" if of == "iceberg" else f"delta.`{path}`"
    source = spark.readStream.schema("k LONG, v DOUBLE").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(directory / "input" / str(options.rows)))
    partition_by = ["p"] if options.partitioned else []
    stream = stream.selectExpr("*", "k % 8 AS p") if options.partitioned else stream
    if kind == OURS:
        make, where = (IcebergSink, table) if of == "iceberg" else (DeltaSink, path)
        sink = make(where, partition_by=partition_by)
        sink.attach(name, stream)
        sink.adopt(uuid.uuid4().hex)
        sink.begin(SinkRun(live / f"000001-{uuid.uuid4().hex[:8]}", 1, None, lambda: None, lambda _: None))
        writer = sink_to(stream, sink)
    elif kind == FLOOR:
        if of == "iceberg":
            created = spark.createDataFrame([], stream.schema).writeTo(table).using("iceberg")
            (created.partitionedBy(f.col("p")) if options.partitioned else created).create()

        def append(rows: DataFrame, batch: int) -> None:
            del batch
            appended = rows.write.format(of).mode("append")
            appended.saveAsTable(table) if of == "iceberg" else appended.partitionBy(partition_by).save(path)

        writer = stream.writeStream.foreachBatch(append)
    else:
        writer = stream.writeStream.format(of).partitionBy(partition_by)
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


def measure(spark: SparkSession, of: str, directory: Path, options: _Options) -> list[dict[str, Any]]:
    """Every query of a batch size, after one of each kind that warms the JVM up."""
    for kind in _KINDS:
        run_query(kind, spark, of, directory, options)
    runs: list[dict[str, Any]] = []
    for turn in range(options.pairs):
        for kind in _KINDS if turn % 2 == 0 else reversed(_KINDS):
            runs.append(run_query(kind, spark, of, directory, options))
            print(f"{options.rows:>9,} {kind} {runs[-1]['batch_ms_median']:>8,.0f} ms a batch", flush=True)
    return runs


def summarize(runs: list[dict[str, Any]], options: _Options) -> dict[str, Any]:
    """The medians of each kind, and the ratios of two kinds, by turn, each with its interval."""
    summary: dict[str, Any] = {"rows": options.rows, "load_mean": statistics.fmean(run["load"] for run in runs)}
    for figure in ("batch_ms_median", "cpu_ms_a_batch"):
        for kind in _KINDS:
            summary[f"{figure}_{kind}"] = statistics.median(run[figure] for run in runs if run["kind"] == kind)
        for above, below in ((OURS, PLAIN), (FLOOR, PLAIN), (OURS, FLOOR)):
            both = [{**run, "kind": run["kind"] == above} for run in runs if run["kind"] in {above, below}]
            summary[f"{figure}_{above}_to_{below}"] = ratio_of(figure, both, options)
    return summary


def _processor_seconds() -> float:
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000], help="rows of a batch, one or more sizes")
    parser.add_argument("--format", choices=sorted(_FORMATS), help="default: the first that is for this Spark")
    parser.add_argument("--partitioned", action="store_true", help="the tables are partitioned by a column of 8 values")
    parser.add_argument("--batches", type=int, default=10, help="batches of a query")
    parser.add_argument("--pairs", type=int, default=10, help="queries of each kind and size")
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
    wanted = arguments.pop("format")
    sizes = [_Options(**{**arguments, "rows": rows}) for rows in arguments["rows"]]
    found = ((name, conf()) for name, conf in _FORMATS.items() if wanted in {None, name})
    of, conf = next(((name, conf) for name, conf in found if conf), ("", {}))
    if not of:
        parser.error("No such format is for this Spark. Run it in an environment of tools/test_spark.py.")
    shutil.rmtree(directory, ignore_errors=True)
    runs: dict[int, list[dict[str, Any]]] = {}
    with alone():
        spark = start_spark("tables", conf)
    release = spark.version
    try:
        for options in sizes:
            land(directory / "input" / str(options.rows), options.rows, options.batches, options.seed)
            runs[options.rows] = measure(spark, of, directory, options)
    finally:
        spark.stop()
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "format": of,
        "spark": release,
        "packages": conf["spark.jars.packages"].split(",")[0],
        "parameters": arguments,
        "sizes": [{**summarize(runs[each.rows], each), "runs": runs[each.rows]} for each in sizes],
    }
    for size in report["sizes"]:
        for name, value in size.items():
            if name != "runs":
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
        "new table each time, in one session, in turns A F B, B F A ...: **A** by the format's own writer",
        '(`format("iceberg")`, `format("delta")`), **B** by the sink. Only the writer differs. **F** is a',
        "`foreachBatch` that appends its rows by the format's `DataFrameWriter`, which plans a query for them, and",
        "does nothing else, so that a batch that runs again is there twice. A partitioned table has eight partitions;",
        "each batch has rows for all of them. No query has checkpoints of this library; what these cost stands in",
        "[measured](measured.md). *Latency* is Spark's `triggerExecution` without the first batch of each query, as",
        "the median; a ratio is the geometric mean of the turns' ratios, with its interval of 95 %. *Processor time*",
        "is that of Python and the JVM, per batch. *Load* is that of the machine, as the mean of one-minute averages.",
        "",
        "| sink | Spark | rows a batch | latency A, F, B | B to A | F to A | B to F | processor time B to A | B to F | "
        "turns, batches each | load |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        sink = {"iceberg": "IcebergSink", "delta": "DeltaSink"}[report["format"]]
        given = report["parameters"]
        for told in report["sizes"]:
            latency = ", ".join(f"{told[f'batch_ms_median_{kind}']:,.0f}" for kind in _KINDS)
            first, *others = (
                f"{ratio:.2f} ({low:.2f} to {high:.2f})"
                for ratio, (low, high) in (
                    told[f"{figure}_{pair}"]
                    for figure, pair in (
                        *(("batch_ms_median", pair) for pair in ("B_to_A", "F_to_A", "B_to_F")),
                        *(("cpu_ms_a_batch", pair) for pair in ("B_to_A", "B_to_F")),
                    )
                )
            )
            kind = f"`{sink}`, partitioned" if given.get("partitioned") else f"`{sink}`"
            lines.append(
                f"| {kind} | {report['spark']} | {told['rows']:,} | {latency} ms | **{first}** | "
                f"{' | '.join(others)} | {given['pairs']}, {given['batches']} | {told['load_mean']:.1f} |"
            )
    machines = sorted({f"{each['machine']['cpus']} cores, Python {each['machine']['python']}" for each in reports})
    days = sorted({each["measured_at"][:10] for each in reports})
    packages = sorted({each["packages"].partition(":")[2] for each in reports})
    lines += ["", f"{'; '.join(machines)}; a local disk; {', '.join(packages)}; measured on {', '.join(days)}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
