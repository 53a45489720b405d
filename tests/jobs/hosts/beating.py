"""A heart without a job: ``python -m tests.jobs.hosts.beating URL OPTIONS``.

It tells when its run may go on, and when no more, and ends at SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import open_filesystem

GOES_ON, PAUSES, ENDED = "goes on", "pauses", "ended"


def main(url: str, options: str) -> None:
    """Beat until told to end."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    file = HeartbeatFile(open_filesystem(url, storage_options=json.loads(options)), "job")
    heart = Heart(file, SystemClock(), epoch=1, run_id="beating", lease=Lease(0.5, 5))
    heart.start()
    said = ""
    while not over.wait(0.05):
        now = GOES_ON if heart.left > 0 else PAUSES
        if now != said:
            print(now, flush=True)  # noqa: T201 - what the test reads
            said = now
    heart.stop()
    print(ENDED, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
