"""``dagster-ckpt status``, of jobs whose runs this process plays."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner

from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, HeartbeatFile
from dagster_ckpt.checkpoint.format.facts import Source, Topic
from dagster_ckpt.checkpoint.format.snapshot import Snapshot
from dagster_ckpt.cli import main, status
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import ManualClock
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
    code, told = _status(job, "four")
    assert code == 1
    assert told.startswith(f"There is no job 'four' in {tmp_path}.\nThe jobs there: one, three, two. See ")


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


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (_fresh, True),
        (_dead, True),
        (_interrupted, True),
        (_restarting, True),
        (_ended("FINISHED"), False),
        (_ended("CANCELED"), False),
    ],
)
def test_a_job_that_no_run_takes_up_is_told(
    begin: Callable[[StoredJob], Claim], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor may be off, or the supervisor of `dagster-ckpt run` dead: the storage tells only that nobody comes."""
    job = StoredJob(tmp_path, "orders")
    begin(job)
    for minutes, is_long in ((9, False), (90, True)):
        later = ManualClock()
        later.advance(time.time() - later.time() + minutes * 60)
        monkeypatch.setattr(status, "SystemClock", lambda clock=later: clock)
        code, (row,) = _status(job)
        assert (code, row["health"]) == (0, "trouble" if told and is_long else "well")
        shown = " ".join(CliRunner().invoke(main, ["status", "--path", str(tmp_path)]).stdout.split())
        assert ("orders: no run was heard of for 90 min" in shown) == (told and is_long)


@pytest.mark.parametrize(
    ("begin", "state", "exit_status"), [(_running, "RUNNING", 0), (_dead, "DEAD", 5), (_ended("FAILED"), "FAILED", 5)]
)
def test_a_damaged_newest_checkpoint_is_told_and_the_state_stays(
    begin: Callable[[StoredJob], Claim], state: str, exit_status: int, tmp_path: Path
) -> None:
    job = StoredJob(tmp_path, "orders")
    claim = begin(job)
    metadata = tmp_path / "orders" / claim.run_id.replace("-", "") / "chk-1" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    code, (row,) = _status(job)
    assert (code, row["state"], row["run"], row["checkpoint"]) == (exit_status, state, claim.run_id, None)
    assert str(metadata) in row["checkpoint_damage"]
    assert str(metadata) not in row["reason"]
    shown = CliRunner().invoke(main, ["status", "--path", str(tmp_path)]).stdout
    assert "damaged" in shown
    assert f"the newest checkpoint cannot be restored: {metadata}" in shown


def test_a_storage_that_fails_is_an_error_and_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StoredJob(tmp_path, "orders")
    _running(job)
    storage = FaultInjectingFileSystem(
        job.catalog.filesystem, lambda operation: Fail() if operation.path.endswith("/heartbeat") else None
    )
    monkeypatch.setattr(status, "storage_at", lambda _: storage)
    code, told = _status(job)
    assert code == 1
    assert "orders/control/heartbeat) failed" in told


def test_the_others_are_told_of_where_a_storage_fails_at_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [StoredJob(tmp_path, name) for name in ("bad", "good")]
    for job in jobs:
        _running(job)
    storage = FaultInjectingFileSystem(
        jobs[0].catalog.filesystem, lambda operation: Fail() if operation.path == "bad/control/heartbeat" else None
    )
    monkeypatch.setattr(status, "storage_at", lambda _: storage)
    code, rows = _status(jobs[0])
    assert code == 5
    assert [(row["job"], row["state"], row["health"]) for row in rows] == [
        ("bad", "UNREADABLE", "needs help"),
        ("good", "RUNNING", "well"),
    ]
    assert "bad/control/heartbeat) failed" in rows[0]["reason"]
    shown = CliRunner().invoke(main, ["status", "--path", str(tmp_path)])
    assert shown.exit_code == 5
    assert "bad: " in shown.stdout
    assert "heartbeat) failed" in shown.stdout
    assert "RUNNING" in shown.stdout


