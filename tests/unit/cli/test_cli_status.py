"""``dagster-ckpt status``, of jobs whose runs this process plays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, HeartbeatFile
from dagster_ckpt.cli import main
from tests.helpers.orchestration.stored_job import StoredJob, run_id


def _fresh(job: StoredJob) -> Claim:
    return job.claim(run_id())


def _running(job: StoredJob) -> Claim:
    claim = _fresh(job)
    job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    return claim


def _dead(job: StoredJob) -> Claim:
    claim = _running(job)
    job.beat(claim, alive=False)
    return claim


def _interrupted(job: StoredJob) -> Claim:
    claim = _running(job)
    job.beat(claim, alive=False, stopped=True, interrupted=True)
    return claim


def _restarting(job: StoredJob) -> Claim:
    claim = _interrupted(job)
    job.fail(claim, 1)
    job.end(claim, "FAILING", "the query failed")
    return claim


def _ended(status: str) -> Callable[[StoredJob], Claim]:
    def end(job: StoredJob) -> Claim:
        claim = _interrupted(job)
        job.end(claim, status, f"why it is {status}")
        return claim

    return end


def _status(job: StoredJob, *arguments: str) -> tuple[int, Any]:
    done = CliRunner(catch_exceptions=False).invoke(main, ["status", *arguments, "--path", str(job.root), "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.parametrize(
    ("begin", "state", "reason", "exit_status"),
    [
        (_fresh, "STARTING", "claimed at", 0),
        (_running, "RUNNING", "", 0),
        (_dead, "DEAD", "is gone", 0),
        (_interrupted, "INTERRUPTED", "told to end", 0),
        (_restarting, "RESTARTING", "the query failed", 0),
        (_ended("FINISHED"), "FINISHED", "why it is FINISHED", 0),
        (_ended("CANCELED"), "CANCELED", "why it is CANCELED", 0),
        (_ended("FAILED"), "FAILED", "why it is FAILED", 5),
    ],
)
def test_the_state_of_a_job(
    begin: Callable[[StoredJob], Claim], state: str, reason: str, exit_status: int, tmp_path: Path
) -> None:
    job = StoredJob(tmp_path, "orders")
    claim = begin(job)
    code, (row,) = _status(job)
    assert (code, row["job"], row["state"], row["run"]) == (exit_status, "orders", state, claim.run_id)
    assert reason in row["reason"]
    assert row["failures"] == row["failures_last_hour"] == (begin is _restarting)
    assert (row["last_failure"] or {}).get("reason") == ("failure 1" if begin is _restarting else None)
    if begin is not _fresh:
        assert row["checkpoint"].endswith("/chk-1")
        assert row["batch"] == 3
        assert 0 <= row["age_seconds"] < 3600


def test_every_job_is_told_and_a_damaged_one_hides_no_other(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        _running(StoredJob(tmp_path, name))
    (record,) = (tmp_path / "two" / "control" / "epochs").glob("e-*[0-9]")
    record.write_bytes(record.read_bytes().replace(b"epoch", b"epocj"))
    job = StoredJob(tmp_path, "one")
    code, rows = _status(job)
    assert code == 5
    assert {row["job"]: row["state"] for row in rows} == {"one": "RUNNING", "three": "RUNNING", "two": "UNREADABLE"}
    shown = CliRunner().invoke(main, ["status", "--path", str(tmp_path)])
    assert all(name in shown.stdout for name in ("one", "two", "three", "UNREADABLE"))
    assert _status(job, "one")[0] == 0
    assert _status(job, "four") == (1, f"There is no job 'four' in {tmp_path}.\nThe jobs there: one, three, two.\n")


def test_what_goes_wrong_with_a_job_that_runs_is_told(tmp_path: Path) -> None:
    job = StoredJob(tmp_path, "orders")
    claim = _running(job)
    job.fail(claim, 1)
    records = HeartbeatFile(job.catalog.filesystem, "orders")
    beat = records.read()
    assert beat is not None
    failed = FailedCheckpoints(3, "no space left on device", beat.beat_at, 9)
    records.write(replace(beat, failed_checkpoints=failed, due_since=beat.beat_at - 900))
    _, (row,) = _status(job)
    assert row["failed_checkpoints"]["in_a_row"] == 3
    assert row["checkpoint_due_seconds"] == pytest.approx(900)
    shown = CliRunner().invoke(main, ["status", "--path", str(tmp_path)]).stdout
    assert "1 (1)" in shown
    assert "failure 1" in shown
    assert "3 checkpoints in a row failed" in shown
    assert "no space left on device" in shown
    assert "due for 15 min" in shown
