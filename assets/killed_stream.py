"""A job of the example under Dagster, killed in mid-batch and resumed by the sensor.

What the kill leaves is made as bad as it gets: the driver gets SIGKILL while a batch is in flight, with what the route
says, and then the dead run's live checkpointLocation is deleted, so that only the retained checkpoints can help.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from dagster import DagsterRun

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.orchestration import ATTEMPT_TAG
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for

__all__ = ["Report", "driver_and_jvm", "finish", "kill_and_resume", "say"]

#: Seconds for what must come, on a busy machine too.
_PATIENCE = 900.0


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

    def __init__(self, storage: FileSystem, name: str) -> None:
        self.name = name
        self.catalog = CheckpointCatalog(storage, name)
        self._heartbeats = HeartbeatFile(self.catalog.filesystem, name)
        self.seen: dict[str, dict[str, object]] = {}

    def location(self) -> CheckpointLocation | None:
        chosen = self.catalog.choice()
        return None if chosen is None else CheckpointLocation(Path(chosen[1].live))

    def driver(self) -> int:
        heartbeat = self._heartbeats.read()
        if heartbeat is None:
            raise RuntimeError(f"{self.name} has no heartbeat")
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
                say(
                    f"  {row['checkpoint']:<8} batch {row['batch']:>3}  {row['files']:>3} files"
                    f" {row['bytes']:>9,} bytes  {row['new_bytes']:>9,} new  {row['milliseconds']:>6} ms"
                )
        return len(self.seen)


def driver_and_jvm(driver: psutil.Process) -> Sequence[psutil.Process]:
    """The process of a run and its JVM; the JVM ends with the process."""
    # Not all JVMs of Dagster: the one of the run that resumes the job may be there before these are gone.
    return [driver, *(process for process in driver.children() if process.name() == "java")]


def kill_and_resume(
    dev: DagsterDev,
    storage: FileSystem,
    name: str,
    report: Report,
    *,
    checkpoints: int,
    lost: Callable[[psutil.Process], Sequence[psutil.Process]] = driver_and_jvm,
) -> None:
    """Stream, kill in mid-batch, and see the sensor resume the job until it ends.

    Args:
        dev: the Dagster that has the job.
        storage: where its checkpoints are.
        name: of the job.
        report: is filled with what happens.
        checkpoints: how many are completed before the kill.
        lost: the processes that are lost with the driver. Each gets SIGKILL.

    Raises:
        RuntimeError: a run ended otherwise than it should.
        TimeoutError: something did not happen in time.
    """
    job = _Job(storage, name)
    report.first_run = dev.launch(f"{name}_job")
    say(f"Streaming in run {report.first_run}; its checkpoints:")

    def mid_batch() -> CheckpointLocation | None:
        if dev.status(report.first_run) in ("FAILURE", "CANCELED", "SUCCESS"):
            raise RuntimeError(f"The stream ended before it was killed; see {dev.log}")
        location = job.location()
        if location is None or job.look() < checkpoints:
            return None
        return location if location.planned() is not None else None

    location = wait_for(mid_batch, f"{checkpoints} checkpoints and a batch in flight", seconds=_PATIENCE, poll=0.02)
    driver = psutil.Process(job.driver())
    processes = lost(driver)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    killed = time.monotonic()
    if psutil.wait_procs(processes, timeout=60)[1]:
        raise TimeoutError("The killed processes are not gone")
    report.killed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    report.last_committed_batch = location.last_committed() or 0
    report.killed_in_batch = report.last_committed_batch + 1
    job.look()
    newest = find_newest(job.catalog).metadata
    report.newest_checkpoint_at_kill = newest.name if newest else "nothing"
    shutil.rmtree(location.path)
    report.live_location_deleted = str(location.path)
    say(
        f"SIGKILL to the driver {driver.pid} and {len(processes) - 1} more processes in batch {report.killed_in_batch} "
        f"(offsets/{report.killed_in_batch} was there, commits/{report.killed_in_batch} was not)."
    )
    say(f"Deleted its live checkpointLocation {location.path}. Waiting for the sensor ...")

    def resumed() -> DagsterRun | None:
        return next((run for run in dev.runs(name) if ATTEMPT_TAG in run.tags), None)

    run = wait_for(resumed, "the sensor to launch a run", seconds=_PATIENCE)
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

    wait_for(began, "the resumed run to restore", seconds=_PATIENCE)
    chosen = job.catalog.choice()
    report.resumed_from = (chosen[1].restored if chosen else None) or "nothing"
    if report.resumed_from != "nothing":
        report.resumed_at_batch = job.catalog.resolve(report.resumed_from).batch
    wait_for(progressed, "the resumed run to commit a batch", seconds=_PATIENCE)
    report.seconds_kill_to_batch = round(time.monotonic() - killed, 1)
    say(
        f"Run {report.resumed_run} resumed from {report.resumed_from} (batch {report.resumed_at_batch}); "
        f"first new batch {report.seconds_kill_to_batch} s after the kill. Its checkpoints:"
    )

    def ended() -> bool:
        job.look()
        return dev.status(report.resumed_run) in ("FAILURE", "CANCELED", "SUCCESS")

    wait_for(ended, f"the stream to end (see {dev.log})", seconds=2 * _PATIENCE, poll=0.3)
    finish(dev, report.resumed_run, "the resumed stream")
    report.checkpoints = list(job.seen.values())


def finish(dev: DagsterDev, run_id: str, what: str) -> None:
    """Wait until a run is over.

    Raises:
        RuntimeError: it did not succeed; ``what`` names it in the error.
    """
    if (status := dev.wait_finished(run_id)) != "SUCCESS":
        raise RuntimeError(f"{what} ended {status}; see {dev.log}")


def say(line: str) -> None:
    """Show a line at once."""
    print(line, flush=True)
