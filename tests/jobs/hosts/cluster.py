"""A cluster of hosts that share no disk, standalone or YARN, and a host with Dagster that submits the job's driver."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from dagster_ckpt.checkpoint import ProcessIdentity
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.testing.dagster_dev import wait_for
from dagster_ckpt.testing.maven import spark_jars
from tests.helpers.local_spark import JVM_OPTIONS
from tests.jobs.hosts import desk, yarn
from tests.jobs.hosts.jobs import BUCKET_URL, DATABASE, LEASE_SECONDS, WORK
from tests.jobs.hosts.site import Site, site
from tests.jobs.hosts.yarn import CLASSPATH, MASTER, MASTER_HOST, YARN, YARN_CLASSPATH
from tests.servers.hosts import Host
from tests.servers.s3a_connector import s3a_classpath
from tests.servers.yarn_cluster import yarn_classpath

__all__ = ["Cluster", "cluster"]

_MASTER, _DESK, WORKERS = "master", "desk", ("north", "south")
_PORT = 7077
_DRIVER, _EXECUTOR = "dagster_ckpt.standalone.submitted", "CoarseGrainedExecutorBackend"
#: Seconds for what must come: a driver and an executor start on a busy machine.
_PATIENCE = 900.0
#: Seconds after which the Master takes a Worker that says nothing for lost.
_SILENCE = 10
#: After so many retransmissions TCP gives a connection up: about 25 seconds.
_RETRIES = 6
#: Seconds for which a cable is pulled.
_CUT_OFF = 60.0


def _eventually(what: str, condition: Callable[[], bool], poll: float = 0.5) -> None:
    wait_for(condition, what, seconds=_PATIENCE, poll=poll)


class Cluster:
    """Hosts with a Master, two Workers and Dagster, of which each can be lost.

    On YARN the Master is the ResourceManager, and a Worker is a NodeManager.

    Args:
        place: the bucket, the database and the network.
        home: a directory that no host sees.
        on_yarn: whether the cluster is YARN, and not a standalone one of Spark.
    """

    def __init__(self, place: Site, home: Path, *, on_yarn: bool = False) -> None:
        self.place, self._home, self._on_yarn = place, home, on_yarn
        self._classpath = s3a_classpath(home)
        # The NodeManager reads from the bucket as Spark does.
        self._yarn = ":".join([yarn_classpath(home), self._classpath, f"{spark_jars()}/*"]) if on_yarn else ""
        self.hosts: dict[str, Host] = {}
        #: When the job last was seen to write, by :func:`time.monotonic`.
        self._first_row = 0.0

    def start(self) -> None:
        """Start all hosts, and have Dagster launch the job."""
        master = self.hosts[_MASTER] = self.place.host(_MASTER)
        # The Master starts executors for a vanished driver until TCP gives the driver up: by default 15 minutes.
        retries = ("sh", "-c", f"echo {_RETRIES} > /proc/sys/net/ipv4/tcp_retries2")
        self._run(master, *retries)
        if self._on_yarn:
            self._yarn_daemon(master, "ResourceManager")
        else:
            self._spark(master, "master.Master", "--host", _MASTER, "--port", str(_PORT), "--webui-port", "8080")
        for name in WORKERS:
            self._start_worker(name)
        self.hosts[_DESK] = self.place.host(_DESK)
        self._start_dagster()

    def _start_worker(self, name: str) -> None:
        """Start a Worker; on a new host with an empty disk, if its host has vanished."""
        if name not in self.hosts:
            self.hosts[name] = self.place.host(name)
        if self._on_yarn:
            self._yarn_daemon(self.hosts[name], "NodeManager")
            return
        size = ("--cores", "4", "--memory", "2g", "--webui-port", "0", "-d", str(self.hosts[name].disk / "spark"))
        self._spark(self.hosts[name], "worker.Worker", "--host", name, *size, f"spark://{_MASTER}:{_PORT}")

    def _start_dagster(self) -> None:
        """Start Dagster on its host."""
        host = self.hosts[_DESK]
        ups = self._told().count(desk.UP)
        self._run(host, sys.executable, "-m", desk.__name__, str(host.disk / "desk"))
        _eventually("Dagster is up", lambda: self._told().count(desk.UP) > ups)

    def _told(self) -> str:
        """What Dagster's host has said of runs."""
        said = self._home / f"{_DESK}.log"
        return said.read_text(encoding="utf-8") if said.exists() else ""

    def driver(self) -> ProcessIdentity | None:
        """The process of the driver, as the job's heartbeat has it."""
        beat = self._heartbeat()
        return None if beat is None else beat.processes[0]

    def epoch(self) -> int:
        return self.place.catalog.records.epochs.highest()

    def _attended_by(self) -> str | None:
        """The run that attends the driver, by its last sign of life."""
        sign = self.place.catalog.records.attendant.read()
        return None if sign is None else sign.run_id

    def rows(self) -> int:
        """How many keys are in the table, of which each must be there once."""
        return self.place.check_exact()

    def goes_on(self, *, epoch: int) -> None:
        """Wait until the job writes rows and completes a checkpoint, in this epoch or a later one."""
        written = self.rows()
        _eventually("the job writes rows", lambda: self.rows() > written)
        self._first_row = time.monotonic()
        _eventually(
            f"a checkpoint of epoch {epoch} or later",
            lambda: any(self.place.completed(number) for number in range(epoch, self.epoch() + 1)),
        )

    def completes(self) -> None:
        """Wait until a checkpoint completes."""
        before = self._completed()
        _eventually("a checkpoint completes", lambda: self._completed() != before)

    def host_of_driver(self) -> Host:
        """The host on which the driver runs."""
        _eventually("a driver runs", lambda: bool(self._hosts_with(_DRIVER)))
        return self._hosts_with(_DRIVER)[0]

    def is_without_driver(self, host: Host) -> None:
        """Wait until no driver is left on a host."""
        _eventually(f"no driver is left on {host.name}", lambda: not host.processes(_DRIVER))

    def _host_of_executor(self) -> Host:
        """A host on which an executor runs."""
        _eventually("an executor runs", lambda: bool(self._hosts_with(_EXECUTOR)))
        return self._hosts_with(_EXECUTOR)[0]

    def lose_executor(self, epoch: int) -> float:
        """An executor is killed, and Spark starts another one.

        Args:
            epoch: that the job is in.

        Returns:
            the seconds until the next row, as of every method that loses something.
        """
        lost = time.monotonic()
        self._kill(self._host_of_executor(), _EXECUTOR)
        self.goes_on(epoch=epoch)
        return self._first_row - lost

    def lose_driver(self, epoch: int) -> float:
        """The driver and the JVM above it are killed."""
        lost = time.monotonic()
        self._kill(self.host_of_driver(), _DRIVER)
        self.goes_on(epoch=epoch + 1)
        return self._first_row - lost

    def lose_worker_with_driver(self, epoch: int) -> float:
        """All that runs on the driver's host is killed; its Worker is started again when the job runs."""
        lost, host = time.monotonic(), self.host_of_driver()
        self._kill(host)
        self.goes_on(epoch=epoch + 1)
        self._start_worker(host.name)
        return self._first_row - lost

    def lose_host_of_driver(self, epoch: int) -> float:
        """The driver's host vanishes with its disk. Another one is started in its place when the job runs."""
        lost, host = time.monotonic(), self.host_of_driver()
        host.vanish()
        del self.hosts[host.name]
        self.goes_on(epoch=epoch + 1)
        self._start_worker(host.name)
        return self._first_row - lost

    def cut_off_host_of_driver(self, epoch: int) -> float:
        """The cable of the driver's host is pulled for a minute; then the driver that was there ends by itself."""
        lost, host = time.monotonic(), self.host_of_driver()
        host.link_down()
        self.goes_on(epoch=epoch + 1)
        time.sleep(max(0.0, lost + _CUT_OFF - time.monotonic()))
        host.link_up()
        self.is_without_driver(host)
        self._kill(host)
        self._start_worker(host.name)
        return self._first_row - lost

    def lose_dagster(self, epoch: int) -> float:
        """All of Dagster is killed, and the run that attends the driver with it. The driver must go on.

        Returns:
            the seconds from the next start of Dagster until another run attends the driver.
        """
        attended_by, driver = self._attended_by(), self.driver()
        self._kill(self.hosts[_DESK])
        self.goes_on(epoch=epoch)
        began = time.monotonic()
        self._start_dagster()
        _eventually("another run attends the driver", lambda: self._attended_by() not in {None, attended_by})
        assert (self.epoch(), self.driver()) == (epoch, driver), "the driver was started again"
        return time.monotonic() - began

    def stop(self) -> None:
        """Lose all hosts. The bucket and the database go on."""
        self.place.network.vanish()

    def _kill(self, host: Host, name: str = "") -> None:
        """SIGKILL for the processes on a host, by a part of their command lines; for all by default."""
        killed = host.processes(name)
        for process in killed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Spark may have started others by the same name.
        _eventually("the processes are gone", lambda: not set(killed) & set(host.processes(name)))

    def _completed(self) -> object:
        beat = self._heartbeat()
        return None if beat is None else beat.completed

    def _heartbeat(self) -> Heartbeat | None:
        return self.place.catalog.records.heartbeat.read()

    def _hosts_with(self, name: str) -> list[Host]:
        workers = [self.hosts[each] for each in WORKERS if each in self.hosts]
        return [host for host in workers if host.processes(name)]

    def _spark(self, host: Host, name: str, *arguments: str) -> None:
        script = str(Path(_find_spark_home()) / "bin" / "spark-class")
        self._run(host, script, f"org.apache.spark.deploy.{name}", *arguments)

    def _yarn_daemon(self, host: Host, name: str) -> None:
        self._run(host, sys.executable, "-m", yarn.__name__, name)

    def _run(self, host: Host, *command: str) -> None:
        place = self.place
        environment = {
            BUCKET_URL: place.url,
            DATABASE: place.server.remote(place.database),
            WORK: str(host.disk / "work"),
            LEASE_SECONDS: "30",  # several Sparks at once starve each other
            MASTER: YARN if self._on_yarn else f"spark://{_MASTER}:{_PORT}",
            MASTER_HOST: _MASTER,
            CLASSPATH: self._classpath,
            YARN_CLASSPATH: self._yarn,
            **({"SPARK_DIST_CLASSPATH": self._classpath} if self._on_yarn else {}),  # for spark-submit, which stages
            "DAGSTER_HOME": "",
            "SPARK_LOCAL_HOSTNAME": host.name,
            "SPARK_LOCAL_IP": host.address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "SPARK_MASTER_OPTS": f"-Dspark.worker.timeout={_SILENCE} -Dspark.master.rest.enabled=false",
            "SPARK_WORKER_OPTS": f"-Dspark.worker.timeout={_SILENCE}",
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        process = host.start(*command, environment=environment, said=self._home / f"{host.name}.log")
        place.started.append(process)


@contextmanager
def cluster(home: Path, *, on_yarn: bool = False) -> Iterator[Cluster]:
    """A cluster that runs the job."""
    with site(home / "site", _MASTER, _DESK, *WORKERS) as place:
        found = Cluster(place, home, on_yarn=on_yarn)
        found.start()
        yield found
