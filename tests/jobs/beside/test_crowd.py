"""Many jobs and many commands at once on one storage: no raw error, nothing lost, and true exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("jobs", "loops", "seconds"),
    [(4, 2, 15), pytest.param(20, 4, 180, marks=pytest.mark.exhaustive)],
    ids=["a few", "many"],
)
def test_jobs_and_commands_on_one_storage(tmp_path: Path, jobs: int, loops: int, seconds: int) -> None:
    command = [sys.executable, "-m", "tests.jobs.beside.crowd", str(tmp_path)]
    sizes = ["--jobs", str(jobs), "--loops", str(loops), "--seconds", str(seconds)]
    ended = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    told = json.loads(ended.stdout)
    assert told["violations"] == []
    assert ended.returncode == 0, ended.stderr
    counts = told["counts"]
    assert counts["starts"] >= jobs
    assert counts["checkpoints"] > jobs
    assert counts["list: exit 0"] > 0
    assert counts["verify: exit 0"] > 0
