"""Drivers that write to PostgreSQL, killed or stopped inside a statement: a lock of the test holds the statement up."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.helpers.driving import ELSEWHERE, Driver, driving
from tests.jobs.matrix.streams import POSTGRES, Target
from tests.jobs.zombies.landing import Landing
from tests.servers.postgres import PostgresServer, rows
from tests.system.cluster.standalone import eventually

pytestmark = [pytest.mark.exhaustive, pytest.mark.integration, pytest.mark.timeout(1500)]

#: The lock that holds each of a batch's statements up.
_LOCKS = {
    "CREATE UNLOGGED TABLE": "LOCK TABLE rows IN ACCESS EXCLUSIVE MODE",
    "SELECT job_id": "SELECT 1 FROM dagster_ckpt_sinks FOR UPDATE",
    "INSERT INTO": "LOCK TABLE rows IN SHARE MODE",
}


@pytest.fixture
def reach(postgres: PostgresServer, tmp_path: Path) -> str:
    reach = postgres.database()
    Target(POSTGRES, tmp_path / "out").reach.write_text(reach)
    rows(reach, "CREATE TABLE rows (id int, v int, at bigint, batch bigint)")
    return reach


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "in", 3)


@contextmanager
def held_up(driver: Driver, reach: str, statement: str, landing: Landing) -> Iterator[None]:
    """The driver, waiting inside one of its statements until the block is left."""
    while True:
        with psycopg.connect(reach) as holder:
            holder.execute(_LOCKS[statement].encode())
            landing.more()
            driver.await_("a statement waits", lambda: _waiting(reach) != [])
            # A lock that comes in the middle of a batch may hold up a later statement: then the next batch is tried.
            if any(text.startswith(statement) for text in _waiting(reach)):
                yield
                return


def _waiting(reach: str) -> list[str]:
    """The statements that wait for a lock."""
    found = rows(
        reach,
        "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    )
    return [query.lstrip() for (query,) in found]


def found(reach: str) -> Counter[tuple[int, int]]:
    return Counter(rows(reach, "SELECT id, v FROM rows"))


def test_a_driver_that_is_killed_inside_each_statement(reach: str, landing: Landing, tmp_path: Path) -> None:
    arguments = ("tests.jobs.zombies.driver", POSTGRES, str(tmp_path))
    for number, statement in enumerate(["CREATE UNLOGGED TABLE", "SELECT job_id", "INSERT INTO"]):
        with driving(*arguments) as driver:
            driver.await_("a checkpoint", lambda: bool(driver.of("Completed")))
            with held_up(driver, reach, statement, landing):
                driver.kill()
        if number == 1:
            shutil.rmtree(tmp_path / "live")
    with driving(*arguments, "end") as last:
        assert last.ended() == "FINISHED"
    assert found(reach) == landing.first_rows()
    assert rows(reach, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dagster_ckpt_staging%'") == []


@pytest.mark.parametrize("statement", ["INSERT INTO", "SELECT job_id"])
def test_a_zombie_that_holds_its_transaction_open_changes_nothing(
    reach: str, landing: Landing, tmp_path: Path, statement: str
) -> None:
    """Stopped on another host in the middle of its transaction, which PostgreSQL ends, and woken up at the end."""
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from another host"
    arguments = ("tests.jobs.zombies.driver", POSTGRES, str(tmp_path))
    with driving(*arguments, "patience=2", "unwatched") as zombie:
        zombie.await_("a checkpoint", lambda: bool(zombie.of("Completed")))
        with held_up(zombie, reach, statement, landing):
            zombie.pause()
        with driving(*arguments, "end", **ELSEWHERE) as driver:
            assert driver.ended() == "FINISHED"
        assert found(reach) == landing.first_rows()
        zombie.wake()
        eventually("the zombie ends by itself", lambda: zombie.process.poll() is not None)
        assert zombie.process.returncode != 0
        assert "Fenced" in zombie.log() or "taken" in zombie.log()
    assert found(reach) == landing.first_rows()