def _of_kafka(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the job's checkpoints tell of a topic with two partitions, and of a source that tells no lag."""
    plain = job._snapshot
    topic = Topic(id="t-1", latest={"0": 120, "1": 7})
    kafka = Source(id="0", offset={"orders": {"0": 100, "1": 7}}, topics={"orders": topic})

    def snapshot(batch: int) -> Snapshot:
        made = plain(batch)
        sources = [kafka, Source(id="1", offset=3)]
        return replace(made, facts=made.facts.model_copy(update={"sources": sources}))

    monkeypatch.setattr(job, "_snapshot", snapshot)


def test_lag_and_health_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing, kafka, over = (StoredJob(tmp_path, name) for name in ("failing", "kafka", "over"))
    _of_kafka(kafka, monkeypatch)
    _running(failing)
    records = HeartbeatFile(failing.catalog.filesystem, "failing")
    beat = records.read()
    assert beat is not None
    records.write(replace(beat, failed_checkpoints=FailedCheckpoints(3, "no space left", beat.beat_at, 9)))
    _running(kafka)
    _ended("FAILED")(over)
    _, rows = _status(over)
    told = {row["job"]: (row["lag"], row["health"]) for row in rows}
    assert told == {"failing": (None, "trouble"), "kafka": (20, "well"), "over": (None, "needs help")}


def test_a_job_that_has_failed_is_told_how_to_go_on(tmp_path: Path) -> None:
    job = StoredJob(tmp_path, "orders")
    claim = _ended("FAILED")(job)
    shown = CliRunner().invoke(main, ["status", "--path", str(tmp_path)])
    assert shown.exit_code == 5
    told = " ".join(shown.stdout.split())
    assert f"the error of run {claim.run_id} says more, and launch the job: it goes on from chk-1" in told


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_table_is_readable(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StoredJob(tmp_path, "orders-per-minute")
    _of_kafka(job, monkeypatch)
    claim = _restarting(job)
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    program = [sys.executable, "-m", "dagster_ckpt.cli", "status", "--path", str(tmp_path)]
    without = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(program, stdin=terminal, stdout=terminal, env={**without, "TERM": "xterm"}):
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # Linux says so at the end of a terminal
            while read := os.read(reader, 65536):
                shown += read
    os.close(reader)
    lines = unstyle(shown.decode()).splitlines()
    (row,) = (line for line in lines if line.startswith("│"))
    for word in ("orders-per-minute", "RESTARTING", "chk-1", "20", "well", "1 (1)"):
        assert word in row
    assert (claim.run_id in row) == (columns == 200)
    assert max(map(len, lines[:6])) <= columns


def test_watching_goes_on_while_the_storage_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StoredJob(tmp_path, "orders")
    _running(job)
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt

    def plan(operation: Operation) -> Fail | None:
        """At first all is away, then the listing of the jobs, then what tells of the job."""
        away = (True, operation.path == "", operation.path.endswith("/heartbeat"), False)[looks]
        return Fail() if away else None

    storage = FaultInjectingFileSystem(job.catalog.filesystem, plan)
    monkeypatch.setattr(status, "storage_at", lambda _: storage)
    monkeypatch.setattr(status, "time", type("Time", (), {"sleep": sleep}))
    arguments = ["status", "--path", str(job.root), "--watch", "5 s"]
    done = CliRunner(catch_exceptions=False).invoke(main, arguments)
    assert (done.exit_code, looks) == (0, 4)
    assert done.stderr.count("failed") == 3
    assert done.stdout.count("RUNNING") == 1
    looks = 0
    once = CliRunner(catch_exceptions=False).invoke(main, arguments[:-2])
    assert (once.exit_code, looks) == (1, 0)


def test_watching_is_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "time", type("Time", (), {"sleep": sleep}))
    done = CliRunner().invoke(main, ["status", "--path", str(tmp_path), "--watch", "5 s", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--watch" in done.stderr
