"""A run that is killed, and the next one in the JVM of a standby, as Dagster drives both; records are looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dagster_ckpt.checkpoint import StartTrace
from dagster_ckpt.spark.jvm.class_archive import CACHE_VARIABLE
from dagster_ckpt.spark.standby import jvm_parent
from tests.helpers.processes import lives
from tests.jobs.harness import Bench, deduplicated, eventually
from tests.jobs.starting.standby_job import LAST, VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands a JVM over")

ROOT = Path(__file__).resolve().parents[3]
#: One run of the job.
_RUN = """
import logging
import dagster as dg
from dagster_ckpt import build_checkpoint_definitions
from tests.jobs.starting.standby_job import resources, tiny

logging.basicConfig(level=logging.INFO)
with dg.DagsterInstance.ephemeral() as instance:
    defs = build_checkpoint_definitions([tiny], resources=resources)
    defs.get_job_def("tiny_job").execute_in_process(instance=instance)
"""
#: A process that asks for a JVM, when it is told to, and keeps it.
_ASKS = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from pyspark import SparkContext
from tests.jobs.starting.standby_job import spark
print("ready", flush=True)
sys.stdin.readline()
print(spark.start_jvm("tiny"), flush=True)
if sys.argv[1] == "keeps":
    spark.help_next_start()
sys.stdin.readline()
print(SparkContext._gateway.proc.wait())
"""
#: A process that launches a run, and the JVM of that run with it.
_LAUNCHES = """
import sys
from tests.jobs.starting.standby_job import spark
spark.launch_jvm("tiny")
spark.launch_jvm("another")
print("ready", flush=True)
sys.stdin.readline()
"""
_JOB = "tests.jobs.starting.standby_job"
_COMMAND = ("-m", "dagster_ckpt.cli", "run", f"{_JOB}:tiny", "--resources", f"{_JOB}:resources")


