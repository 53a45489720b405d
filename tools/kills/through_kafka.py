"""The kills of ``tools/random_kills.py`` for the flights through Kafka into a table, driven by ``dagster-ckpt run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
import psutil

from assets.batch_answer import normalized
from assets.delays import delays_from_kafka
from assets.resources import resources
from assets.routes import FlightTopic, flights_in_kafka
from assets.settings import CATCH_UP_VARIABLE, DATA_VARIABLE, JARS_VARIABLE, DataPaths
from dagster_ckpt import IcebergSink, sink_to
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.testing.dagster_dev import wait_for
from dagster_ckpt.testing.maven import DELTA, Artifact
from tests.helpers.local_spark import ICEBERG, SQLITE, set_up_jvms
from tests.jobs.tables.iceberg import current, lake
from tools.kills.cases import Case, Kills, is_gone

if TYPE_CHECKING:
    from dagster import AssetExecutionContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: Several checkpoints in the life of a job, and no longer pauses from kill to kill.
_SETTINGS = (
    "--set=execution.checkpointing.interval=2 s",
    "--set=restart-strategy.type=fixed-delay",
    "--set=restart-strategy.fixed-delay.attempts=10",
    "--set=restart-strategy.fixed-delay.delay=1 s",
)
_ROOT = Path(__file__).resolve().parents[2]


def flight_delays_iceberg(context: AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
    """The example's query from Kafka, into an Iceberg table."""
    del context
    catalog = lake(spark, DataPaths.from_environment().root / "lake")
    writer = sink_to(delays_from_kafka(spark), IcebergSink(f"{catalog}.db.flight_delays"))
    return writer.trigger(availableNow=True)


iceberg_resources = resources({"spark.jars": os.environ.get(JARS_VARIABLE, "")})


class KafkaKills(Kills):
    """Through one broker of Kafka into a table."""

    KINDS = ("driver", "JVM", "`dagster-ckpt run` itself")
    OF_A_JOB = 5
    COMMITS = (-1, 2)
    #: What the command runs, and with which resources.
    TARGET: ClassVar[tuple[str, str]]
    #: What a driver needs to write the table, in Maven's repository.
    TABLES: ClassVar[tuple[Artifact, ...]]

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self._log = directory / "log"
        self._command: psutil.Popen | None = None
        self._topic: FlightTopic | None = None

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.TARGET[0].partition(":")[2]

    @contextmanager
    def ready(self) -> Iterator[None]:
        """A broker with the flights."""
        set_up_jvms()
        with flights_in_kafka(self.paths, *self.TABLES) as self._topic:
            self._topic.feed()
            try:
                yield
            finally:
                if self._command is not None and self._command.poll() is None:
                    self._command.terminate()
                    self._command.wait()

    def start(self, kind: str) -> None:
        """Start the command."""
        del kind
        assert self._topic is not None
        target, among = self.TARGET
        variables = {DATA_VARIABLE: str(self.paths.root), CATCH_UP_VARIABLE: "1", **self._topic.environment}
        with self._log.open("ab") as log:
            self._command = psutil.Popen(
                [sys.executable, "-m", "dagster_ckpt.cli", "run", target, "--resources", among, *_SETTINGS],
                cwd=_ROOT,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, case: Case, heartbeat: Heartbeat) -> None:
        """Kill while the process that would resume the job is stopped, so that the job stays dead meanwhile."""
        assert self._command is not None
        driver = psutil.Process(heartbeat.processes[0].pid)
        jvms = [child for child in driver.children(recursive=True) if child.name() == "java"]
        if case.kind == "JVM":
            with _stopped(driver):
                for jvm in jvms:
                    jvm.kill()
                self._await_gone(jvms)
                self.lose(case)
            return
        itself = case.kind != "driver"
        with _stopped(self._command):
            (self._command if itself else driver).kill()
            self._await_gone([driver, *jvms])
            self.lose(case)
        if itself:
            self._command.wait()
            self.start(case.kind)

    def await_quiet(self) -> None:
        """Wait for the command's end, which must be a good one."""
        assert self._command is not None
        if status := self._command.wait(120):
            raise RuntimeError(f"dagster-ckpt run has ended with {status}; see {self._log}")

    @staticmethod
    def _await_gone(processes: list[psutil.Process]) -> None:
        wait_for(lambda: all(is_gone(process.pid) for process in processes), "what was killed to be gone")


@contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    """A process that is stopped meanwhile; it may be killed, too."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if process.is_running():
            process.send_signal(signal.SIGCONT)


class DeltaKills(KafkaKills):
    """The example's second path: ``assets/kafka_to_delta.py``."""

    TARGET = ("assets.kafka_to_delta:flight_delays_table", "assets.kafka_to_delta:defs")
    TABLES = (DELTA["4.2"],)
    COMPARED = "in the table as deltalake reads it"

    @property
    def output(self) -> Path:
        """Where the table is."""
        return self.paths.delays_table

    def read(self) -> pd.DataFrame:
        """The rows of the table, read without Spark."""
        from deltalake import DeltaTable  # noqa: PLC0415 - of the extra `dev`

        return normalized(DeltaTable(os.fspath(self.output)).to_pandas())


class IcebergKills(KafkaKills):
    """The same query into an Iceberg table, whose catalog is a database of SQLite."""

    TARGET = ("tools.kills.through_kafka:flight_delays_iceberg", "tools.kills.through_kafka:iceberg_resources")
    TABLES = (ICEBERG["4.1"], SQLITE)
    COMPARED = "in the table as pyiceberg reads it"

    @property
    def output(self) -> Path:
        """Where the catalog and its table are."""
        return self.paths.root / "lake"

    def read(self) -> pd.DataFrame:
        """The rows of the table, read without Spark."""
        return normalized(current(self.output).scan().to_pandas())
