"""A real Spark standalone cluster on this machine: a Master and Workers, by the scripts of the pip package."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError

import psutil
from pyspark.find_spark_home import _find_spark_home

from dagster_ckpt.spark.query.session import find_java
from dagster_ckpt.testing.dagster_dev import wait_for

__all__ = ["Cluster", "standalone_cluster", "tree"]

_ROOT = Path(__file__).resolve().parent.parent
_EXECUTOR = "CoarseGrainedExecutorBackend"
_PACKAGE = "org.apache.spark.deploy"
#: Seconds for a process of the cluster to be there.
_PATIENCE = 900.0
#: Seconds of silence after which the Master takes a Worker for lost.
_SILENCE = 20


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: its URL for drivers.
        worker: the process whose children the executors are: the first Worker, or that of the NodeManagers.
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
def standalone_cluster(
    directory: Path,
    *,
    workers: int = 1,
    environment: Callable[[str], Mapping[str, str]] = lambda _: {},
    settings: Mapping[str, str] | None = None,
    spark_home: Path | None = None,
    of_workers: Path | None = None,
) -> Iterator[Cluster]:
    """Start a cluster, and end it with all that its Workers have started.

    Args:
        directory: a new one, for logs and work.
        workers: how many.
        environment: more variables for the Workers, and so for drivers that they start, by the URL of the master.
        settings: of the Master and the Workers.
        spark_home: their Spark; by default that of the installed pyspark.
        of_workers: the Workers' own Spark, where it is another one.

    Raises:
        CheckpointError: there is no Java.
        RuntimeError: pyspark was not installed from its wheel.
        TimeoutError: a process of the cluster is not there in time.
    """
    find_java()
    script = (spark_home or Path(_find_spark_home())) / "bin" / "spark-class"
    if not script.exists():
        raise RuntimeError(f"{script} is missing: pyspark was not installed from its wheel")
    directory.mkdir(parents=True)
    properties = directory / "cluster.properties"
    of_daemons = {"spark.master.rest.enabled": "false", "spark.worker.timeout": str(_SILENCE), **(settings or {})}
    properties.write_text("".join(f"{key} {value}\n" for key, value in of_daemons.items()), encoding="utf-8")
    port, web = _free_port(), _free_port()
    master = f"spark://127.0.0.1:{port}"
    of_all = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)]),
        **environment(master),
    }
    with ExitStack() as stack:

        def start(name: str, *arguments: str, script: Path = script) -> psutil.Process:
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(  # noqa: S603
                [str(script), *arguments, "--properties-file", str(properties)],
                env=of_all,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, process)
            return psutil.Process(process.pid)

        ports = ("--port", str(port), "--webui-port", str(web))
        start("master", f"{_PACKAGE}.master.Master", "--host", "127.0.0.1", *ports)
        up = f"the Master to be up (see {directory}/master.log)"
        wait_for(lambda: _state(web) is not None, up, seconds=_PATIENCE)
        size = ("--cores", "2", "--memory", "1g", "--webui-port", "0")
        names = ["worker", *(f"worker-{number}" for number in range(2, workers + 1))]
        of_worker = (f"{_PACKAGE}.worker.Worker", "--host", "127.0.0.1", *size)
        workers_script = script if of_workers is None else of_workers / "bin" / "spark-class"
        first, *_ = [
            start(name, *of_worker, "-d", str(directory / "work" / name), master, script=workers_script)
            for name in names
        ]
        registered = f"all Workers to register (see {directory}/worker.log)"
        wait_for(lambda: (_state(web) or {}).get("aliveworkers") == workers, registered, seconds=_PATIENCE)
        conf = {
            "spark.master.ui.port": str(web),
            "spark.cores.max": "1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "480m",
        }
        yield Cluster(master, first, of_all, conf)


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _state(web: int) -> dict[str, object] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=10) as reply:
            state: dict[str, object] = json.load(reply)
    except (URLError, OSError, ValueError):
        return None
    return state


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon and all that it started."""
    for each in tree(psutil.Process(process.pid)) if process.poll() is None else ():
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
