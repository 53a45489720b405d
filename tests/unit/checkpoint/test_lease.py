"""What follows from a lease: how long its writer and its readers wait for what."""

from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.filesystem.memory import MemoryFileSystem


@pytest.mark.parametrize(
    ("lease", "patience", "at_once", "settled", "own", "grace"),
    [
        (Lease(5, 30), 5, 6, 10, 24, 3),
        (Lease(1, 6), 1, 6, 2, 4.8, 0.6),
        (Lease(1, 120), 5, 20, 6, 96, 12),
        (Lease(1, 121), 5, 21, 6, 96.8, 12.1),
    ],
)
def test_waits(lease: Lease, patience: float, at_once: int, settled: float, own: float, grace: float) -> None:
    assert (lease.patience, lease.at_once, lease.settled) == (patience, at_once, settled)
    assert (lease.own, lease.grace) == pytest.approx((own, grace))
    assert lease.own + lease.grace < lease.timeout, "a writer has stopped when its readers take it for dead"


@pytest.mark.parametrize(("interval", "looks"), [(1, 2), (5, 5), (60, 60), (300, 60)])
def test_a_look_at_a_bucket_follows_the_lease(interval: float, looks: float) -> None:
    lease, storage = Lease(interval, 3600), MemoryFileSystem()
    assert lease.look(2, storage) == 2, "a look that costs nothing"
    storage.is_distant = True
    assert lease.look(2, storage) == looks


@pytest.mark.parametrize(
    ("lease", "signs"),
    [
        (Lease(), Lease(30, 90)),
        (Lease(60, 300), Lease(300, 900)),
        (Lease(600, 3600), Lease(1200, 3600)),
    ],
)
def test_who_attends_a_driver_gives_rarer_signs_where_they_are_paid_for(lease: Lease, signs: Lease) -> None:
    storage = MemoryFileSystem()
    assert lease.of_attendant(storage) == lease
    storage.is_distant = True
    assert lease.of_attendant(storage) == signs
