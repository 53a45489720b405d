"""The main job, headless and to its end: a stream under Dagster, killed in mid-batch, resumed, and compared.

What the kill leaves is made as bad as it gets: the run's process gets SIGKILL while a batch is in flight, and then
the dead run's live checkpointLocation is deleted, so that only the retained checkpoints can help.

With ``--bucket`` these are in a bucket: of a server on this machine that speaks the API of Google Cloud Storage, and
takes 30 ms longer for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dagster import DagsterRun

from assets.batch_answer import batch_answer, compare, read_delays
from assets.settings import (
    CATCH_UP_VARIABLE,
    CHECKPOINT_PATH_VARIABLE,
    DATA_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    DataPaths,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.orchestration import ATTEMPT_TAG
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for
from dagster_ckpt.testing.gcs.server import GcsServer

__all__ = ["main"]

JOB = "flight_delays"
_BUCKET = "checkpoints"
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Report:
    """What happened, for the terminal and for the JSON report."""

    input: str = ""
    output: str = ""
    checkpoint_path: str = ""
    checkpoints: list[dict[str, object]] = field(default_factory=list)
    killed_at: str = ""
    killed_in_batch: int = -1
    last_committed_batch: int = -1
    newest_checkpoint_at_kill: str = ""
    live_location_deleted: str = ""
    first_run: str = ""
    resumed_run: str = ""
    resumed_from: str = ""
    resumed_at_batch: int = -1
    seconds_kill_to_run: float = -1
    seconds_kill_to_batch: float = -1
    rows_expected: int = -1
    rows_found: int = -1
    rows_missing: int = -1
    rows_surplus: int = -1
    rows_in_raw_directory: int = -1
    identical: bool = False


class _Job:
    """The job's state in the storage, seen from outside."""

    def __init__(self, storage: FileSystem) -> None:
        self.catalog = CheckpointCatalog(storage, JOB)
        self._heartbeats = HeartbeatFile(self.catalog.filesystem, JOB)
        self.seen: dict[str, dict[str, object]] = {}

    def location(self) -> CheckpointLocation | None:
        chosen = self.catalog.choice()
        return None if chosen is None else CheckpointLocation(Path(chosen[1].live))

    def driver(self) -> int:
        heartbeat = self._heartbeats.read()
        if heartbeat is None:
            raise RuntimeError(f"{JOB} has no heartbeat")
        return heartbeat.processes[0].pid

    def look(self) -> int:
        """Note, and show, checkpoints not seen before; how many there have been."""
        chosen = self.catalog.choice()
        for metadata in self.catalog.completed(chosen[1].job_id)[0] if chosen else []:
            if metadata.reference not in self.seen:
                row: dict[str, object] = {
                    "checkpoint": metadata.name,
                    "epoch": metadata.epoch,
                    "batch": metadata.batch,
                    "files": len(metadata.files),
                    "bytes": metadata.size,
                    "new_bytes": metadata.new_bytes,
                    "milliseconds": round(sum(metadata.timings_ms.get(step, 0) for step in ("pin", "write")), 1),
                    "pointer": self.catalog.pointer(metadata),
                }
                self.seen[metadata.reference] = row
                _say(
                    f"  {row['checkpoint']:<8} batch {row['batch']:>3}  {row['files']:>3} files"
                    f" {row['bytes']:>9,} bytes  {row['new_bytes']:>9,} new  {row['milliseconds']:>6} ms"
                )
        return len(self.seen)


def main(arguments: list[str] | None = None) -> int:
    """Run the main job; exit status 0 only if the result is identical."""
    parser = argparse.ArgumentParser(prog="python -m assets.main_job", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, help="where everything goes; default: a new one below artifacts/main-job"
    )
    parser.add_argument("--checkpoints", type=int, default=4, help="completed checkpoints to wait for before the kill")
    parser.add_argument("--bucket", action="store_true", help="keep the checkpoints in a bucket, 30 ms a request")
    options = parser.parse_args(arguments)
    if not options.bucket:
        return _run(options, None)
    with GcsServer(latency=0.03) as server:
        server.create_bucket(_BUCKET)
        return _run(options, server)


def _run(options: argparse.Namespace, server: GcsServer | None) -> int:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory: Path = (options.directory or _ROOT / "artifacts" / "main-job" / stamp).absolute()
    paths = DataPaths(directory / "data")
    connection = {} if server is None else {"endpoint_url": server.url, "token": "anon", "project": "example"}
    storage = open_filesystem(
        str(paths.root / "checkpoints") if server is None else f"gs://{_BUCKET}/example",
        storage_options=connection or None,
    )
    dev = DagsterDev(
        _ROOT / "workspace.yaml",
        directory / "dagster_home",
        {
            DATA_VARIABLE: str(paths.root),
            CATCH_UP_VARIABLE: "1",
            CHECKPOINT_PATH_VARIABLE: storage.url,
            STORAGE_OPTIONS_VARIABLE: json.dumps(connection),
        },
    )
    report = Report(input=str(paths.landed), output=str(paths.delays), checkpoint_path=f"{storage.url}/{JOB}")
    _say(f"Everything goes to {directory}")
    _say("Starting Dagster (webserver, daemon, code location) ...")
    with dev:
        _say(f"Dagster is up at {dev.url}; its log is {dev.log}")
        _land(dev)
        _stream(dev, storage, report, checkpoints=options.checkpoints)
        _say("Making the report asset ...")
        _finish(dev, dev.launch("__ASSET_JOB", assets=[["delay_report"]]), "the report")
    _compare(paths, report)
    where = directory / "report.json"
    where.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    _summarize(report, where)
    return 0 if report.identical else 1


