"""Jobs that move from one release of Spark to the next, each release in an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.releases.driver import JOBS

_ROOT = Path(__file__).resolve().parents[3]

#: Long, as the machine may be busy.
_PATIENCE = 600


def drive(python: str, root: Path, word: str) -> dict[str, Any]:
    """What a process with this Python said of both jobs."""
    done = subprocess.run(
        [python, "-m", "tests.jobs.releases.driver", str(root), word],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if word == "die" else 0), done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.upgrade
@pytest.mark.timeout(5 * _PATIENCE)
def test_jobs_follow_spark_upwards_and_are_refused_downwards(tmp_path: Path) -> None:
    """Each older Spark is killed, so that the next one salvages what that Spark has left."""
    older = os.environ["OLDER_SPARKS"].split(os.pathsep)
    pythons = [*older, sys.executable]
    began = drive(older[0], tmp_path, "finish")
    versions = [began["Spark"]]
    for before, after in pairwise(pythons):
        drive(before, tmp_path, "die")
        went_on = drive(after, tmp_path, "finish")
        for name in JOBS:
            assert went_on[name] == {"restored": "salvage", "of Spark": versions[-1]}
        versions.append(went_on["Spark"])
    assert len(set(versions)) == len(pythons)

    back = drive(older[0], tmp_path, "go back")
    for name in JOBS:
        assert f"The checkpoint is of Spark {versions[-1]}, and this is Spark {versions[0]}" in back[name]["refused"]
        assert f"Run the job with Spark {versions[-1]}" in back[name]["hint"]
        assert back[name]["restored"] == versions[0]


@pytest.mark.exhaustive
@pytest.mark.upgrade
@pytest.mark.timeout(5 * _PATIENCE)
def test_what_an_older_spark_alone_has_left_becomes_a_job(tmp_path: Path) -> None:
    for number, older in enumerate(os.environ["OLDER_SPARKS"].split(os.pathsep)):
        left = drive(older, tmp_path / str(number), "alone")
        forked = drive(sys.executable, tmp_path / str(number), "fork")
        assert forked["Spark"] != left["Spark"]
        for name in JOBS:
            assert forked[name] == {"restored": "fork"}
