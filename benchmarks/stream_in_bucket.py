"""A stream whose checkpointLocation Spark keeps in a bucket, against one that is local and checkpointed to the bucket.

    python benchmarks/stream_in_bucket.py --output stream_in_bucket.json

A is Spark with its ``checkpointLocation`` in ``gs://``, by Google's connector: offsets, commits and state are written
to the bucket within each batch. B is a supervised ``StreamingRun`` of this library: the live location is a local
directory, and a checkpoint goes to the same bucket each ``--interval`` seconds in the background. Query, session, input
and state store (RocksDB with changelog, format v2) are the same. A server of Google Cloud Storage's API runs in a
process of its own, once for each of ``--latencies``; A and B each have a process and a JVM, and take turns in blocks
A B B A ..., while the other one is stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.object_store import BUCKET, asked, serving, storage_at  # noqa: E402
from benchmarks.overhead import PATIENCE, Cpu, Feed, Input, Turns, query_over, student_t  # noqa: E402
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD  # noqa: E402
from dagster_ckpt.clock import SystemClock  # noqa: E402
from dagster_ckpt.config import (  # noqa: E402
    CheckpointConfig,
    JobStatus,
    RestartStrategies,
    RestoreRequest,
)
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
from dagster_ckpt.testing.dagster_dev import wait_for  # noqa: E402
from tests.servers.gcs_connector import connector_conf, connector_jar  # noqa: E402

JOB = "stream-in-bucket"
IN_BUCKET, OURS = "A", "B"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line; the README says what each is for."""

    keys: int
    rows: int
    fill: int
    warm_up: int
    batches: int
    rounds: int
    latencies: tuple[float, ...]
    interval: float
    partitions: int
    seed: int


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker is told of its surroundings."""

    url: str
    jar: str
    directory: Path


@dataclass(slots=True)
class Block:
    """Some batches in a row of one kind and what they cost.

    Attributes:
        batch_ms: of each batch, from its trigger to its commit, by Spark's report.
        requests: that reached the bucket's server, checkpoints of these batches included.
        sent_bytes: their bodies.
        checkpoints: that completed, the one after the last batch included.
    """

    kind: str
    batch_ms: list[float]
    seconds: float
    cpu_seconds: float
    others_cpu_seconds: float
    state_rows: int
    checkpoints: int
    failed_checkpoints: int
    latency: float = -1.0
    round: int = -1
    requests: int = -1
    sent_bytes: int = -1


class Worker:
    """One kind's query in its own process: is told files, answers what working through them cost."""

    def __init__(self, kind: str, options: Options, place: Place, orders: Connection) -> None:
        self._kind = kind
        self._options = options
        self._place = place
        self._directory = place.directory / kind
        self._feed = Feed(self._directory)
        self._orders = orders
        self._seen = -1
        self._completed: list[int] = []
        self._failed = 0

    def run(self) -> None:
        """Serve blocks until there are no more orders."""
        spark = start_session(
            JOB,
            "local[2]",
            {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": str(self._options.partitions),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.streaming.numRecentProgressUpdates": "1000",
                "spark.sql.streaming.pollingDelay": "100ms",
                **connector_conf(self._place.url, Path(self._place.jar)),
            },
        )
        spark.sparkContext.setLogLevel("ERROR")
        if self._kind == IN_BUCKET:
            writer = query_over(streaming_session(spark, None), self._feed.directory)
            self._serve(writer.option("checkpointLocation", f"gs://{BUCKET}/in-bucket/checkpoint").start())
        else:
            self._checkpointed(spark)
        spark.stop()

    def _checkpointed(self, spark: SparkSession) -> None:
        sessions: list[SparkSession] = []

        def query(session: SparkSession) -> DataStreamWriter:
            sessions.append(session)
            return query_over(session, self._feed.directory)

        job = StreamingJob(
            name=JOB,
            query=query,
            session=lambda: spark,
            config=CheckpointConfig(interval=f"{round(self._options.interval * 1000)} ms", num_retained=10),
            restart=RestartStrategies.no_restart(),
            filesystem=storage_at(self._place.url),
            working_directory=self._directory / "live",
            deployment="benchmark",
            inline_threshold=DEFAULT_INLINE_THRESHOLD,
        )

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            return StreamingRun(
                job, run_id=str(uuid.uuid4()), request=RestoreRequest(), series=None, clock=SystemClock(), emit=emit
            )

        def serve() -> None:
            (running,) = sessions[-1].streams.active
            self._serve(running)

        def seen(event: Event) -> None:
            if isinstance(event, CheckpointFailed):
                self._failed += 1
            elif isinstance(event, CheckpointCompleted):
                self._completed.append(event.metadata.batch)
            elif isinstance(event, Started):
                threading.Thread(target=serve, daemon=True).start()

        if supervise(start, seen).status is not JobStatus.FINISHED:
            raise RuntimeError("The checkpointed run did not end in order")

    def _serve(self, query: StreamingQuery) -> None:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self._orders.send("ready")
        while (files := self._orders.recv()) is not None:
            before, self._failed = len(self._completed), 0
            cpu = Cpu(processes)
            self._feed.show(files)
            last = self._seen + len(files)
            wait_for(partial(self._worked_through, query, last), f"batch {last}", seconds=PATIENCE)
            own, others = cpu.since()
            if self._kind == OURS:
                wait_for(partial(self._has, last), f"the checkpoint of batch {last}", seconds=PATIENCE)
            block = self._block(self._reports(query, last))
            block.cpu_seconds, block.others_cpu_seconds = own, others
            block.checkpoints, block.failed_checkpoints = len(self._completed) - before, self._failed
            self._seen = last
            self._orders.send(block)
        query.stop()

    def _worked_through(self, query: StreamingQuery, last: int) -> bool:
        return len(self._reports(query, last)) == last - self._seen

    def _has(self, batch: int) -> bool:
        return batch in self._completed

    def _reports(self, query: StreamingQuery, last: int) -> list[dict[str, Any]]:
        if not query.isActive:
            raise query.exception() or RuntimeError("The query stopped")
        found = [dict(report) for report in query.recentProgress if report["numInputRows"]]
        return [report for report in found if self._seen < report["batchId"] <= last]

    def _block(self, reports: list[dict[str, Any]]) -> Block:
        durations = [float(report["batchDuration"]) for report in reports]
        seconds = _moment(reports[-1]) + durations[-1] / 1000 - _moment(reports[0])
        rows = sum(int(operator["numRowsTotal"]) for operator in reports[-1]["stateOperators"])
        return Block(self._kind, durations, seconds, -1.0, -1.0, rows, 0, 0)