def _land(dev: DagsterDev) -> None:
    _say("Landing the flights of 2013, one file per day ...")
    _finish(dev, dev.launch("__ASSET_JOB", assets=[["landed_flights"]]), "the landing")


def _stream(dev: DagsterDev, storage: FileSystem, report: Report, *, checkpoints: int) -> None:
    job = _Job(storage)
    report.first_run = dev.launch(f"{JOB}_job")
    _say(f"Streaming in run {report.first_run}; its checkpoints:")

    def mid_batch() -> CheckpointLocation | None:
        if dev.status(report.first_run) in ("FAILURE", "CANCELED", "SUCCESS"):
            raise RuntimeError(f"The stream ended before it was killed; see {dev.log}")
        location = job.location()
        if location is None or job.look() < checkpoints:
            return None
        return location if location.planned() is not None else None

    location = wait_for(mid_batch, f"{checkpoints} checkpoints and a batch in flight", seconds=300, poll=0.02)
    driver = job.driver()
    os.kill(driver, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: not _alive(dev, driver), "the killed process and its JVM to be gone", seconds=60)
    report.killed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    report.last_committed_batch = location.last_committed() or 0
    report.killed_in_batch = report.last_committed_batch + 1
    job.look()
    newest = find_newest(job.catalog).metadata
    report.newest_checkpoint_at_kill = newest.name if newest else "nothing"
    shutil.rmtree(location.path)
    report.live_location_deleted = str(location.path)
    _say(
        f"SIGKILL to process {driver} in batch {report.killed_in_batch} "
        f"(offsets/{report.killed_in_batch} was there, commits/{report.killed_in_batch} was not)."
    )
    _say(f"Deleted its live checkpointLocation {location.path}. Waiting for the sensor ...")

    def resumed() -> DagsterRun | None:
        return next((run for run in dev.runs(JOB) if ATTEMPT_TAG in run.tags), None)

    run = wait_for(resumed, "the sensor to launch a run", seconds=180)
    report.resumed_run = run.run_id
    report.seconds_kill_to_run = round(time.monotonic() - killed, 1)

    def progressed() -> int | None:
        now = job.location()
        batch = None if now is None or now.path == location.path else now.last_committed()
        restored = job.catalog.choice()
        return batch if batch is not None and restored is not None and batch > report.resumed_at_batch else None

    def began() -> bool:
        now = job.location()
        return now is not None and now.path != location.path

    wait_for(began, "the resumed run to restore", seconds=180)
    chosen = job.catalog.choice()
    report.resumed_from = (chosen[1].restored if chosen else None) or "nothing"
    if report.resumed_from != "nothing":
        report.resumed_at_batch = job.catalog.resolve(report.resumed_from).batch
    wait_for(progressed, "the resumed run to commit a batch", seconds=180)
    report.seconds_kill_to_batch = round(time.monotonic() - killed, 1)
    _say(
        f"Run {report.resumed_run} resumed from {report.resumed_from} (batch {report.resumed_at_batch}); "
        f"first new batch {report.seconds_kill_to_batch} s after the kill. Its checkpoints:"
    )

    def ended() -> bool:
        job.look()
        return dev.status(report.resumed_run) in ("FAILURE", "CANCELED", "SUCCESS")

    wait_for(ended, f"the stream to end (see {dev.log})", seconds=600, poll=0.3)
    _finish(dev, report.resumed_run, "the resumed stream")
    report.checkpoints = list(job.seen.values())


def _compare(paths: DataPaths, report: Report) -> None:
    _say("Computing the same question as a batch over the same files ...")
    expected = batch_answer(paths.landed)
    found = read_delays(FileSink(paths.delays).committed_files())
    comparison = compare(expected, found)
    raw = read_delays(sorted(paths.delays.rglob("part-*.parquet")))
    report.rows_expected, report.rows_found = len(expected), len(found)
    report.rows_missing, report.rows_surplus = len(comparison.missing), len(comparison.surplus)
    report.rows_in_raw_directory = len(raw)
    report.identical = comparison.identical and compare(expected, raw).identical


def _summarize(report: Report, where: Path) -> None:
    _say("")
    _say(f"checkpoints   {len(report.checkpoints)} completed (table above; all of them in the report)")
    _say(f"killed        {report.killed_at}, in batch {report.killed_in_batch}")
    _say(f"resumed       from {report.resumed_from} (batch {report.resumed_at_batch})")
    _say(
        f"              new run after {report.seconds_kill_to_run} s, new batch after {report.seconds_kill_to_batch} s"
    )
    _say(f"rows          {report.rows_found} streamed, {report.rows_expected} by batch computation")
    _say(f"              {report.rows_missing} missing, {report.rows_surplus} surplus")
    _say(f"result        {'identical' if report.identical else 'NOT IDENTICAL'}")
    _say(f"input         {report.input}")
    _say(f"output        {report.output}")
    _say(f"report        {where}")


def _finish(dev: DagsterDev, run_id: str, what: str) -> None:
    if (status := dev.wait_finished(run_id)) != "SUCCESS":
        raise RuntimeError(f"{what} ended {status}; see {dev.log}")


def _alive(dev: DagsterDev, driver: int) -> bool:
    """Whether the driver, or a JVM of its, is still there."""
    return bool(dev.jvms()) or any(process.pid == driver for process in dev.processes())


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