@dataclass
class Host:
    """The user's directories on this host, and what runs there."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        here = {"TMPDIR": str(self.root), CACHE_VARIABLE: "", VARIABLE: str(self.root / "job")}
        return {**{key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}, **here}

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process of Python that is killed at the end at the latest; its errors are in ``errors``."""
        with (
            (self.root / "errors").open("ab") as errors,
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    @property
    def errors(self) -> str:
        return (self.root / "errors").read_text(encoding="utf-8", errors="replace")

    def standby(self) -> Path | None:
        return next(iter(self.root.glob("dagster_ckpt-*/standby/*.sock")), None)

    def processes(self, argument: str | None = None) -> list[psutil.Process]:
        """Keepers and JVMs that began here, and all others with this directory in their environment.

        Args:
            argument: one that they all have; ``None`` for whatever they have.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE or process.environ().get("TMPDIR") != str(self.root):
                    continue
                if argument is None or argument in process.cmdline():
                    found.append(process)
        return found

    def keeper(self) -> psutil.Process:
        (found,) = self.processes("dagster_ckpt.spark.standby.keeper")
        return found

    @contextmanager
    def kept(self) -> Iterator[psutil.Process]:
        """A standby that a living process wants; its JVM."""
        with self.process("-c", _ASKS, "keeps") as wants:
            assert _asked(wants) == "False"
            eventually("there is a standby", lambda: self.standby() is not None)
            (jvm,) = self.keeper().children()
            yield jvm

    def killed(self, bench: Bench) -> None:
        """Run the job until it has a checkpoint and a standby, and kill the run."""
        bench.land(2)
        with self.process("-c", _RUN) as run:

            def still() -> None:
                assert run.poll() is None, self.errors[-4000:]

            eventually("there is a standby", lambda: self.standby() is not None, unless=still)
            bench.land(3)  # some of it after the last checkpoint
            run.send_signal(signal.SIGKILL)

    def finished(self, bench: Bench) -> StartTrace:
        """Run the job to its end, and return how its last start went."""
        (bench.root / LAST).touch()
        with self.process("-c", _RUN) as run:
            run.communicate(timeout=240)
        assert run.returncode == 0, self.errors[-4000:]
        return self.exact(bench)

    @staticmethod
    def exact(bench: Bench) -> StartTrace:
        """Hold the output of a job that is over to what it should be, and return how its last start went."""
        assert bench.in_raw_directory() == bench.in_sink_log() == bench.expected()
        (trace,) = bench.catalog.records.starts.newest(1)
        return trace


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host on which nothing is left at the end."""
    host = Host(tmp_path)
    try:
        yield host
    finally:
        for process in host.processes():
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture
def stream(host: Host) -> Bench:
    return Bench(None, host.root / "job", query=deduplicated)  # type: ignore[arg-type]


def _asked(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_in_the_jvm_of_its_standby_and_loses_nothing(host: Host, stream: Bench) -> None:
    host.killed(stream)
    (jvm,) = host.keeper().children()
    trace = host.finished(stream)
    assert {"standby", "watchdog"} <= trace.by_name.keys()
    assert "JVM" not in trace.by_name
    assert f"Spark goes on in the JVM of a standby: process {jvm.pid}" in host.errors
    eventually("nothing is left of a job that is over", lambda: host.processes() == [])


@pytest.mark.exhaustive
def test_the_command_goes_on_in_the_jvm_of_a_standby_when_its_driver_is_killed(host: Host, stream: Bench) -> None:
    stream.land(2)
    with host.process(*_COMMAND) as command:

        def still() -> None:
            assert command.poll() is None, host.errors[-4000:]

        eventually("there is a standby", lambda: host.standby() is not None, unless=still)
        (jvm,) = host.keeper().children()
        stream.land(3)
        (stream.root / LAST).touch()
        heartbeat = stream.catalog.records.heartbeat.read()
        assert heartbeat is not None
        psutil.Process(heartbeat.processes[0].pid).kill()
        command.communicate(timeout=240)
    assert command.returncode == 0, host.errors[-4000:]
    assert "standby" in host.exact(stream).by_name
    assert f"Spark goes on in the JVM of a standby: process {jvm.pid}" in host.errors
    eventually("nothing is left of a job that is over", lambda: host.processes() == [])


def test_a_run_goes_on_in_the_jvm_that_was_launched_with_it_and_waits_for_its_start(host: Host) -> None:
    with host.process("-c", _LAUNCHES) as launches, host.process("-c", _ASKS, "") as run:
        assert launches.stdout is not None
        assert launches.stdout.readline() == "ready\n"
        eventually("the JVM is launched", lambda: host.standby() is not None)
        assert _asked(run) == "True"
        (jvm,) = host.processes("pyspark-shell")
        assert f"Spark goes on in the JVM that was launched with this run: process {jvm.pid}" in host.errors
        assert "spark.app.name=tiny" in jvm.cmdline(), "one launch at a time"
        assert "-XX:Tier4CompileThreshold=150000" in jvm.cmdline()
        assert _umask(jvm.pid) == _umask(run.pid), "its files have the modes that they have without a keeper"
        launches.kill()
        eventually("the keeper ends", lambda: not host.processes("dagster_ckpt.spark.standby.keeper"))
        assert lives(jvm)
        parent = jvm.parent()
        assert parent is not None
        assert jvm_parent.__file__ in parent.cmdline(), "it tells the run how the JVM ends"
        run.kill()
        eventually("the JVM ends with the run that has it", lambda: not lives(jvm))


def _umask(pid: int) -> str:
    return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Umask"))


@pytest.mark.exhaustive
def test_a_jvm_that_was_launched_for_a_run_ends_with_the_process_that_launched_it(host: Host) -> None:
    with host.process("-c", _LAUNCHES) as launches:
        eventually("the JVM is there", lambda: bool(host.processes("pyspark-shell")))
        launches.kill()
        eventually("nothing is left", lambda: not host.processes())


@pytest.mark.exhaustive
def test_a_run_whose_standby_was_killed_starts_a_jvm(host: Host, stream: Bench) -> None:
    host.killed(stream)
    keeper = host.keeper()
    (jvm,) = keeper.children()
    keeper.kill()
    eventually("the JVM ends with its keeper", lambda: not lives(jvm))
    trace = host.finished(stream)
    assert "standby" not in trace.by_name
    assert "JVM" in trace.by_name
    eventually("nothing is left of a job that is over", lambda: host.processes() == [])


@pytest.mark.exhaustive
def test_of_two_runs_one_has_the_standby_and_its_end_is_the_end_of_the_jvm(host: Host) -> None:
    with host.kept() as jvm, host.process("-c", _ASKS, "") as one, host.process("-c", _ASKS, "") as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.stdout.readline().strip() for process in (one, other) if process.stdout is not None]
        assert sorted(said) == ["False", "True"]
        assert lives(jvm)
        (one, other)[said.index("True")].kill()
        eventually("the JVM ends with the run that has it", lambda: not lives(jvm))


@pytest.mark.exhaustive
def test_a_run_hears_how_its_adopted_jvm_has_ended(host: Host) -> None:
    with host.kept() as jvm, host.process("-c", _ASKS, "") as run:
        assert _asked(run) == "True"
        jvm.kill()
        assert run.communicate("\n", timeout=60)[0] == f"{-signal.SIGKILL}\n"


@pytest.mark.exhaustive
def test_a_jvm_that_hangs_is_ended_and_another_one_is_started(host: Host) -> None:
    with host.kept() as jvm, host.process("-c", _ASKS, "") as run:
        jvm.suspend()
        assert _asked(run) == "False"
        eventually("the JVM is killed", lambda: not lives(jvm))
    assert "has not answered for 10 s" in host.errors
