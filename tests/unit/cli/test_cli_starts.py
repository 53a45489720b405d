"""``dagster-ckpt starts``, of traces that this process has written."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from dagster_ckpt.checkpoint.start_traces import MONOTONIC, WALL, StartTrace, Step
from dagster_ckpt.cli import main
from tests.helpers.orchestration.stored_job import StoredJob, run_id

FIRST = StartTrace(1, run_id(), "2026-11-23T10:00:00+00:00", False, (Step("session", 0.0, 4.0, MONOTONIC),))
SECOND = StartTrace(
    2,
    run_id(),
    "2026-11-23T11:00:00+00:00",
    True,
    (Step("detected", 0.0, 0.5, WALL), Step("session", 0.5, 3.0, MONOTONIC), Step("JVM", 0.5, 2.0, MONOTONIC)),
)


def _starts(job: StoredJob, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["starts", *arguments, "--path", str(job.root)])


def test_one_column_a_start_and_one_row_a_step(tmp_path: Path) -> None:
    job = StoredJob(tmp_path, "orders")
    for trace in (FIRST, SECOND):
        job.catalog.records.starts.add(trace)
    told = _starts(job, "orders")
    rows = [
        [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")] for line in told.stdout.splitlines()
    ]
    assert ["seconds of", "1", "2"] in rows
    assert ["detected *", "", "0.50"] in rows
    assert ["session", "4.00", "3.00"] in rows
    assert ["total", "4.00", "3.50"] in rows
    assert f"epoch 1: run {FIRST.run_id}, from 2026-11-23T10:00:00, and no batch was committed" in told.stdout
    (only,) = json.loads(_starts(job, "orders", "--last", "1", "--json").stdout)
    assert (only["epoch"], only["seconds"], only["committed"]) == (2, 3.5, True)
    assert only["steps"][0] == {"name": "detected", "began": 0.0, "seconds": 0.5, "clock": "wall"}


def test_a_job_without_a_traced_start_is_told_why(tmp_path: Path) -> None:
    job = StoredJob(tmp_path, "orders")
    job.claim(run_id())
    told = _starts(job, "orders")
    assert told.exit_code == 0
    assert "No start of job 'orders' is on record" in told.stdout
    assert "once its first batch is committed" in told.stdout
