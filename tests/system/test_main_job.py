"""The main job on a cluster, and its second path, which fetches a Spark unless that is there: each whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from assets.main_job import _FETCHED

_ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def run(way: str, directory: Path) -> str:
    """Run the main job, which must be exact and leave no process; what it said."""
    command = [sys.executable, "-m", "assets.main_job", way, "--directory", str(directory)]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    assert (done.returncode, report["identical"]) == (0, True)
    assert report["rows_found"] == report["rows_expected"] > 0
    assert report["resumed_from"] != "nothing"
    assert not Path(report["live_location_deleted"]).exists()
    commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(directory) in command] == []
    return done.stdout


def test_a_worker_that_is_lost_with_the_driver_is_replaced_by_another(tmp_path: Path) -> None:
    run("--cluster", tmp_path)


def test_kafka_to_delta_is_exact_and_leaves_no_broker(tmp_path: Path) -> None:
    assert run("--kafka-to-delta", tmp_path).startswith(_FETCHED), "what is fetched is said first"
