"""What a restore costs by its steps, and a replay of batches against running them anew.

    python benchmarks/restore.py --keys 1000000 --batches 100 --rounds 3 --output restore.json

The query is ``dropDuplicates`` over Parquet files into Spark's file sink, with its state in RocksDB (changelog, format
v2). One checkpoint covers ``--keys`` keys. Then ``--batches`` batches of a file each run without a checkpoint, and the
live location is deleted. From that point, put back before each round, the job goes on twice, in turns: with a replay of
these batches with the boundaries they had, and with the same files planned anew, one file a batch. Both write the same
rows, which is checked. Times are this process' monotonic clock at the run's events and Spark's own commits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint, verify_checkpoint  # noqa: E402
from dagster_ckpt.checkpoint.catalog.newest import find_newest  # noqa: E402
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive  # noqa: E402
from dagster_ckpt.clock import SystemClock  # noqa: E402
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus  # noqa: E402
from dagster_ckpt.config.recovery import RestoreRequest  # noqa: E402
from dagster_ckpt.config.restart import NoRestart  # noqa: E402
from dagster_ckpt.filesystem import PosixFileSystem  # noqa: E402
from dagster_ckpt.spark import Event, Started, StreamingJob, StreamingRun, start_session, supervise  # noqa: E402
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation  # noqa: E402
from dagster_ckpt.spark.files.prepare import prepare_location  # noqa: E402
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink  # noqa: E402
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink  # noqa: E402

JOB = "restore"
REPLAY, ANEW = "replay", "anew"
_NEVER = CheckpointConfig(interval="1 h", min_pause="1 h")


class _Lost(BaseException):
    """Interrupts a run, which then ends as if its process were lost."""


class Stream:
    """The job, its files, and runs of it."""

    def __init__(self, root: Path, keys: int) -> None:
        self._root = root
        self._keys = keys
        self._random = np.random.default_rng(1)
        self.source, self.sink, self.live = root / "in", root / "out", root / "live"
        self.filesystem = PosixFileSystem(root / "storage")
        self.catalog = CheckpointCatalog(self.filesystem, JOB)

    def land(self, number: int, keys: np.ndarray[Any, Any]) -> None:
        """Add an input file."""
        self.source.mkdir(parents=True, exist_ok=True)
        hidden = self.source / f".{number:05}.parquet"
        pq.write_table(pa.table({"k": keys}), hidden)
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(self.source / f"{number:05}.parquet")

    def land_small(self, number: int) -> None:
        """A hundredth of the keys, half of them new."""
        count = max(self._keys // 100, 2)
        old = self._random.integers(0, self._keys, count // 2)
        new = np.arange(self._keys + number * count, self._keys + number * count + count // 2)
        self.land(number, np.concatenate([old, new]))

    def run(
        self, request: RestoreRequest, seen: Callable[[Event], None] = lambda _: None, *, lost_at: int | None = None
    ) -> None:
        """Run to the end of the data.

        With ``lost_at`` the run goes on only until that batch is committed and its plan archived, and ends as if the
        process were lost: without a checkpoint.
        """

        def query(session: SparkSession) -> DataStreamWriter:
            rows = session.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(self.source))
            unique = rows.dropDuplicates(["k"])
            writer = unique.writeStream.format("parquet").option("path", str(self.sink))
            # A query that ends takes a checkpoint of its last batch; a query that is lost waits for more data.
            return writer.trigger(availableNow=True) if lost_at is None else writer.trigger(processingTime="0 seconds")

        job = StreamingJob(
            name=JOB,
            query=query,
            session=_spark,
            config=_NEVER,
            restart=NoRestart(),
            filesystem=self.filesystem,
            working_directory=self.live,
            deployment="benchmark",
            inline_threshold=20 * 1024,
        )

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            return StreamingRun(
                job, run_id=str(uuid.uuid4()), request=request, series=None, clock=SystemClock(), emit=emit
            )

        def lose() -> None:
            if lost_at is not None and self._has_run(lost_at):
                raise _Lost

        with contextlib.suppress(_Lost):
            ended = supervise(start, seen, on_turn=lose, is_cancellation=lambda: False)
            if lost_at is not None or ended.status is not JobStatus.FINISHED:
                raise RuntimeError(f"The run ended {ended.status}")

    def _has_run(self, batch: int) -> bool:
        (job_id,) = self.catalog.job_ids()
        archived = PlanArchive(self.filesystem, JOB, job_id).newest_batch()
        return archived == batch and any(self.live.glob(f"*/checkpoint/commits/{batch}"))

    def rows(self) -> int:
        """Rows that a reader of the sink sees."""
        return sum(pq.ParquetFile(file).metadata.num_rows for file in FileSink(self.sink).committed_files())

    def keep(self) -> None:
        """Remember everything as it is now."""
        for name in ("out", "storage"):
            shutil.copytree(self._root / name, self._root / "kept" / name)

    def put_back(self) -> None:
        """Everything as it was, and no live location."""
        shutil.rmtree(self.live, ignore_errors=True)
        for name in ("out", "storage"):
            shutil.rmtree(self._root / name)
            shutil.copytree(self._root / "kept" / name, self._root / name)


def _spark() -> SparkSession:
    return start_session(
        JOB,
        "local[2]",
        {
            "spark.driver.memory": "3g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )


def go_on(stream: Stream, kind: str, last: int) -> dict[str, float]:
    """Go on once; seconds until the first batch and from there to the last one."""
    stream.put_back()
    request = RestoreRequest(replay_to=None if kind == REPLAY else "none")
    began = time.monotonic()
    moments: dict[str, float] = {}
    started: list[Started] = []

    def seen(event: Event) -> None:
        if isinstance(event, Started):
            moments["started"] = time.monotonic() - began
            started.append(event)

    stream.run(request, seen)
    ended = time.monotonic() - began
    (first,) = started
    # The live location is gone with the end; the sink's log tells when each batch was written.
    log = stream.sink / "_spark_metadata"
    entries = [file for file in log.iterdir() if file.name.removesuffix(".compact").isdigit()]
    times = [file.stat().st_mtime for file in entries if 1 <= int(file.name.removesuffix(".compact")) <= last]
    return {
        "restore_s": first.restore_seconds,
        "batches_s": max(times) - min(times),
        "batches": float(len(times) - 1),
        "total_s": ended,
        "rows": float(stream.rows()),
    }


def steps(stream: Stream, directory: Path) -> dict[str, float]:
    """Milliseconds of the steps of a restore of the newest checkpoint, each by itself."""
    stream.put_back()
    found: dict[str, float] = {}

    def timed(step: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        value = call()
        found[step] = round((time.monotonic() - began) * 1000, 1)
        return value

    newest = timed("choose the checkpoint", lambda: find_newest(stream.catalog)).metadata
    target = directory / uuid.uuid4().hex
    timed("read and verify every file", lambda: verify_checkpoint(stream.catalog, newest))
    timed("read, verify and write every file", lambda: materialize_checkpoint(stream.catalog, newest, target))
    timed("adapt the location", lambda: prepare_location(target / "checkpoint"))
    sink = SparkFileSink(stream.sink)
    timed("check the sink", lambda: sink.check(newest.sink, target / "sink"))
    archive = PlanArchive(stream.filesystem, JOB, newest.job_id)
    timed("read the plans to replay", lambda: archive.after(newest))
    timed("roll the sink back", lambda: sink.rollback_to(newest.sink, target / "sink", 0))
    CheckpointLocation(target / "checkpoint").offsets(newest.batch)
    shutil.rmtree(target)
    found["checkpoint_bytes"] = newest.size
    found["checkpoint_files"] = len(newest.files)
    return found


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=100, help="to be replayed")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind, in turns")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="restore-benchmark-") as home:
        stream = Stream(Path(home) / "job", options.keys)
        stream.land(0, np.arange(options.keys))
        stream.run(RestoreRequest())
        for number in range(1, options.batches + 1):
            stream.land_small(number)
        stream.run(RestoreRequest(), lost_at=options.batches)
        stream.keep()
        by_step = [steps(stream, Path(home)) for _ in range(options.rounds)]
        rounds: dict[str, list[dict[str, float]]] = {REPLAY: [], ANEW: []}
        for number in range(options.rounds):
            for kind in (REPLAY, ANEW) if number % 2 == 0 else (ANEW, REPLAY):
                rounds[kind].append(go_on(stream, kind, options.batches))
                print(f"{kind}: {rounds[kind][-1]}", flush=True)
        _spark().stop()
    if len({run["rows"] for runs in rounds.values() for run in runs}) != 1:
        print("the two ways have not written the same number of rows", file=sys.stderr)
        return 1
    seconds = {
        kind: statistics.median(run["batches_s"] / run["batches"] for run in runs) for kind, runs in rounds.items()
    }
    report = {
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "load": os.getloadavg()},
        "keys": options.keys,
        "batches": options.batches,
        "steps_ms": {step: statistics.median(run[step] for run in by_step) for step in by_step[0]},
        "runs": rounds,
        "seconds_per_batch": seconds,
        "ratio": seconds[REPLAY] / seconds[ANEW],
    }
    print(json.dumps({key: value for key, value in report.items() if key != "runs"}, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
