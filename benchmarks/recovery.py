"""How long a failure stops a stream: from the failure to the first newly committed batch, split into its parts.

    python benchmarks/recovery.py --output recovery.json

Ways to fail:

* ``new-run``: the example job under a real ``dagster dev``. The run's process gets SIGKILL in mid-batch and its live
  checkpointLocation is deleted, so the sensor launches a new run, which restores a retained checkpoint.
  ``--pairs`` does this without and with a class archive, in turns (A B B A ...), each in a Dagster of its own.
  ``--whole-standby`` does this without and with a standby for the whole job.
* ``jvm``: a driver whose JVM gets SIGKILL in mid-batch; the same process starts another JVM.
* ``standby``: a driver gets SIGKILL in mid-batch, and another driver begins at that moment on the same host, without
  and with a standby JVM in turns. Only with ``--standby PAIRS``.
* ``elsewhere``: a driver and its JVM get SIGKILL in mid-batch. At that moment another driver begins, under another host
  name (a UTS namespace of its own) and in another working directory. It waits for the lease of the dead run, 5 s.
* ``in-run``: a ``StreamingRun`` whose query throws in a task; it restarts in the same process and Spark application.

All times are differences of timestamps on this machine: Dagster's event log, the run's own log lines, the control
files of the storage, the modification times of ``commits/``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows it by
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "drivers")]

import recovery_driver  # type: ignore[import-not-found]  # noqa: E402 - as its own process finds it

from assets.flights import land  # noqa: E402
from assets.settings import (  # noqa: E402
    CHECKPOINT_PATH_VARIABLE,
    DATA_VARIABLE,
    MAX_FILES_VARIABLE,
    STANDBY_VARIABLE,
    DataPaths,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: E402
from dagster_ckpt.checkpoint.control.epochs import Choice  # noqa: E402
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile  # noqa: E402
from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR  # noqa: E402
from dagster_ckpt.checkpoint.standbys import Standbys  # noqa: E402
from dagster_ckpt.checkpoint.start_traces import StartTrace  # noqa: E402
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD  # noqa: E402
from dagster_ckpt.clock import SystemClock  # noqa: E402
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus  # noqa: E402
from dagster_ckpt.config.recovery import RestoreRequest  # noqa: E402
from dagster_ckpt.config.restart import RestartStrategies  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.orchestration import PARENT_RUN_TAG  # noqa: E402
from dagster_ckpt.spark import (  # noqa: E402
    Event,
    Restarting,
    SparkStarted,
    Started,
    StreamingJob,
    StreamingRun,
    make_class_archive,
    start_session,
    supervise,
)
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation  # noqa: E402
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink  # noqa: E402
from dagster_ckpt.spark.standby.place import directory as standbys  # noqa: E402
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for  # noqa: E402

JOB = "flight_delays"
#: What a case is split into; they follow one another without a gap and add up to ``total``.
STAGES = ("detection", "decision", "process_start", "spark_start", "restore", "first_batch")
#: As if on another host: no process of the host that failed can be looked at or killed.
_ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "--")
#: Seconds of the lease of the driver that is taken over from elsewhere.
_LEASE = 5.0
_OVER = ("SUCCESS", "FAILURE", "CANCELED")
_RESTORED = re.compile(r"Restored in ([0-9.]+) s")
_THROWN = re.compile(r"thrown at (\d+)")


@dataclass(slots=True)
class Case:
    """One failure.

    Attributes:
        restored_batch: the batch of the checkpoint it went on from.
        first_batch: the first batch committed anew.
        stages: seconds of each of :data:`STAGES`.
        moments: seconds from the failure to single moments, for a closer look.
        total: seconds from the failure to the first newly committed batch.
        load: the machine's load average at the failure.
        cpu: seconds of processor time of the resumed run's process and its JVM until then; they hardly depend on what
            else the machine does.
        trace: seconds of each step of the resumed start, as ``dagster-ckpt starts`` tells them.
    """

    restored_batch: int
    first_batch: int
    stages: dict[str, float]
    moments: dict[str, float]
    total: float
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    cpu: float | None = None
    trace: dict[str, float] = field(default_factory=dict)


class NewRun:
    """The example job, killed and resumed under Dagster, each case from scratch.

    Args:
        directory: emptied before each case.
        cache: the directory of class archives, empty for none.
        standby: whether a standby waits beside the run, and is warm at the kill; ``None`` for the example as it is.
            Else a batch takes one file and not four, so that the stream is not over before.
    """

    def __init__(self, directory: Path, cache: str = "", standby: bool | None = None) -> None:
        self._standby = standby
        self._paths = DataPaths(directory / "data")
        # Of the benchmark's own whatever the user's environment says: each case empties this directory.
        self._checkpoints = directory / "data" / "checkpoints"
        variables = {
            DATA_VARIABLE: str(self._paths.root),
            CHECKPOINT_PATH_VARIABLE: str(self._checkpoints),
            "DAGSTER_CKPT_CACHE": cache,
        }
        if standby is not None:
            variables |= {STANDBY_VARIABLE: str(int(standby)), MAX_FILES_VARIABLE: "1"}
        self._dev = DagsterDev(ROOT / "workspace.yaml", directory / "dagster_home", variables)

    def run(self, cases: int, checkpoints: int) -> list[Case]:
        """Run the cases one after another in one Dagster instance."""
        land(self._paths.landed)
        done: list[Case] = []
        with self._dev:
            for number in range(1, cases + 1):
                done.append(self._one(checkpoints))
                _say(number, done[-1])
        return done

    def _one(self, checkpoints: int) -> Case:
        for directory in (self._paths.delays, self._checkpoints):
            shutil.rmtree(directory, ignore_errors=True)
        first = self._dev.launch(f"{JOB}_job")
        location = wait_for(
            lambda: self._mid_batch(first, checkpoints),
            f"{checkpoints} checkpoints and a batch in flight (see {self._dev.log})",
            seconds=300,
            poll=0.02,
        )
        driver = self._driver()
        load = round(os.getloadavg()[0], 2)
        killed = time.time()
        heartbeat = self._catalog().records.heartbeat.read()
        os.kill(driver, signal.SIGKILL)
        if self._standby:  # which does not wait
            shutil.rmtree(location.path.parent, ignore_errors=True)
        left = [] if heartbeat is None else heartbeat.processes
        wait_for(
            lambda: not any(process.is_alive() for process in left),
            "the killed process and its JVM to be gone",
            seconds=60,
        )
        gone = time.time()
        # Of the whole attempt: nothing but the retained checkpoints is left to go on from.
        shutil.rmtree(location.path.parent, ignore_errors=True)
        log = f"(see {self._dev.log})"
        second = wait_for(lambda: self._resumed(first), f"the sensor to resume {first} {log}", seconds=240)
        live, restored = wait_for(lambda: self._restored(location.path), f"{second} to restore {log}", seconds=240)
        batch, committed = _first_commit(live, restored)
        cpu = None if self._standby else self._cpu_seconds()  # else it is that of the warm-up, too
        started = wait_for(lambda: self._log_line(second, "Restored in"), f"the log of {second}", seconds=60)
        marks = self._marks(first, second, killed)
        seconds = float(_RESTORED.findall(started[1])[0])
        if self._standby:  # its run was enqueued and started before the kill
            marks |= dict.fromkeys(("run enqueued", "step started"), marks["epoch claimed"])
        case = _case(
            killed,
            {
                "detection": marks["failure visible"],
                "decision": marks["run enqueued"],
                "process_start": marks["step started"],
                "spark_start": marks["Spark started"],
                "restore": marks["Spark started"] + seconds,
                "first_batch": committed,
            },
            {**marks, "processes gone": gone, "query started": started[0], "first batch committed": committed},
            (restored, batch),
        )
        case.load, case.cpu = load, cpu
        (trace,) = wait_for(self._trace, "the trace of the start", seconds=60)
        case.trace = trace.by_name
        self._end(second)
        return case

    def _marks(self, first: str, second: str, killed: float) -> dict[str, float]:
        """Moments from Dagster's event log and the control files."""
        catalog = self._catalog()
        epochs = catalog.records.epochs
        claim = epochs.read_claim(epochs.highest())
        chosen = catalog.choice()
        if claim is None or chosen is None or claim.run_id != second:
            raise RuntimeError(f"The newest epoch is not one of run {second}")
        choice = self._checkpoints / JOB / CONTROL_DIR / "epochs" / f"e-{chosen[0]:010}.choice"
        marks = {
            "failure visible": self._event(first, dg.DagsterEventType.RUN_FAILURE),
            "run enqueued": self._event(second, dg.DagsterEventType.RUN_ENQUEUED),
            "run starting": self._event(second, dg.DagsterEventType.RUN_STARTING),
            "run started": self._event(second, dg.DagsterEventType.RUN_START),
            "step started": self._event(second, dg.DagsterEventType.STEP_START),
            "epoch claimed": datetime.fromisoformat(claim.claimed_at).timestamp(),
            "choice recorded": choice.stat().st_mtime,
        }
        spark = self._log_line(second, "Spark started in")
        if spark is None:
            raise RuntimeError(f"Run {second} does not say when Spark started")
        marks["Spark started"] = spark[0]
        if marks["failure visible"] < killed:
            raise RuntimeError(f"Run {first} had failed before it was killed; see {self._dev.log}")
        return marks

    def _event(self, run_id: str, kind: dg.DagsterEventType) -> float:
        with self._dev.instance() as instance:
            entries = instance.all_logs(run_id, of_type=kind)
        if not entries:
            raise RuntimeError(f"Run {run_id} has no {kind.value} in its event log; see {self._dev.log}")
        return float(entries[0].timestamp)

    def _log_line(self, run_id: str, text: str) -> tuple[float, str] | None:
        with self._dev.instance() as instance:
            entries = instance.all_logs(run_id)
        found = (entry for entry in entries if text in (entry.user_message or ""))
        return next(((float(entry.timestamp), entry.user_message) for entry in found), None)

    def _mid_batch(self, run_id: str, checkpoints: int) -> CheckpointLocation | None:
        if (status := self._dev.status(run_id)) in _OVER:
            raise RuntimeError(f"Run {run_id} ended {status} before it was killed; see {self._dev.log}")
        catalog = self._catalog()
        chosen = catalog.choice()
        if chosen is None or len(catalog.completed(chosen[1].job_id)[0]) < checkpoints:
            return None
        if self._standby and not Standbys(catalog.filesystem, JOB).all():
            return None
        location = CheckpointLocation(Path(chosen[1].live))
        return location if location.planned() is not None else None

    def _restored(self, before: Path) -> tuple[CheckpointLocation, int] | None:
        catalog = self._catalog()
        chosen = catalog.choice()
        if chosen is None or Path(chosen[1].live) == before:
            return None
        if chosen[1].restored is None:
            raise RuntimeError("The resumed run began from nothing")
        return CheckpointLocation(Path(chosen[1].live)), catalog.resolve(chosen[1].restored).batch

    def _resumed(self, run_id: str) -> str | None:
        runs = (run for run in self._dev.runs(JOB) if run.tags.get(PARENT_RUN_TAG) == run_id)
        return next((run.run_id for run in runs), None)

    def _driver(self) -> int:
        heartbeat = HeartbeatFile(self._catalog().filesystem, JOB).read()
        if heartbeat is None:
            raise RuntimeError(f"{JOB} has no heartbeat")
        return heartbeat.processes[0].pid

    def _cpu_seconds(self) -> float:
        """Of the driver and its JVM, with the processes that they have waited for."""
        heartbeat = self._catalog().records.heartbeat.read()
        if heartbeat is None:
            raise RuntimeError(f"{JOB} has no heartbeat")
        times = (psutil.Process(process.pid).cpu_times() for process in heartbeat.processes)
        return round(sum(sum(spent[:4]) for spent in times), 2)

    def _trace(self) -> Sequence[StartTrace] | None:
        records = self._catalog().records
        newest = records.starts.newest(1)
        return newest if newest and newest[0].epoch == records.epochs.highest() else None

    def _end(self, run_id: str) -> None:
        self._dev.terminate(run_id)
        self._dev.wait_finished(run_id)
        wait_for(lambda: not self._dev.jvms(), "the JVM of the resumed run to be gone", seconds=60)

    def _catalog(self) -> CheckpointCatalog:
        return CheckpointCatalog(open_filesystem(str(self._checkpoints)), JOB)


