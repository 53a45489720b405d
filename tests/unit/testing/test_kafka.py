from __future__ import annotations

import subprocess
import sys

import psutil

from dagster_ckpt.testing.kafka import _UNTIL_CLOSED
from tests.helpers.processes import lives
from tests.jobs.harness import eventually

_STARTS = """
import subprocess, sys, time
program = subprocess.Popen([*{program!r}, sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
print(program.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_runs_until_it_closes_the_pipe_ends_with_it() -> None:
    command = [sys.executable, "-c", _STARTS.format(program=_UNTIL_CLOSED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            program = psutil.Process(int(starter.stdout.readline()))
            eventually("the shell has become the program", lambda: program.name().startswith("python"))
            (guard,) = program.children()
        finally:
            starter.kill()
    eventually("the program and its guard are gone", lambda: not lives(program) and not lives(guard))
