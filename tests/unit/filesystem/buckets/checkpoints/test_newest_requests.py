"""What it costs to find the checkpoint to go on from, in requests: one listing of the checkpoints, and one read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.servers.gcs import BUCKET, bucket_of

#: Three pages of a listing.
RETAINED = 2500


@pytest.fixture
def run(server: GcsServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A job with many checkpoints. They are there by name, and all but the newest would be complete if it was read."""
    started = Run(bucket_of(server), Ledger(), Pins(tmp_path_factory.mktemp("pins"))).start()
    first = started.checkpoint(state(1), 1)
    job = f"base/{JOB}/{started.store.job_id}"
    for number in range(2, RETAINED + 1):
        content = replace(first, checkpoint_id=number, batch=number).encode()
        server.put(BUCKET, f"{job}/chk-{number}/_metadata", content)
    server.log.clear()
    return started


def asked(server: GcsServer) -> Counter[str]:
    """How often each directory was listed and each kind of record read, by a name for it."""
    told: Counter[str] = Counter()
    for request in server.log:
        name = request.name.removeprefix(f"base/{JOB}/")
        directory = name.removeprefix("control/").partition("/")[0]
        told[f"{request.kind} {'checkpoints' if len(directory) == 32 else directory}"] += 1
    return told


def test_the_newest_of_a_running_job(run: Run, server: GcsServer) -> None:
    found = find_newest(CheckpointCatalog(bucket_of(server), JOB)).metadata
    assert found is not None
    assert found.checkpoint_id == RETAINED
    assert asked(server) == {
        "list checkpoints": 3,
        "read checkpoints": 1,
        # Before, for the choice, and after the manifest, for who took over meanwhile.
        "list epochs": 2,
        "read epochs": 1,
        # What the run has said to be complete.
        "read heartbeat": 1,
        # A directory that is not there is looked for as an object as well.
        "list quarantine": 1,
        "stat quarantine": 1,
    }


def test_the_newest_for_a_run_that_has_just_claimed_its_epoch(run: Run, server: GcsServer) -> None:
    """It is the highest epoch and has no checkpoint, so no checkpoint is of the highest epoch."""
    catalog = CheckpointCatalog(bucket_of(server), JOB)
    catalog.records.epochs.claim(token="t", series=None, run_id="another", host="h", pid=1, now="now")
    server.log.clear()
    found = find_newest(catalog).metadata
    assert found is not None
    assert found.checkpoint_id == RETAINED
    told = asked(server)
    assert (told["list checkpoints"], told["read checkpoints"], told["list issued"]) == (3, 1, 1)
    assert sum(told.values()) == 11