class Driven:
    """A stream in a process of its own (``drivers/recovery_driver.py``), hit in mid-batch; each case from scratch.

    Args:
        directory: emptied before each case.
        lease: seconds.
        elsewhere: kill the whole driver, and begin another as if on another host; else kill its JVM only.
        standby: kill the whole driver, and begin another on this host, with a standby or without one.
    """

    FILES = 200
    ROWS = 1000

    def __init__(self, directory: Path, lease: float, *, elsewhere: bool, standby: bool | None = None) -> None:
        self._directory = directory
        self._standby = standby
        self._lease = lease
        self._elsewhere = elsewhere
        self._catalog = CheckpointCatalog(open_filesystem(str(directory / "checkpoints")), recovery_driver.NAME)

    def run(self, cases: int, checkpoints: int) -> list[Case]:
        """Run the cases one after another."""
        done = []
        for number in range(1, cases + 1):
            shutil.rmtree(self._directory, ignore_errors=True)
            self._land()
            drivers: list[psutil.Popen] = []
            try:
                done.append(self._one(drivers, checkpoints))
            finally:
                for driver in drivers:
                    _kill_family(driver)
            _say(number, done[-1])
        return done

    def _one(self, drivers: list[psutil.Popen], checkpoints: int) -> Case:
        drivers.append(self._start("here"))
        live = wait_for(partial(self._mid_batch, drivers[0], checkpoints), "a batch in flight", seconds=300, poll=0.02)
        heartbeat = self._catalog.records.heartbeat.read()
        if heartbeat is None:
            raise RuntimeError("The driver has no heartbeat")
        if self._standby:
            wait_for(lambda: list(standbys().glob("*.sock")), "a standby", seconds=300)
            live = wait_for(partial(self._mid_batch, drivers[0], 0), "a batch in flight", seconds=60, poll=0.02)
        load, killed = round(os.getloadavg()[0], 2), time.time()
        if self._standby is not None:
            drivers[0].kill()
            drivers[0].wait()
            drivers.append(self._start("here"))
        elif self._elsewhere:
            _kill_family(drivers[0])
            drivers.append(self._start("elsewhere", *_ELSEWHERE))
        else:
            os.kill(heartbeat.processes[1].pid, signal.SIGKILL)
            shutil.rmtree(live.path.parent)
        records = self._catalog.records
        epoch, choice = wait_for(lambda: self._chosen_after(heartbeat.epoch), "the next start", seconds=240, poll=0.02)
        if choice.restored is None:
            raise RuntimeError("The next start began from nothing")
        restored = self._catalog.resolve(choice.restored).batch
        batch, committed = _first_commit(CheckpointLocation(Path(choice.live)), restored)
        (trace,) = wait_for(lambda: self._trace(epoch), "the trace of the start", seconds=60)
        claim = records.epochs.read_claim(epoch)
        if claim is None:
            raise RuntimeError("The next start has no claim")
        claimed = datetime.fromisoformat(claim.claimed_at).timestamp()
        failures = records.failures.of(claim.series)
        noticed = claimed if self._elsewhere or self._standby is not None else failures[-1].at
        ready = claimed + trace.by_name.get("session", 0.0) + trace.by_name.get("watchdog", 0.0)
        recorded = (self._directory / "checkpoints" / recovery_driver.NAME / CONTROL_DIR / "epochs").joinpath(
            f"e-{epoch:010}.choice"
        )
        case = _case(
            killed,
            {
                "detection": noticed,
                "decision": claimed,
                "process_start": claimed,
                "spark_start": ready,
                "restore": recorded.stat().st_mtime,
                "first_batch": committed,
            },
            {"epoch claimed": claimed, "first batch committed": committed},
            (restored, batch),
        )
        case.load, case.trace = load, trace.by_name
        return case

    def _start(self, live: str, *within: str) -> psutil.Popen:
        script = Path(recovery_driver.__file__)
        with (self._directory / f"{live}.log").open("wb") as log:
            command = [*within, sys.executable, str(script), str(self._directory), live, str(self._lease)]
            command += ["standby"] if self._standby else []
            # Nobody resolves the other host's name.
            environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
            return psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _mid_batch(self, driver: psutil.Popen, checkpoints: int) -> CheckpointLocation | None:
        if driver.poll() is not None:
            raise RuntimeError(f"The driver has ended; see {self._directory / 'here.log'}")
        chosen = self._catalog.choice()
        if chosen is None or len(self._catalog.completed(chosen[1].job_id)[0]) < checkpoints:
            return None
        location = CheckpointLocation(Path(chosen[1].live))
        return location if location.planned() is not None else None

    def _chosen_after(self, epoch: int) -> tuple[int, Choice] | None:
        chosen = self._catalog.choice()
        return chosen if chosen is not None and chosen[0] > epoch else None

    def _trace(self, epoch: int) -> Sequence[StartTrace] | None:
        newest = self._catalog.records.starts.newest(1)
        return newest if newest and newest[0].epoch == epoch else None

    def _land(self) -> None:
        directory = self._directory / "in"
        directory.mkdir(parents=True)
        for number in range(self.FILES):
            path = directory / f"{number:06}.parquet"
            ids = np.arange(number * self.ROWS, (number + 1) * self.ROWS, dtype="int64")
            pq.write_table(pa.table({"id": ids}), path)
            os.utime(path, (time.time() - 86_400 + number,) * 2)


