"""Looks at the jobs of a directory with several processes, of which the forked ones stay until they are let go.

Run in a process of its own. Each forked process leaves a file that is named like it, and stays until there is a file
``go`` beside it, or the process that forked it is gone. That one leaves a file ``waits`` once only the answers are
missing: before, a library may lose an interrupt.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dagster_ckpt.checkpoint import job_states
from dagster_ckpt.checkpoint.job_states import JobState, states_of_jobs
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import FaultInjectingFileSystem, Operation

#: The exit status after Ctrl-C.
INTERRUPTED = 130


def stay(parent: int, directory: Path, operation: Operation) -> None:
    """Where a forked process stays."""
    if os.getpid() != parent and operation.path.endswith("heartbeat"):
        (directory / str(os.getpid())).touch()
        while os.getppid() == parent and not (directory / "go").exists():
            time.sleep(0.02)


def look(*arguments: Any) -> list[JobState | None]:
    """Look at a share of the jobs."""
    states = _states(*arguments)
    if os.getpid() == parent:
        (processes / "waits").touch()
    return states


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    parent, _states = os.getpid(), job_states._states
    root, processes = Path(sys.argv[1]), Path(sys.argv[2])
    storage = FaultInjectingFileSystem(PosixFileSystem(root), partial(stay, parent, processes))
    storage.is_distant = storage.is_worth_forking = True
    three = patch.object(os, "sched_getaffinity", lambda _: {0, 1, 2})
    with three, patch.object(job_states, "_states", look), patch.object(job_states, "_JOBS_OF_A_PROCESS", 2):
        try:
            found = states_of_jobs(storage, sorted(path.name for path in root.iterdir()), SystemClock())
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    sys.stdout.write(" ".join("" if item is None else item.state for item in found))
