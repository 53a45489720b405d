"""Watches a job in a bucket until its run is dead: ``python -m tests.jobs.storage.standby URL JOB``."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import StorageError
from tests.helpers.telling import say
from tests.servers.gcs import bucket_of


def main(url: str, job: str) -> None:
    """Tell each look at a live run, and the death."""
    file = HeartbeatFile(bucket_of(SimpleNamespace(url=url), "of all"), job)
    while True:
        try:
            heartbeat, dead = file.watched(SystemClock(), time.sleep)
        except StorageError:
            continue
        if heartbeat is not None:
            say(event="Alive" if dead is None else "Dead", sequence=heartbeat.sequence, why=dead)
        if dead is not None:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