def _kill_family(driver: psutil.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [driver, *driver.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)


class InRun:
    """A stream of distinct ids into a Parquet file sink whose tasks throw every so many batches."""

    NAME = "recovery"
    NEW_PER_BATCH = 1_000

    def __init__(self, directory: Path, keys: int, restarts: int, every: int, delay: float) -> None:
        self._directory = directory
        self._keys = keys
        self._restarts = restarts
        self._every = every
        self._delay = delay
        self._attempts = 0
        self._catalog = CheckpointCatalog(open_filesystem(str(directory / "checkpoints")), self.NAME)
        self._times: dict[str, float] = {}
        self._cases: list[Case] = []
        self._spark: SparkSession | None = None

    def run(self) -> list[Case]:
        """Drive the stream to its end, through every failure, and check that its output is exact."""
        ids = self._land()
        job = StreamingJob(
            name=self.NAME,
            query=self._query,
            session=self._session,
            config=CheckpointConfig(interval="1 s"),
            restart=RestartStrategies.fixed_delay_restart(self._restarts, timedelta(seconds=self._delay)),
            filesystem=self._catalog.filesystem,
            working_directory=self._directory / "live",
            deployment="benchmark",
            inline_threshold=DEFAULT_INLINE_THRESHOLD,
        )

        def start(emit: Callable[[Event], None]) -> StreamingRun:
            def seen(event: Event) -> None:
                self._note_time(event)
                emit(event)

            return StreamingRun(
                job, run_id=str(uuid.uuid4()), request=RestoreRequest(), series=None, clock=SystemClock(), emit=seen
            )

        try:
            result = supervise(start, self._watch)
        finally:
            if self._spark is not None:
                self._spark.stop()
        if result.status is not JobStatus.FINISHED:
            raise RuntimeError(f"The stream ended {result.status}")
        files = FileSink(self._directory / "output").committed_files()
        found = np.concatenate([pq.ParquetFile(file).read()["id"].to_numpy() for file in files])
        if not np.array_equal(np.sort(found), np.arange(ids)):
            raise RuntimeError(f"The output is not exact: {len(found)} rows, {ids} expected")
        return self._cases

    def _note_time(self, event: Event) -> None:
        """On the thread that drives Spark: when it happened, before anything else is done about it."""
        now = time.time()
        if isinstance(event, Restarting):
            thrown = _THROWN.search(event.error)
            if thrown is None:
                raise RuntimeError(f"Another failure than the one asked for: {event.error}")
            self._times = {"thrown": int(thrown[1]) / 1000, "noticed": now}
        elif isinstance(event, SparkStarted):
            self._times["Spark started"] = now
        elif isinstance(event, Started):
            self._times["query started"] = now

    def _watch(self, event: Event) -> None:
        """On the main thread: after a restart, wait for the first new commit and make a case of it."""
        if not isinstance(event, Started) or event.epoch == 1:
            return
        times, restored = dict(self._times), event.restored
        claim, chosen = self._catalog.records.epochs.read_claim(event.epoch), self._catalog.choice()
        if restored is None or claim is None or chosen is None:
            raise RuntimeError("The restart began from nothing")
        batch, committed = _first_commit(CheckpointLocation(Path(chosen[1].live)), restored.batch)
        claimed = datetime.fromisoformat(claim.claimed_at).timestamp()
        case = _case(
            times["thrown"],
            {
                "detection": times["noticed"],
                "decision": claimed,
                "process_start": claimed,
                "spark_start": times["Spark started"],
                "restore": times["Spark started"] + event.restore_seconds,
                "first_batch": committed,
            },
            {"query started": times["query started"], "first batch committed": committed},
            (restored.batch, batch),
        )
        self._cases.append(case)
        _say(len(self._cases), case)

    def _query(self, session: SparkSession) -> DataStreamWriter:
        """Each id once. The attempt fails at a file of its own, so that its successor gets past it."""
        self._attempts += 1
        last = self._attempts > self._restarts
        limit = 2**31 - 1 if last else self._every * self._attempts
        now = F.expr("java_method('java.lang.System', 'currentTimeMillis')")
        rows = (
            session.readStream.schema("id LONG, file INT")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._directory / "input"))
        )
        checked = rows.select(
            F.when(F.col("file") >= limit, F.raise_error(F.concat(F.lit("thrown at "), now)).cast("long"))
            .otherwise(F.col("id"))
            .alias("id")
        )
        writer = checked.dropDuplicates(["id"]).writeStream.format("parquet")
        return writer.option("path", str(self._directory / "output")).trigger(availableNow=True)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = start_session(
                self.NAME,
                "local[2]",
                {
                    "spark.driver.bindAddress": "127.0.0.1",
                    "spark.driver.host": "127.0.0.1",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.ui.enabled": "false",
                    "spark.ui.showConsoleProgress": "false",
                },
            )
            self._spark.sparkContext.setLogLevel("OFF")  # every failure is wanted here and is shown as a case
        return self._spark

    def _land(self) -> int:
        """Write the input: the first file fills the state, each later one repeats some ids; how many ids there are."""
        directory = self._directory / "input"
        directory.mkdir(parents=True)
        ids = 0
        for number in range(self._every * (self._restarts + 1) + 1):
            new = self._keys if number == 0 else self.NEW_PER_BATCH
            first = max(ids - self.NEW_PER_BATCH, 0)
            table = pa.table(
                {
                    "id": np.arange(first, ids + new, dtype="int64"),
                    "file": np.full(ids + new - first, number, dtype="int32"),
                }
            )
            path = directory / f"{number:06}.parquet"
            pq.write_table(table, path)
            os.utime(path, (time.time() - 86_400 + number,) * 2)  # Spark takes files by modification time
            ids += new
        return ids


