"""A job whose host is cut off from the network, or vanishes with its disk, goes on exactly on another host."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from tests.jobs.hosts.beating import ENDED, GOES_ON, PAUSES
from tests.jobs.hosts.site import Site, site
from tests.servers.hosts import ADDRESS, Network
from tests.servers.postgres import rows, running
from tests.system.cluster.standalone import eventually

# Not every machine lets its users make namespaces.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]

#: The exit status of ``dagster-ckpt run`` for a job that another run has.
TAKEN = 7
#: Records of the first epoch that later ones of that epoch replace.
_REPLACED = re.compile(r"/control/(issued|wal)/[0-9a-f]{32}/e-0000000001")
_ASKING = """
import sys
from dagster_ckpt.spark.sinks.postgres.database import Database, Table
with Database(sys.argv[1], Table("public", "keys", "batch")).connected() as connection:
    print("connected", flush=True)
    connection.execute("SELECT pg_sleep(36000)")
"""
_SLEEPING = "SELECT count(*)::int FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(36000)'"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path / "site") as place:
        yield place


def test_a_host_that_was_cut_off_changes_nothing_when_it_comes_back(place: Site) -> None:
    north = place.host("north")
    first = place.run(north)
    first.until("two checkpoints", lambda: place.completed(1) >= 2)
    with place.inside_a_batch(first):
        north.link_down()
    second = place.run(place.host("south"))
    second.until("two checkpoints on the next host", lambda: place.completed(2) >= 2)
    claim = place.catalog.records.epochs.read_claim(2)
    assert claim is not None
    assert first.has_paused()
    assert first.paused_at() < datetime.fromisoformat(claim.claimed_at)

    before, seen = place.objects(), len(place.changes())
    north.link_up()
    assert first.status() == TAKEN
    assert "Epoch 1 is fenced" in first.log()
    eventually("nothing of the job is left on its host", lambda: north.processes() == [])
    after = place.objects()
    late = {each.name for each in place.changes()[seen:] if each.address == north.address}
    beat = {name for name in after if name.endswith("/control/heartbeat")}
    # What was on its way when the cable was pulled may arrive now: also the deletion of what its own records replace.
    assert {name for name in late & before.keys() if not _REPLACED.search(name)} <= beat
    assert {name for name in before.keys() & after.keys() if before[name] != after[name]} <= beat
    place.check_exact()


def test_a_host_that_vanishes_with_its_disk_in_a_transaction_is_replaced(place: Site) -> None:
    first = place.run(place.host("north"))
    first.until("two checkpoints", lambda: place.completed(1) >= 2)
    with place.inside_a_batch(first):
        written = place.check_exact()
        first.host.vanish()
    second = place.run(place.host("south"))
    second.until("two checkpoints on the next host", lambda: place.completed(2) >= 2)
    eventually("more rows", lambda: place.check_exact() > written)
    second.host.vanish()
    newest = find_newest(place.catalog).metadata
    assert newest is not None
    assert newest.epoch == 2
    verify_checkpoint(place.catalog, newest)
    place.check_exact()


def test_a_heart_goes_on_when_the_cable_is_back_and_ends_while_the_cable_is_pulled(place: Site) -> None:
    north = place.host("north")
    process, said = place.beat(north)

    def told() -> str:
        """What it said last."""
        assert process.poll() in {None, 0}, said.read_text()
        return ([line for line in said.read_text().splitlines() if line in {GOES_ON, PAUSES, ENDED}] or [""])[-1]

    eventually("a heartbeat is taken", lambda: told() == GOES_ON)
    north.link_down()
    eventually("no heartbeat is taken", lambda: told() == PAUSES)
    north.link_up()
    eventually("a heartbeat is taken again", lambda: told() == GOES_ON)
    north.link_down()
    eventually("no heartbeat is taken again", lambda: told() == PAUSES)
    (driver,) = north.processes("tests.jobs.hosts.beating")
    driver.terminate()
    eventually("it ends", lambda: process.poll() is not None)
    assert told() == ENDED


def test_a_batch_does_not_wait_for_ever_for_a_database_that_is_gone(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with (
        Network("north", disk=tmp_path / "disk") as network,
        running(address=ADDRESS, within=network.within_as_user) as server,
    ):
        north = network.host("north")
        asking = north.start(
            *(sys.executable, "-c", _ASKING, server.remote(server.database())), environment={}, said=said
        )
        eventually("the host is connected", lambda: "connected" in said.read_text())
        eventually("the host waits", lambda: rows(server.reach("postgres"), _SLEEPING) == [(1,)])
        north.link_down()
        eventually("the wait is over", lambda: asking.poll() is not None)
    assert "PostgreSQL failed for the sink public.keys" in said.read_text()
