"""PostgreSQL for the tests: a server of its own in a temporary directory, run by a user who is not root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.servers.ports import free_port

__all__ = ["PostgresServer", "rows", "running"]

USER = "tests"
_PATIENCE = 300.0
#: Of whoever runs the tests, also where a test has moved its own.
_TEMPORARY = os.environ.get("TMPDIR", "/tmp")


class PostgresServer:
    """A running server.

    Args:
        home: the directory of the server, which the server's user owns.
        port: a free port of this machine.
        settings: of the server, as ``name=value``.
        address: where the server listens, besides a socket in its directory.
        within: a command that runs the rest of its command line where the address is, as a user who is not root.
    """

    def __init__(
        self,
        home: Path,
        port: int,
        settings: Sequence[str],
        address: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        self._home = home
        self._address = address
        self._within = within
        self._settings = [f"-c{setting}" for setting in settings]
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def database(self, copied: str = "", encoding: str = "UTF8") -> str:
        """How to reach a new database, as the user who may do everything.

        Args:
            copied: how to reach the database that is copied, to which nobody is connected; an empty one if not given.
            encoding: of the new database.
        """
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.reach("postgres"), autocommit=True) as connection:
            template = psycopg.conninfo.conninfo_to_dict(copied).get("dbname", "template0")
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING {} LOCALE 'C'")
            names = (sql.Identifier(name), sql.Identifier(str(template)), sql.Literal(encoding))
            connection.execute(create.format(*names))
        return self.reach(name)

    def reach(self, database: str) -> str:
        """How to reach a database from here."""
        where = self._home if self._within else self._address
        return f"host={where} port={self._port} dbname={database} user={USER}"

    def remote(self, database: str) -> str:
        """How to reach a database, ``database`` being what :meth:`database` gave, wherever the address is known."""
        return psycopg.conninfo.make_conninfo(database, host=self._address)

    def url(self, database: str) -> str:
        """How to reach a database, ``database`` being what :meth:`database` gave, in SQLAlchemy's words."""
        name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{name}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._within,
                    *(_program("postgres"), "-D", str(self._home / "data"), "-p", str(self._port)),
                    *("-c", f"listen_addresses={self._address}", "-c", f"unix_socket_directories={self._home}"),
                    *self._settings,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                **_as_nobody(self._within),
            )
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.reach("postgres")).close()
                return
            except psycopg.OperationalError:
                ended = self._process.poll() is not None
                assert not ended, (self._home / "log").read_text()
                assert time.monotonic() < give_up, (self._home / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server as a crash would: it writes nothing back."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None


@contextmanager
def running(*settings: str, address: str = "127.0.0.1", within: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A new server, which is gone afterwards with all it kept.

    Args:
        settings: as ``name=value``; by default those of a server that need not survive the machine.
        address: as of :class:`PostgresServer`.
        within: as of :class:`PostgresServer`.
    """
    home = Path(tempfile.mkdtemp(prefix="dagster-ckpt-postgres-", dir=_TEMPORARY))
    if user := _as_nobody(within).get("user"):
        shutil.chown(home, user)
    server = None
    try:
        subprocess.run(
            [
                *within,
                _program("initdb"),
                "-D",
                str(home / "data"),
                "-A",
                "trust",
                "-U",
                USER,
                "-E",
                "UTF8",
                "--no-sync",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **_as_nobody(within),
        )
        with (home / "data" / "pg_hba.conf").open("a") as admitted:
            admitted.write(f"host all all {address}/24 trust\n")
        server = PostgresServer(home, free_port(), settings or ("fsync=off", "max_connections=200"), address, within)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(home, ignore_errors=True)


def rows(reach: str, statement: str) -> list[tuple[Any, ...]]:
    """What a reader finds who knows nothing of the sink; or nothing, for a statement that only changes something."""
    with psycopg.connect(reach, autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return [] if done.description is None else done.fetchall()


def _program(name: str) -> str:
    """Debian keeps the programs of each version in a directory of its own."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    found = str(versions[-1]) if versions else shutil.which(name)
    assert found is not None, "PostgreSQL is missing; see tools/require-postgres"
    return found


def _as_nobody(within: Sequence[str]) -> dict[str, Any]:
    """PostgreSQL refuses root; the server runs in a directory that its user can enter."""
    is_root = os.geteuid() == 0 and not within
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if is_root else {}
    return {**user, "cwd": "/"}