def in_pairs(directory: Path, pairs: int, checkpoints: int) -> dict[str, list[Case]]:
    """Kills without a class archive and with one, in turns; the archive is made before the first."""
    cache = directory / "cache"
    os.environ["DAGSTER_CKPT_CACHE"] = str(cache)
    make_class_archive({}, wait=True)
    found: dict[str, list[Case]] = {"no archive": [], "archive": []}
    for pair in range(pairs):
        for kind in ("no archive", "archive") if pair % 2 == 0 else ("archive", "no archive"):
            place = directory / f"{pair}-{kind.replace(' ', '-')}"
            found[kind] += NewRun(place, str(cache) if kind == "archive" else "").run(1, checkpoints)
            shutil.rmtree(place)
    return found


def with_standby(place: Path, pairs: int, checkpoints: int) -> dict[str, list[Case]]:
    """Kills of a driver without a standby and with one, in turns; both without a class archive."""
    os.environ["DAGSTER_CKPT_CACHE"] = ""
    place.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)  # where standbys listen
    found: dict[str, list[Case]] = {"no standby": [], "standby": []}
    for pair in range(pairs):
        for kind in ("no standby", "standby") if pair % 2 == 0 else ("standby", "no standby"):
            driven = Driven(
                place / f"{pair}-{kind.replace(' ', '-')}", 30.0, elsewhere=False, standby=kind == "standby"
            )
            found[kind] += driven.run(1, checkpoints)
            for left in standbys().glob("*.sock"):
                left.unlink()
    return found


