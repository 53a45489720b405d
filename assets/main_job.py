"""The main job, headless and to its end: a stream under Dagster, killed in mid-batch, resumed, and compared.

With ``--bucket`` the checkpoints are in a bucket: of a server on this machine that speaks the API of Google Cloud
Storage, and takes 30 ms longer for each request.

With ``--cluster`` a standalone cluster of Spark is started, and one of its two Workers runs the stream's driver. This
Worker is killed with all that it runs, as when its host is lost.

With ``--kafka-to-delta`` the flights go through a broker of Kafka on this machine into a Delta table. What that needs
is fetched once, and said before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from assets.batch_answer import batch_answer, compare
from assets.killed_stream import Report, finish, kill_and_resume, say
from assets.routes import SPARK_OF_DELTA, Route, files_on_cluster, files_to_parquet, kafka_to_delta
from assets.settings import (
    CATCH_UP_VARIABLE,
    CHECKPOINT_PATH_VARIABLE,
    DATA_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    DataPaths,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.testing.dagster_dev import DagsterDev
from dagster_ckpt.testing.gcs.server import GcsServer

__all__ = ["main"]

_BUCKET = "checkpoints"
_ROOT = Path(__file__).resolve().parent.parent
_FETCHED = f"""\
This fetches about 660 MB, once:
  from PyPI, into .venv-spark-{SPARK_OF_DELTA}: PySpark {SPARK_OF_DELTA}, which Delta is for (450 MB);
  from Maven Central, into the cache of Ivy (~/.ivy2): Kafka's server (44 MB), Spark's connector to Kafka with what
  it names (70 MB), Delta with what it names (95 MB)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the main job; exit status 0 only if the result is identical."""
    parser = argparse.ArgumentParser(prog="python -m assets.main_job", description=__doc__)
    parser.add_argument("--directory", type=Path, help="where everything goes; default: a new one below artifacts/")
    parser.add_argument("--checkpoints", type=int, default=4, help="completed checkpoints to wait for before the kill")
    parser.add_argument("--bucket", action="store_true", help="keep the checkpoints in a bucket, 30 ms a request")
    parser.add_argument("--cluster", action="store_true", help="the driver runs on a standalone cluster, started here")
    parser.add_argument(
        "--kafka-to-delta",
        action="store_true",
        help="from Kafka into a Delta table; fetches PySpark, Kafka and Delta, about 660 MB, once",
    )
    options = parser.parse_args(arguments)
    if options.cluster and options.kafka_to_delta:
        parser.error("--cluster and --kafka-to-delta are two ways; choose one")
    if options.kafka_to_delta and not version("pyspark").startswith(f"{SPARK_OF_DELTA}."):
        _begin_again(sys.argv[1:] if arguments is None else arguments)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    kind = "kafka-to-delta" if options.kafka_to_delta else "cluster" if options.cluster else "main-job"
    directory: Path = (options.directory or _ROOT / "artifacts" / kind / stamp).absolute()
    paths = DataPaths(directory / "data")
    say(f"Everything goes to {directory}")
    with ExitStack() as stack:
        server = None
        if options.bucket:
            server = stack.enter_context(GcsServer(latency=0.03))
            server.create_bucket(_BUCKET)
        connection = {} if server is None else {"endpoint_url": server.url, "token": "anon", "project": "example"}
        storage = open_filesystem(
            str(paths.root / "checkpoints") if server is None else f"gs://{_BUCKET}/example",
            storage_options=connection or None,
        )
        environment = {
            DATA_VARIABLE: str(paths.root),
            CATCH_UP_VARIABLE: "1",
            CHECKPOINT_PATH_VARIABLE: storage.url,
            STORAGE_OPTIONS_VARIABLE: json.dumps(connection),
        }
        if options.cluster:
            route = stack.enter_context(files_on_cluster(paths, environment))
        else:
            route = stack.enter_context((kafka_to_delta if options.kafka_to_delta else files_to_parquet)(paths))
        report = _run(route, paths, directory, storage, environment, checkpoints=options.checkpoints)
    where = directory / "report.json"
    where.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    _summarize(report, where)
    return 0 if report.identical else 1


def _begin_again(arguments: list[str]) -> None:
    """Become the same command in the environment whose Spark is one that Delta is for; does not return."""
    from tools.spark_environment import spark_environment  # noqa: PLC0415 - beside the packages, in a clone only

    say(_FETCHED)
    python = spark_environment(SPARK_OF_DELTA)
    os.execv(python, [python, "-m", "assets.main_job", *arguments])  # noqa: S606 - this very program


def _run(
    route: Route,
    paths: DataPaths,
    directory: Path,
    storage: FileSystem,
    environment: dict[str, str],
    *,
    checkpoints: int,
) -> Report:
    dev = DagsterDev(_ROOT / route.workspace, directory / "dagster_home", {**environment, **route.environment})
    report = Report(input=route.input, output=str(route.output), checkpoint_path=f"{storage.url}/{route.job}")
    say("Starting Dagster (webserver, daemon, code location) ...")
    with dev:
        say(f"Dagster is up at {dev.url}; its log is {dev.log}")
        say("Landing the flights of 2013, one file per day ...")
        finish(dev, dev.launch("__ASSET_JOB", assets=[["landed_flights"]]), "the landing")
        route.feed()
        kill_and_resume(dev, storage, route.job, report, checkpoints=checkpoints, lost=route.lost)
        for asset in route.then:
            say(f"Making the asset {asset} ...")
            finish(dev, dev.launch("__ASSET_JOB", assets=[[asset]]), asset)
    _compare(route, paths, report)
    return report


def _compare(route: Route, paths: DataPaths, report: Report) -> None:
    say("Computing the same question as a batch over the same files ...")
    expected = batch_answer(paths.landed)
    found = route.read()
    comparison = compare(expected, found)
    report.rows_expected, report.rows_found = len(expected), len(found)
    report.rows_missing, report.rows_surplus = len(comparison.missing), len(comparison.surplus)
    report.identical = comparison.identical
    if route.read_raw is not None:
        raw = route.read_raw()
        report.rows_in_raw_directory = len(raw)
        report.identical &= compare(expected, raw).identical


def _summarize(report: Report, where: Path) -> None:
    say("")
    say(f"checkpoints   {len(report.checkpoints)} completed (table above; all of them in the report)")
    say(f"killed        {report.killed_at}, in batch {report.killed_in_batch}")
    say(f"resumed       from {report.resumed_from} (batch {report.resumed_at_batch})")
    say(f"              new run after {report.seconds_kill_to_run} s, new batch after {report.seconds_kill_to_batch} s")
    say(f"rows          {report.rows_found} streamed, {report.rows_expected} by batch computation")
    say(f"              {report.rows_missing} missing, {report.rows_surplus} surplus")
    say(f"result        {'identical' if report.identical else 'NOT IDENTICAL'}")
    say(f"input         {report.input}")
    say(f"output        {report.output}")
    say(f"report        {where}")


if __name__ == "__main__":
    sys.exit(main())
