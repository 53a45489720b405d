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


def test_a_worker_that_is_lost_with_the_driver_is_replaced_by_another(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assets.main_job", "--cluster", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (done.returncode, report["identical"]) == (0, True)
    assert report["rows_found"] == report["rows_expected"] > 0
    assert report["resumed_from"] != "nothing"
    assert not Path(report["live_location_deleted"]).exists()
    commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(tmp_path) in command] == []


def test_kafka_to_delta_is_exact_and_leaves_no_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assets.main_job", "--kafka-to-delta", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.startswith(_FETCHED), "what is fetched is said first"
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (done.returncode, report["identical"]) == (0, True)
    assert report["rows_found"] == report["rows_expected"] > 0
    assert report["resumed_from"] != "nothing"
    assert not Path(report["live_location_deleted"]).exists()
    commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(tmp_path) in command] == []
