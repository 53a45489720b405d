"""A real Spark standalone cluster on this machine: one Master, one Worker, from the pip package's own scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from urllib.error import URLError

import psutil
from pyspark.find_spark_home import _find_spark_home

from dagster_ckpt.spark.query.session import find_java
from tests.servers.ports import free_port

_ROOT = Path(__file__).resolve().parents[3]
_DEADLINE = 300.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


def eventually(what: str, condition: Callable[[], bool]) -> None:
    """Wait for ``condition``."""
    give_up, pause = monotonic() + _DEADLINE, Event()
    while not condition():
        assert monotonic() < give_up, f"waited {_DEADLINE:.0f} s in vain: {what}"
        pause.wait(0.05)


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: its URL for drivers.
        worker: the process whose children the executors are: the Worker, or that of the NodeManagers.
        environment: for drivers.
        conf: settings of Spark for drivers on the cluster.
    """

    master: str
    worker: psutil.Process
    environment: dict[str, str]
    conf: Mapping[str, str] = field(default_factory=dict)

    def executors(self) -> list[psutil.Process]:
        """The executor processes that live now."""
        found = []
        for process in self.worker.children(recursive=True):
            try:
                # On YARN the shell that has started such a process has its command, too.
                if process.name() == "java" and any(_EXECUTOR in part for part in process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[Cluster]:
    """Start a cluster; its logs and work lie in ``directory``. Fails by name where there is no Java or no script."""
    find_java()
    script = Path(_find_spark_home()) / "bin" / "spark-class"
    assert script.exists(), f"{script} is missing: pyspark was not installed from its wheel"
    directory.mkdir(parents=True)
    properties = directory / "cluster.properties"
    properties.write_text("spark.master.rest.enabled false\n", encoding="utf-8")
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)]),
    }
    port, web = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> psutil.Process:
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(script), *arguments, "--properties-file", str(properties)],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, process)
            return psutil.Process(process.pid)

        ports = ("--port", str(port), "--webui-port", str(web))
        start("master", f"{package}.master.Master", "--host", "127.0.0.1", *ports)
        eventually(f"the Master is up (see {directory}/master.log)", lambda: _state(web) is not None)
        size = ("--cores", "2", "--memory", "1g", "--webui-port", "0", "-d", str(directory / "work"))
        worker = start("worker", f"{package}.worker.Worker", "--host", "127.0.0.1", *size, master)
        eventually(
            f"the Worker has registered (see {directory}/worker.log)",
            lambda: (_state(web) or {}).get("aliveworkers") == 1,
        )
        size_of_driver = {"spark.cores.max": "1", "spark.driver.memory": "512m", "spark.executor.memory": "480m"}
        yield Cluster(master, worker, environment, size_of_driver)


def _state(web: int) -> dict[str, object] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=10) as reply:
            state: dict[str, object] = json.load(reply)
    except (URLError, OSError, ValueError):
        return None
    return state


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon and all that it started."""
    try:
        tree: Sequence[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = ()
    process.kill()
    process.wait()
    for child in tree:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
