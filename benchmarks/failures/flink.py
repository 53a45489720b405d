"""Flink with the same stream, killed in the same ways.

The cluster is one of its own, whose JobManager has the job (application mode). Nothing watches it here. After the
death of all its processes this script starts it again at once, from the newest retained checkpoint; of a TaskManager
and of a task Flink itself recovers, the first on a TaskManager that waits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

from benchmarks.failures.case import Case, case
from benchmarks.failures.stream import PARALLELISM, Landing, await_exact, count_ids
from dagster_ckpt.testing.dagster_dev import wait_for
from tools.flink_environment import flink_home, java_compiler

_JOB = "FirstOfEach"
_SOURCE = Path(__file__).with_name(f"{_JOB}.java")
_CONF = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.num-retained": 3,
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1000,
    "parallelism.default": PARALLELISM,
    "taskmanager.numberOfTaskSlots": PARALLELISM,
    "taskmanager.memory.process.size": "1728m",
    "jobmanager.memory.process.size": "1600m",
}


@dataclass
class _Process:
    """A JobManager or a TaskManager, and the directory it works in."""

    process: subprocess.Popen[bytes]
    directory: Path

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Flink:
    """One cluster with the job, killed again and again.

    Args:
        directory: for all files; empty or missing.
        kind: what is killed, one of :attr:`KINDS`.
        keys: ids of the first file.

    Raises:
        subprocess.CalledProcessError: Flink could not be fetched, or the job not compiled.
        RuntimeError: there is no Java compiler.
    """

    #: What is killed: every process, the TaskManager that has the tasks, or a task alone, which throws.
    KINDS = ("everything", "TaskManager", "task")

    def __init__(self, directory: Path, kind: str, keys: int) -> None:
        self._kind = kind
        self._home = flink_home()
        self._directory = directory
        self._keys = keys
        self._order = directory / "order-to-fail"
        self._out = directory / "out"
        self._rest = _free_port()
        self._started = 0
        self._manager: _Process | None = None
        self._workers: dict[str, _Process] = {}
        directory.mkdir(parents=True)
        self._compile()
        self._configure()

    def run(self, cases: int, checkpoints: int, done: Callable[[Case], None]) -> None:
        """Run the cases one after another, each after so many new checkpoints; ``done`` gets each at once."""
        with self._cluster():
            with Landing(self._directory, self._keys) as landing:
                wait_for(self._holds_all, f"{self._keys} ids in the sink (see {self._directory})", seconds=240, poll=1)
                for _ in range(cases):
                    done(self._one(checkpoints))
            await_exact(landing.ids, self._committed)

    def _one(self, checkpoints: int) -> Case:
        if self._kind == "TaskManager":
            self._start_worker()  # the spare
            wait_for(lambda: len(self._api("/taskmanagers")["taskmanagers"]) > 1, "the spare TaskManager", seconds=60)
        before = _number(self._newest())
        wait_for(lambda: _number(self._newest()) >= before + checkpoints, f"{checkpoints} checkpoints", seconds=120)
        known, load = set(self._out.iterdir()), round(os.getloadavg()[0], 2)
        failed = self._fail()
        restored = _number(self._newest())
        seen: dict[Path, float] = {}

        def committed() -> bool:
            for file in set(self._out.iterdir()) - known - seen.keys():
                seen[file] = time.time()
            # What the last checkpoint before the failure had to commit was written before it.
            return any(not file.name.startswith(".") and file.stat().st_mtime >= failed for file in seen)

        wait_for(committed, f"the first commit (see {self._directory})", seconds=240, poll=0.005)
        commit = time.time()
        (job,) = self._api("/jobs")["jobs"]
        running = self._api(f"/jobs/{job['id']}")["timestamps"]["RUNNING"] / 1000
        record = min(at for at in seen.values() if at >= running)
        found = case(failed, {"first_record": record, "checkpoint": commit}, {"running": running}, restored)
        found.load = load
        return found

    def _fail(self) -> float:
        """Kill; when it was."""
        if self._kind == "task":
            self._order.touch()
            wait_for(lambda: not self._order.exists(), "a task to throw", seconds=60, poll=0.005)
            return time.time()
        if self._kind == "TaskManager":
            victim = self._workers.pop(self._at_work())
            failed = time.time()
            victim.kill()
            return failed
        failed = time.time()
        self._kill()
        self._start(self._newest())
        return failed

    def _start(self, checkpoint: Path | None = None) -> None:
        """The JobManager with the job, and a TaskManager, both at once."""
        goes_on = [] if checkpoint is None else ["--fromSavepoint", checkpoint.as_uri()]
        arguments = [str(self._directory / "in"), str(self._out), str(self._order)]
        job = ["--jars", str(self._directory / f"{_JOB}.jar"), "--job-classname", _JOB, *goes_on, *arguments]
        self._manager = self._begin("standalone-job.sh", "manager", job)
        self._start_worker()

    def _start_worker(self) -> None:
        name = f"worker-{self._started}"
        self._workers[name] = self._begin("taskmanager.sh", name, ["-D", f"taskmanager.resource-id={name}"])

    def _begin(self, script: str, name: str, arguments: list[str]) -> _Process:
        self._started += 1
        directory = self._directory / "tmp" / f"{self._started}"
        directory.mkdir(parents=True)
        environment = {
            **os.environ,
            "FLINK_CONF_DIR": str(self._directory / "conf"),
            "FLINK_LOG_DIR": str(self._directory),
            "JVM_ARGS": f"-Djava.io.tmpdir={directory}",
        }
        with (self._directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    "bash",
                    str(self._home / "bin" / script),
                    "start-foreground",
                    "-D",
                    f"io.tmp.dirs={directory}",
                    *arguments,
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return _Process(process, directory)

    def _kill(self) -> None:
        for process in [*([self._manager] if self._manager else []), *self._workers.values()]:
            process.kill()
        self._manager, self._workers = None, {}

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        try:
            self._start()
            yield
        finally:
            self._kill()

    def _at_work(self) -> str:
        """The TaskManager that has the tasks."""
        (job,) = self._api("/jobs")["jobs"]
        vertices = self._api(f"/jobs/{job['id']}")["vertices"]
        (name,) = {
            task["taskmanager-id"]
            for vertex in vertices
            for task in self._api(f"/jobs/{job['id']}/vertices/{vertex['id']}")["subtasks"]
        }
        return str(name)

    def _api(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._rest}{path}", timeout=10) as answer:
            return json.load(answer)

    def _newest(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = (self._directory / "checkpoints").glob("*/chk-*/_metadata")
        return max((file.parent for file in complete), key=_number, default=None)

    def _committed(self) -> list[Path]:
        return [file for file in self._out.iterdir() if not file.name.startswith(".")]

    def _holds_all(self) -> bool:
        return self._out.exists() and count_ids(self._committed()) >= self._keys

    def _compile(self) -> None:
        classes = self._directory / "classes"
        libraries = str(self._home / "lib" / "*")
        subprocess.run([java_compiler(), "-d", str(classes), "-cp", libraries, str(_SOURCE)], check=True)
        with ZipFile(self._directory / f"{_JOB}.jar", "w") as jar:
            for file in classes.iterdir():
                jar.write(file, file.name)

    def _configure(self) -> None:
        conf = self._directory / "conf"
        conf.mkdir()
        for file in (self._home / "conf").glob("log4j*"):
            shutil.copy(file, conf)
        # Until the heartbeat of a lost TaskManager is missed, restarts are in vain: after Flink's default, 1 s, each.
        delay = "0 s" if self._kind == "task" else "1 s"
        # What Java 17 needs.
        given = yaml.safe_load((self._home / "conf" / "config.yaml").read_text(encoding="utf-8"))
        here = "127.0.0.1"
        of_this_cluster = {
            "restart-strategy.fixed-delay.delay": delay,
            "env.java.opts.all": given["env"]["java"]["opts"]["all"],
            "execution.checkpointing.dir": (self._directory / "checkpoints").as_uri(),
            "user.artifacts.base-dir": str(self._directory / "artifacts"),
            "jobmanager.rpc.address": here,
            "jobmanager.rpc.port": _free_port(),
            "jobmanager.bind-host": here,
            "rest.address": here,
            "rest.bind-address": here,
            "rest.port": self._rest,
            "rest.bind-port": str(self._rest),
            "taskmanager.host": here,
            "taskmanager.bind-host": here,
        }
        (conf / "config.yaml").write_text(yaml.safe_dump({**_CONF, **of_this_cluster}), encoding="utf-8")


def _number(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("chk-"))


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
