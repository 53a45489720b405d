"""A driver that a cluster has started, cut off from the network for a minute: what it changes when it comes back."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.jobs.hosts.cluster import cluster

# Not every machine lets its users make namespaces.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]

#: Objects that the first epoch alone writes, or replaces: its live location, and its records.
_OF_THE_FIRST = re.compile(r"/taskowned/000001-|/control/(issued|wal)/[0-9a-f]{32}/e-0000000001|^staging/")
_CUT_OFF = 60.0


@pytest.mark.parametrize("on_yarn", [False, True], ids=["standalone", "YARN"])
def test_a_driver_that_comes_back_changes_nothing(tmp_path: Path, *, on_yarn: bool) -> None:
    with cluster(tmp_path / "cluster", on_yarn=on_yarn) as there:
        place = there.place
        there.goes_on(epoch=1)
        host = there.host_of_driver()
        host.link_down()
        until = time.monotonic() + _CUT_OFF
        there.goes_on(epoch=2)
        time.sleep(max(0.0, until - time.monotonic()))
        before, seen = place.objects(), len(place.changes())
        host.link_up()
        there.is_without_driver(host)
        after = place.objects()
        changed = {each.name for each in place.changes()[seen:] if each.address == host.address}
        # What was on its way when the cable was pulled may arrive now. The next driver beats again at once.
        left = {name for name in changed & before.keys() if not _OF_THE_FIRST.search(name)}
        beats = {name for name in before if name.endswith("/control/heartbeat")}
        assert {name for name in left if before[name] != after.get(name)} <= beats
        added = {name for name in changed - before.keys() if name in after and not _OF_THE_FIRST.search(name)}
        assert added == set(), "nothing new of the driver that was cut off"
        there.goes_on(epoch=2)
