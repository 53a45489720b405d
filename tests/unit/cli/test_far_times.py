"""Moments that no calendar has, in sealed records: every command tells of the job, or refuses with the next step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, HeartbeatFile
from dagster_ckpt.checkpoint.control.savepoint_requests import SavepointRequest
from dagster_ckpt.checkpoint.format.records import Moment, encode_record
from dagster_ckpt.cli import main
from dagster_ckpt.clock import EARLIEST, LATEST, iso, seconds_of, told_ms
from dagster_ckpt.errors import CorruptRecord
from tests.helpers.checkpoint.record_files import resealed
from tests.helpers.orchestration.stored_job import StoredJob, run_id

FAR = [1e12, -1e12, 253_402_300_800.0, -62_135_596_801.0]


def call(job: StoredJob, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, [*arguments, "--path", str(job.root)])


def reseal(path: Path, **changes: Any) -> None:
    path.write_bytes(resealed(path.read_bytes(), **changes))


@given(st.floats())
def test_a_moment_of_a_record_has_a_date_or_is_refused(seconds: float) -> None:
    try:
        TypeAdapter(Moment).validate_python(seconds)
    except ValidationError:
        assert not EARLIEST <= seconds <= LATEST
    else:
        assert seconds_of(iso(seconds)) == pytest.approx(seconds, abs=0.001)


@given(st.integers() | st.floats())
def test_a_moment_of_spark_is_told_whatever_it_is(milliseconds: float) -> None:
    assert told_ms(milliseconds)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "year 33658"])
def test_a_text_that_no_clock_here_can_tell_is_no_moment(text: str) -> None:
    with pytest.raises(CorruptRecord, match="where a time must be"):
        seconds_of(text)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("member", ["beat_at", "due_since", "failed_checkpoints"])
def test_status_tells_of_every_job_whatever_time_a_record_of_one_has(tmp_path: Path, member: str, far: float) -> None:
    job, other = StoredJob(tmp_path / "storage"), StoredJob(tmp_path / "storage", "payments")
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 3)
    job.beat(claim, alive=True)
    file = HeartbeatFile(job.catalog.filesystem, job.name)
    beat = file.read()
    assert beat is not None
    elsewhere = replace(beat.processes[0], host="elsewhere/boot")
    failed = FailedCheckpoints(2, "away", 1.0, 3)
    file.write(replace(beat, processes=(elsewhere,), failed_checkpoints=failed))
    path = job.root / job.name / "control" / "heartbeat"
    said = json.loads(path.read_bytes())["failed_checkpoints"] | {"at": far}
    reseal(path, **{member: said if member == "failed_checkpoints" else far})
    other.beat(other.claim(run_id()), alive=True)
    rows = {row["job"]: row for row in json.loads(call(job, "status", "--json").stdout)}
    assert rows["payments"]["state"] == "RUNNING"
    assert rows["orders"]["state"] == "UNREADABLE"
    assert str(path) in rows["orders"]["reason"]
    assert "delete the file" in rows["orders"]["reason"]
    assert str(path) in call(job, "status").stdout.replace("\n", "")


@pytest.mark.parametrize("far", FAR)
def test_a_failure_at_no_time_counts_and_is_told(tmp_path: Path, far: float) -> None:
    job = StoredJob(tmp_path / "storage")
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    job.fail(claim, 1)
    (path,) = (path for path in (job.root / job.name / "control" / "failures").rglob("*") if path.is_file())
    reseal(path, at=far)
    (row,) = json.loads(call(job, "status", "--json").stdout)
    assert (row["state"], row["failures"]) == ("RUNNING", 1)
    assert f"{path} cannot be believed: at" in row["last_failure"]["reason"]
    assert path.name in call(job, "status").stdout.replace("\n", "")


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("member", ["asked_at", "until"])
def test_a_request_of_no_time_is_left_out(tmp_path: Path, member: str, far: float) -> None:
    job = StoredJob(tmp_path / "storage")
    job.choose(job.claim(run_id()))
    place = f"{job.name}/control/requests/r-{'a' * 32}"
    data = encode_record(SavepointRequest("a" * 32, None, False, 1.0, LATEST), place)
    path = job.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(resealed(data, **{member: far}))
    assert json.loads(call(job, "savepoints", job.name, "--json").stdout) == []
    reseal(path, **{member: LATEST})
    (row,) = json.loads(call(job, "savepoints", job.name, "--json").stdout)
    assert row["state"] == "PENDING"