def with_whole_standby(place: Path, pairs: int, checkpoints: int) -> dict[str, list[Case]]:
    """Kills of a run without a standby for the whole job and with one, in turns; both without a class archive."""
    found: dict[str, list[Case]] = {"no whole standby": [], "whole standby": []}
    for pair in range(pairs):
        for standby in (False, True) if pair % 2 == 0 else (True, False):
            directory = place / f"{pair}-{standby}"
            kind = "whole standby" if standby else "no whole standby"
            found[kind] += NewRun(directory, standby=standby).run(1, checkpoints)
            shutil.rmtree(directory)
    return found


def paired(results: Mapping[str, Sequence[Case]], kind: str) -> dict[str, float]:
    """Of the pairs: the median ratio, with to without something, of processor time and of each stage."""
    pairs = list(zip(results[kind], results[f"no {kind}"], strict=True))
    spent = [(with_one.cpu, without.cpu) for with_one, without in pairs]
    ratios = {"cpu": [one / other for one, other in spent if one and other]}
    ratios["total"] = [one.total / other.total for one, other in pairs]
    for stage in STAGES:
        ratios[stage] = [one.stages[stage] / other.stages[stage] for one, other in pairs if other.stages[stage]]
    return {name: round(statistics.median(values), 3) for name, values in ratios.items() if values}


