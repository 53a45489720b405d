"""A session that waits is the first to go when memory runs out; one that is in use is not, with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.spark.standby import warm_session
from tests.jobs.harness import eventually

#: A process that starts another one, and both say who they are and wait: a JVM, and the daemon of Python's workers.
_TREE = """
import os, subprocess, sys
depth = int(sys.argv[1])
print(os.getpid(), flush=True)
child = subprocess.Popen([sys.executable, *sys.orig_argv[1:3], str(depth - 1)]) if depth else None
sys.stdin.read()
"""


def _tree(depth: int) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _TREE, str(depth)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [int(process.stdout.readline()) for _ in range(depth + 1)]


def _scores(pids: list[int]) -> list[int]:
    return [int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii")) for pid in (os.getpid(), *pids)]


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="the kernel has no such score")
def test_the_workers_of_a_session_in_use_are_not_first_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = _scores([])
    started: list[tuple[subprocess.Popen[str], list[int]]] = []

    def session() -> Any:
        started.append(_tree(2))  # inherits the score of this process
        return SimpleNamespace(sparkContext=SimpleNamespace(master="spark://elsewhere"))

    monkeypatch.setattr(warm_session, "driver_jvm_pid", lambda _: started[0][1][0])
    warm = warm_session.WarmSession(session, None)
    try:
        eventually("the session is warm", warm.is_warm)
        ((_, pids),) = started
        assert _scores(pids) == [1000] * 4
        warm.take()
        assert _scores(pids) == [before] * 4
    finally:
        Path("/proc/self/oom_score_adj").write_text(str(before), encoding="ascii")
        for process, _ in started:
            process.communicate()
