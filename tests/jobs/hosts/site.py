"""Hosts that run one job, and the bucket and the database that all of them reach."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.filesystem import PosixFileSystem
from tests.jobs.hosts.jobs import BUCKET_URL, DATABASE, WORK
from tests.servers import postgres
from tests.servers.hosts import ADDRESS, Host, Network
from tests.servers.ports import free_port
from tests.servers.programs import versitygw
from tests.servers.s3 import BUCKET, KEY, SECRET, connection
from tests.system.cluster.standalone import eventually

__all__ = ["Running", "Site", "site"]

_NAMES = ("north", "south")
_PREFIX = "of-all"
_JOB = "counted"
#: What the server's log calls requests that change nothing.
_LOOKS = ("s3_Get", "s3_Head", "s3_List")


@dataclass(frozen=True)
class Running:
    """``dagster-ckpt run`` on a host, and what it says."""

    host: Host
    process: subprocess.Popen[bytes]
    said: Path

    def log(self) -> str:
        return self.said.read_text(encoding="utf-8")

    def until(self, what: str, condition: object) -> None:
        """Wait for something that the job does."""

        def happened() -> bool:
            if condition():  # type: ignore[operator]
                return True
            assert self.process.poll() is None, f"{what}: the job has ended\n{self.log()[-5000:]}"
            return False

        eventually(what, happened)

    def paused_at(self) -> datetime:
        """When the run said that its query pauses, by the clock that all hosts share."""
        *_, line = (line for line in self.log().splitlines() if " pauses: the storage has taken no heartbeat" in line)
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone()

    def has_paused(self) -> bool:
        """Whether the driver's JVM is stopped."""
        found = self.host.processes("org.apache.spark.deploy.SparkSubmit")
        return bool(found) and all(process.status() == "stopped" for process in found)

    def status(self) -> int:
        eventually("the job ends", lambda: self.process.poll() is not None)
        return self.process.wait()


@dataclass(frozen=True)
class Change:
    """A request that changed the bucket.

    Attributes:
        address: of the host that sent it.
        operation: as the server's log calls it.
        name: the object.
    """

    address: str
    operation: str
    name: str


@dataclass(frozen=True)
class Site:
    """The hosts, the bucket and the database."""

    network: Network
    home: Path
    url: str
    server: postgres.PostgresServer
    #: How to reach the database from here.
    database: str
    started: list[subprocess.Popen[bytes]]

    def host(self, name: str) -> Host:
        return self.network.host(name)

    def run(self, host: Host) -> Running:
        """Run the job on a host."""
        said = self.home / f"{host.name}.log"
        module = "tests.jobs.hosts.jobs"
        process = host.start(
            *(sys.executable, "-m", "dagster_ckpt.cli", "run", f"{module}:counted"),
            *("--resources", f"{module}:RESOURCES"),
            environment={
                BUCKET_URL: self.url,
                DATABASE: self.server.remote(self.database),
                WORK: str(host.disk / "work"),
                "DAGSTER_HOME": "",
            },
            said=said,
        )
        self.started.append(process)
        return Running(host, process, said)

    def beat(self, host: Host) -> tuple[subprocess.Popen[bytes], Path]:
        """Have a heart beat on a host, and the file with what it says."""
        said = self.home / f"{host.name}.heart"
        arguments = (f"s3://{BUCKET}/heart", json.dumps(connection(self.url)))
        process = host.start(sys.executable, "-m", "tests.jobs.hosts.beating", *arguments, environment={}, said=said)
        self.started.append(process)
        return process, said

    @property
    def catalog(self) -> CheckpointCatalog:
        """The job's checkpoints, read where the bucket's server keeps them."""
        return CheckpointCatalog(PosixFileSystem(self.home / "objects" / BUCKET / _PREFIX), _JOB)

    def completed(self, epoch: int) -> int:
        """How many checkpoints of an epoch are there."""
        choice = self.catalog.choice()
        if choice is None:
            return 0
        found, _ = self.catalog.completed(choice[1].job_id)
        return sum(metadata.epoch == epoch for metadata in found)

    def changes(self) -> list[Change]:
        """Every request that changed the bucket, in the order of their answers."""
        found = []
        written, _, _ = (self.home / "requests").read_text(encoding="utf-8").rpartition("\n")
        for line in written.splitlines()[1:]:
            _, _, _, _, address, _, _, operation, name, _, status, *_ = line.split()
            if not operation.startswith(_LOOKS) and int(status) < 400:
                found.append(Change(address, operation, name))
        return found

    def objects(self) -> dict[str, bytes]:
        """What is in the bucket, by name; an object that goes while this looks may be left out."""
        bucket = self.home / "objects" / BUCKET
        found = {}
        for file in bucket.rglob("*"):
            with suppress(FileNotFoundError):
                if file.is_file():
                    found[str(file.relative_to(bucket))] = file.read_bytes()
        return found

    def check_exact(self) -> int:
        """Each key is in the table once, and none is missing before the newest; how many there are."""
        found = self.keys()
        assert Counter(found) == Counter(range(len(found)))
        return len(found)

    def keys(self) -> list[int]:
        """What is in the table, in order."""
        return [key for (key,) in postgres.rows(self.database, "SELECT key FROM keys ORDER BY key")]

    @contextmanager
    def inside_a_batch(self, running: Running) -> Iterator[None]:
        """The job, waiting in the transaction of a batch until the block is left."""
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with psycopg.connect(self.database) as holder:
            holder.execute("LOCK TABLE keys IN SHARE MODE")
            running.until("a batch waits", lambda: postgres.rows(self.database, waiting))
            yield


@contextmanager
def site(home: Path, *names: str) -> Iterator[Site]:
    """A site without a running host.

    Args:
        home: a new directory.
        names: of the hosts that may be started; two by default.
    """
    home.mkdir(parents=True)
    with (
        Network(*(names or _NAMES), disk=home / "disk") as network,
        _bucket(network, home) as url,
        postgres.running(address=ADDRESS, within=network.within_as_user) as server,
    ):
        database = server.database()
        postgres.rows(database, "CREATE TABLE keys (key bigint, batch bigint)")
        there = Site(network, home, url, server, database, [])
        try:
            yield there
        finally:
            network.vanish()
            for process in there.started:
                process.wait()


@contextmanager
def _bucket(network: Network, home: Path) -> Iterator[str]:
    """An empty bucket, whose server writes down who changes it."""
    (home / "objects" / BUCKET).mkdir(parents=True)
    port = free_port()
    options = ("--port", f"{ADDRESS}:{port}", "--health", "/health", "--quiet", "--keep-alive")
    keys = (f"ROOT_ACCESS_KEY={KEY}", f"ROOT_SECRET_KEY={SECRET}")
    server = (str(versitygw()), *options, "--access-log", str(home / "requests"))
    with (home / "bucket.log").open("wb") as said:
        process = subprocess.Popen(
            [*network.within, "env", *keys, *server, "posix", str(home / "objects")],
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://{ADDRESS}:{port}"
    finally:
        process.kill()
        process.wait()