def work(kind: str, options: Options, place: Place, orders: Connection) -> None:
    """The body of a worker's process."""
    Worker(kind, options, place, orders).run()


def measure(options: Options, latency: float, jar: Path, directory: Path) -> list[Block]:
    """The blocks of one latency, in pairs of both kinds."""
    staged = Input(
        directory / "files", keys=options.keys, rows=options.rows, batches=options.batches, seed=options.seed
    )
    blocks: list[Block] = []
    with serving(latency) as url:
        workers: dict[str, Turns] = {}

        def turn(kind: str, files: Sequence[Path]) -> Block:
            before = asked(url)
            block: Block = workers[kind].block(files)
            after = asked(url)
            block.latency = latency
            block.requests = after["requests"] - before["requests"]
            block.sent_bytes = after["bytes"] - before["bytes"]
            if block.state_rows != options.keys or len(block.batch_ms) != len(files):
                raise RuntimeError(f"Not the work that was to be measured: {block}")
            return block

        try:
            for kind in (IN_BUCKET, OURS):
                workers[kind] = Turns(work, kind, options, Place(url, str(jar), directory))
            filling = staged.every_key_once(options.fill)
            for kind in workers:
                _say("fill", turn(kind, filling))
            for number in range(options.warm_up):
                files = staged.block()
                for kind in workers:
                    _say(f"warm {number + 1}", turn(kind, files))
            for number in range(options.rounds):
                files = staged.block()
                for kind in (IN_BUCKET, OURS) if number % 2 == 0 else (OURS, IN_BUCKET):
                    block = turn(kind, files)
                    block.round = number
                    blocks.append(block)
                    _say(number + 1, block)
            for worker in workers.values():
                worker.stop()
        finally:
            for worker in workers.values():
                worker.kill()
    return blocks