def _first_commit(live: CheckpointLocation, restored: int) -> tuple[int, float]:
    """The first batch committed after the restored one, and when."""
    batch = restored + 1
    commit = live.path / "commits" / str(batch)
    wait_for(commit.exists, f"batch {batch} to be committed", seconds=240, poll=0.01)
    return batch, commit.stat().st_mtime


def _case(failed: float, ends: Mapping[str, float], moments: Mapping[str, float], batches: tuple[int, int]) -> Case:
    """A case from the moments its stages ended, in the order of :data:`STAGES`."""
    stages, before = {}, failed
    for stage in STAGES:
        stages[stage] = round(ends[stage] - before, 3)
        before = ends[stage]
    after = {name: round(moment - failed, 3) for name, moment in sorted(moments.items(), key=lambda item: item[1])}
    return Case(*batches, stages, after, round(before - failed, 3))


def _say(number: int, case: Case) -> None:
    stages = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in case.stages.items())
    print(f"{number:>4}  {stages}  total {case.total:.2f} s  (load {case.load})", flush=True)


def summarize(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Median, least and greatest seconds of each stage and of the total."""
    columns = {stage: [case.stages[stage] for case in cases] for stage in STAGES}
    columns["total"] = [case.total for case in cases]
    return {
        name: {"median": round(statistics.median(values), 3), "min": min(values), "max": max(values)}
        for name, values in columns.items()
    }


def _table(results: Mapping[str, Sequence[Case]]) -> str:
    summaries = {kind: summarize(cases) for kind, cases in results.items() if cases}
    lines = ["stage            " + "".join(f"{f'{kind} (n={len(results[kind])})':>28}" for kind in summaries)]
    for stage in (*STAGES, "total"):
        cells = [summary[stage] for summary in summaries.values()]
        texts = (f"{cell['median']:.2f} ({cell['min']:.2f}..{cell['max']:.2f}) s" for cell in cells)
        lines.append(f"{stage.replace('_', ' '):<17}" + "".join(f"{text:>28}" for text in texts))
    return "\n".join(lines)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5, help="kills of the run process; 0 to leave them out")
    parser.add_argument("--pairs", type=int, default=0, help="kills without and with a class archive, in turns")
    parser.add_argument("--standby", type=int, default=0, help="kills without and with a standby JVM, in turns")
    parser.add_argument(
        "--whole-standby", type=int, default=0, help="kills without and with a standby for the whole job, in turns"
    )
    parser.add_argument("--jvm", type=int, default=5, help="kills of a driver's JVM; 0 to leave them out")
    parser.add_argument("--elsewhere", type=int, default=5, help="takeovers from another host; 0 to leave them out")
    parser.add_argument("--checkpoints", type=int, default=3, help="completed checkpoints before a kill")
    parser.add_argument("--restarts", type=int, default=5, help="failures of the query; 0 to leave them out")
    parser.add_argument(
        "--every", type=int, default=15, help="batches between two failures, with a checkpoint each second"
    )
    parser.add_argument("--keys", type=int, default=100_000, help="keys of state of the query that fails")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds the restart strategy waits, within the run")
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "recovery", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON with every case; default: recovery.json in the directory")
    options = parser.parse_args()
    directory: Path = options.directory.absolute()
    output: Path = (options.output or directory / "recovery.json").absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    results: dict[str, list[Case]] = {}
    if options.cases:
        print("New run: SIGKILL to the run's process in mid-batch, live location deleted", flush=True)
        results["new run"] = NewRun(directory / "new-run").run(options.cases, options.checkpoints)
    ratios: dict[str, float] = {}
    if options.pairs:
        print("New run, without and with a class archive in turns", flush=True)
        results |= in_pairs(directory / "pairs", options.pairs, options.checkpoints)
        ratios = paired(results, "archive")
        print(f"median ratio of the pairs: {ratios}", flush=True)
    if options.standby:
        print("SIGKILL to a driver in mid-batch, without and with a standby in turns", flush=True)
        results |= with_standby(directory / "standby", options.standby, options.checkpoints)
        ratios = paired(results, "standby")
        print(f"median ratio of the pairs: {ratios}", flush=True)
    if options.whole_standby:
        print("SIGKILL to the run's process, without and with a standby for the whole job in turns", flush=True)
        results |= with_whole_standby(directory / "whole-standby", options.whole_standby, options.checkpoints)
        ratios = paired(results, "whole standby")
        print(f"median ratio of the pairs: {ratios}", flush=True)
    if options.jvm:
        print("Restart inside the run: SIGKILL to the JVM in mid-batch, live location deleted", flush=True)
        results["jvm"] = Driven(directory / "jvm", 30.0, elsewhere=False).run(options.jvm, options.checkpoints)
    if options.elsewhere:
        print(f"Another host takes over, with a lease of {_LEASE:.0f} s", flush=True)
        results["elsewhere"] = Driven(directory / "elsewhere", _LEASE, elsewhere=True).run(
            options.elsewhere, options.checkpoints
        )
    if options.restarts:
        print("Restart inside the run: a task throws", flush=True)
        results["in run"] = InRun(
            directory / "in-run", options.keys, options.restarts, options.every, options.delay
        ).run()
    print(f"\n{_table(results)}")
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "parameters": {name: getattr(options, name) for name in ("checkpoints", "every", "keys", "delay")},
        "ratios": ratios,
        "summary": {kind: summarize(cases) for kind, cases in results.items()},
        "cases": {kind: [asdict(case) for case in cases] for kind, cases in results.items()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nreport: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