def summarize(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """The figures of the README, for each latency."""
    return [
        _of_latency([block for block in blocks if block.latency == latency])
        for latency in sorted({block.latency for block in blocks})
    ]


def _of_latency(blocks: Sequence[Block]) -> dict[str, Any]:
    pairs: dict[int, dict[str, Block]] = {}
    for block in blocks:
        pairs.setdefault(block.round, {})[block.kind] = block
    ratios = [
        statistics.fmean(pair[IN_BUCKET].batch_ms) / statistics.fmean(pair[OURS].batch_ms) for pair in pairs.values()
    ]
    logs = [math.log(ratio) for ratio in ratios]
    low = high = None
    if len(logs) > 1:
        spread = student_t(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        low, high = (round(math.exp(statistics.fmean(logs) + sign * spread), 3) for sign in (-1, 1))
    figures: dict[str, Any] = {
        "latency_ms": round(blocks[0].latency * 1000),
        "ratio_of_batch_ms_a_to_b": round(math.exp(statistics.fmean(logs)), 3),
        "ratio_95": [low, high],
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    for kind in (IN_BUCKET, OURS):
        own = [block for block in blocks if block.kind == kind]
        batches = [duration for block in own for duration in block.batch_ms]
        requests, sent = sum(block.requests for block in own), sum(block.sent_bytes for block in own)
        checkpoints = sum(block.checkpoints for block in own)
        figures[kind] = {
            "batch_ms_median": round(statistics.median(batches)),
            "batch_ms_p95": round(float(np.percentile(batches, 95))),
            "requests_per_batch": round(requests / len(batches), 1),
            "sent_bytes_per_batch": round(sent / len(batches)),
            "checkpoints": checkpoints,
            "failed_checkpoints": sum(block.failed_checkpoints for block in own),
            "requests_per_checkpoint": round(requests / checkpoints, 1) if checkpoints else None,
            "sent_bytes_per_checkpoint": round(sent / checkpoints) if checkpoints else None,
            "cpu_seconds_per_batch": round(sum(block.cpu_seconds for block in own) / len(batches), 3),
        }
    return figures


def table(summary: Sequence[dict[str, Any]]) -> str:
    """The summary as Markdown."""
    lines = [
        "| latency, ms | kind | batch ms, median | p95 | A/B | requests a batch | bytes a batch "
        "| requests a checkpoint | bytes a checkpoint |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for figures in summary:
        for kind, name in ((IN_BUCKET, "A: in the bucket"), (OURS, "B: ours")):
            own = figures[kind]
            ratio = f"{figures['ratio_of_batch_ms_a_to_b']:.2f}" if kind == IN_BUCKET else ""
            taken = ["", ""]
            if own["checkpoints"]:
                taken = [f"{own['requests_per_checkpoint']:.1f}", f"{own['sent_bytes_per_checkpoint']:,}"]
            lines.append(
                f"| {figures['latency_ms']} | {name} | {own['batch_ms_median']:,} | {own['batch_ms_p95']:,} | {ratio} "
                f"| {own['requests_per_batch']:.1f} | {own['sent_bytes_per_batch']:,} | {' | '.join(taken)} |"
            )
    return "\n".join(lines)


def _moment(report: dict[str, Any]) -> float:
    return datetime.fromisoformat(str(report["timestamp"])).timestamp()


def _say(number: int | str, block: Block) -> None:
    print(
        f"{block.latency * 1000:>4.0f} ms {number:>7} {block.kind} {statistics.fmean(block.batch_ms):>8.0f} ms a batch "
        f"{block.requests:>6} requests {block.sent_bytes:>12,} bytes {block.checkpoints:>4} checkpoints "
        f"{block.others_cpu_seconds:>6.1f} s of others' CPU",
        flush=True,
    )


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=200_000, help="keys of state")
    parser.add_argument("--rows", type=int, default=10_000, help="rows a batch")
    parser.add_argument("--fill", type=int, default=20, help="batches that fill the state")
    parser.add_argument("--warm-up", type=int, default=2, help="blocks of each kind before the rounds")
    parser.add_argument("--batches", type=int, default=10, help="batches a block")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of one block of each kind")
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.03], help="seconds a request")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints of B")
    parser.add_argument("--partitions", type=int, default=2, help="state partitions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / JOB, help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every block; default: report.json in the directory")
    arguments = vars(parser.parse_args())
    directory: Path = arguments.pop("directory").absolute()
    output: Path = (arguments.pop("output") or directory / "report.json").absolute()
    options = Options(**{**arguments, "latencies": tuple(arguments["latencies"])})
    # So that no stopped process outlives this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began, load = time.monotonic(), os.getloadavg()
    jar = connector_jar(directory)
    blocks = [
        block
        for number, latency in enumerate(options.latencies)
        for block in measure(options, latency, jar, directory / str(number))
    ]
    summary = summarize(blocks)
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "load_before": load,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "parameters": asdict(options),
        "summary": summary,
        "blocks": [asdict(block) for block in blocks],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{table(summary)}\n\nreport: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
