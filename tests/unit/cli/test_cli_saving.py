"""What the commands tell of savepoints and of two checkpoints, and that each of them can tell it as JSON."""

from __future__ import annotations

import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.cleanup.savepoint_history import kept_savepoint
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
)
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint
from dagster_ckpt.cli import changing, main, status
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.errors import StorageError
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem
from tests.helpers.orchestration.stored_job import StoredJob, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    """A job that ran once, and ended with two checkpoints."""
    job = StoredJob(tmp_path / "storage")
    claim = job.die(run_id(), checkpoints=2)
    job.beat(claim, alive=False, stopped=True)
    job.end(claim, "FINISHED")
    return job


def call(job: StoredJob, *arguments: str) -> tuple[int, Any, str]:
    path = [] if arguments[0] == "dispose" else ["--path", str(job.root)]
    done = CliRunner(catch_exceptions=False).invoke(main, [*arguments, *path, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.parametrize("name", sorted({*main.list_commands(None)} - {"init", "run"}))  # type: ignore[arg-type]
def test_each_command_tells_one_json_document(name: str, job: StoredJob, tmp_path: Path) -> None:
    saved = str(tmp_path / "savepoints")
    pointer = CliRunner().invoke(main, ["savepoint", job.name, "--to", saved, "--path", str(job.root)]).stdout.strip()
    (job_id,) = job.catalog.job_ids()
    arguments = {
        "batch": None,  # needs Spark's files
        "compare": None,  # needs a fork, and Spark
        "export": None,  # the same
        "drill": None,  # needs the query
        "cancel": [job.name],
        "checkpoint": [job.name],
        "diff": [job.name, "chk-1"],
        "dispose": [pointer],
        "list": [],
        "pin": [job.name, "latest"],
        "preflight": [job.name],
        "restore": [job.name, "chk-1", "--dry-run"],
        "savepoint": [job.name, "--to", saved],
        "savepoints": [],
        "status": [],
        "stop": [job.name],
        "sweep": [],
        "unpin": [job.name, f"{job_id}/chk-2"],
    }.get(name, [job.name])
    if arguments is None:
        assert "--json" in CliRunner().invoke(main, [name, "--help"]).stdout
        return
    if name == "unpin":
        call(job, "pin", job.name, "chk-2")
    code, document, told = call(job, name, *arguments)
    if name in {"cancel", "checkpoint", "stop"}:
        assert (code, document) == (9 if name == "cancel" else 1, None)
        assert "no run of it is alive" in told
    else:
        assert document is not None, told


@pytest.mark.parametrize("name", ["list", "status", "savepoints", "sweep"])
def test_an_empty_storage_is_an_empty_list(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [name, "--path", str(tmp_path), "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])


def test_the_savepoints_that_a_job_took_and_the_requests(job: StoredJob) -> None:
    claim = job.claim(run_id())
    store = job.choose(claim)
    there, gone = job.savepoint(store, 3), job.savepoint(store, 4)
    for metadata in (there, gone):
        job.catalog.records.taken_savepoints.add(RecordedSavepoint.of(metadata))
    (Path(gone.reference.removeprefix("file://")) / "_metadata").unlink()
    requests, now = job.catalog.records.savepoint_requests, time.time()
    asked = [
        SavepointRequest(uuid.uuid4().hex, None, False, now + n, now + until) for n, until in enumerate([60, -1, 60])
    ]
    for request in asked:
        requests.ask(request)
    requests.answer(claim.epoch, asked[2], Answer(now, error="the disk is full"))
    code, rows, _ = call(job, "savepoints", job.name)
    assert code == 0
    assert [(row["state"], row["savepoint"], row["batch"], row["reason"]) for row in rows] == [
        ("COMPLETED", there.reference, 3, ""),
        ("GONE", gone.reference, None, ""),
        ("PENDING", None, None, ""),
        ("ABANDONED", None, None, ""),
        ("FAILED", None, None, "the disk is full"),
    ]


def test_what_differs_between_two_checkpoints(job: StoredJob) -> None:
    code, document, _ = call(job, "diff", job.name, "chk-1", "chk-2")
    assert code == 0
    assert document["differs"]["batch"] == [0, 1]
    assert document["differs"]["spark.watermark_ms"] == [0, 1000]
    assert "job" not in document["differs"]
    assert call(job, "diff", job.name, "chk-1", "chk-1")[1]["differs"] == {}
    shown = CliRunner().invoke(main, ["diff", job.name, "chk-1", "--path", str(job.root)]).stdout
    assert "spark.watermark_ms" in shown


def test_a_run_is_asked_to_end_the_job_and_no_other_run_is(job: StoredJob) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    requests = job.catalog.records.savepoint_requests
    asked: list[bool] = []

    def drive() -> None:
        pause = threading.Event()
        while not requests.is_to_cancel(claim.run_id):
            pause.wait(0.02)
        asked.append(requests.is_to_cancel(run_id()))
        job.end(claim, "CANCELED", "canceled")

    driving = threading.Thread(target=drive, daemon=True)
    driving.start()
    code, document, told = call(job, "cancel", job.name)
    driving.join()
    assert code == 0, told
    assert document == {"job": job.name, "run": claim.run_id, "status": "CANCELED", "reason": "canceled"}
    assert asked == [False]
    assert not requests.is_to_cancel(claim.run_id)


@pytest.mark.parametrize(("ago", "status", "says"), [(0, 1, "no sign of life yet"), (60, 9, "no run of it is alive")])
def test_a_job_whose_heartbeat_is_not_there(job: StoredJob, ago: float, status: int, says: str) -> None:
    """Its run may be about to beat for the first time, or has died before it could."""
    job.claim(run_id(), ago=ago)
    (job.root / job.name / "control" / "heartbeat").unlink()
    code, _, told = call(job, "cancel", job.name, "--timeout", "1 s")
    assert code == status
    assert says in told


def test_a_job_that_could_not_be_asked_is_not_told_as_one_without_a_run(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run lives; whoever hears that none does may interrupt what would start the next one."""
    claim = job.claim(run_id())
    job.beat(claim, alive=True)

    def fail(*_: object) -> None:
        raise StorageError("The storage is away.", hint="None.")

    monkeypatch.setattr(SavepointRequests, "ask_to_cancel", fail)
    code, document, told = call(job, "cancel", job.name)
    assert (code, document) == (1, None)
    assert "is away" in told


def test_who_takes_over_from_the_run_that_was_asked_is_asked_too(job: StoredJob) -> None:
    """Two drivers die before they look for a request, and the third one has the id of a run that was not known."""
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    requests = job.catalog.records.savepoint_requests

    def drive() -> None:
        nonlocal claim
        pause = threading.Event()
        for last in (False, True):
            while not requests.is_to_cancel(claim.run_id):
                pause.wait(0.02)
            if not last:
                job.claim(run_id(), series=claim.series)
            claim = job.claim(run_id(), series=claim.series)
        while not requests.is_to_cancel(claim.run_id):
            pause.wait(0.02)
        job.end(claim, "CANCELED", "canceled")

    driving = threading.Thread(target=drive, daemon=True)
    driving.start()
    code, document, told = call(job, "cancel", job.name, "--timeout", "1 min")
    assert code == 0, told
    driving.join()
    assert document == {"job": job.name, "run": claim.run_id, "status": "CANCELED", "reason": "canceled"}
    assert claim.run_id in told
    assert not requests.is_to_cancel(claim.run_id)


def test_a_job_that_is_run_again_after_its_end_is_left_alone(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    again: list[str] = []

    def sleep(_: float) -> None:
        job.end(claim, "CANCELED", "canceled")
        again.append(job.claim(run_id()).run_id)

    monkeypatch.setattr(changing, "time", type("Time", (), {"sleep": sleep}))
    code, document, told = call(job, "cancel", job.name)
    assert code == 0, told
    assert document == {"job": job.name, "run": claim.run_id, "status": "CANCELED", "reason": "canceled"}
    assert len(again) == 1


def test_a_run_that_does_not_answer_is_not_asked_any_more(job: StoredJob) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    code, document, told = call(job, "cancel", job.name, "--timeout", "10 ms")
    assert (code, document) == (1, None)
    assert "terminate it in Dagster" in told
    assert not job.catalog.records.savepoint_requests.is_to_cancel(claim.run_id)


def test_a_request_that_could_not_be_told_of_does_not_stand(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    bucket = FaultInjectingFileSystem(job.catalog.filesystem)
    bucket.is_distant = True
    bucket.plan = lambda operation: Fail() if operation.path.endswith("/bell") else None
    monkeypatch.setattr(changing, "storage_at", lambda _: bucket)
    code, document, _ = call(job, "cancel", job.name)
    assert (code, document) == (1, None)
    written = [operation.path.rpartition("/")[2] for operation in bucket.operations if operation.name == "replace"]
    assert written == ["cancel", "bell"]
    assert not job.catalog.records.savepoint_requests.is_to_cancel(claim.run_id)


def test_status_is_told_again_until_it_is_interrupted(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "time", type("Time", (), {"sleep": sleep}))
    done = CliRunner(catch_exceptions=False).invoke(main, ["status", "--path", str(job.root), "--watch", "5 s"])
    assert (done.exit_code, pauses) == (0, [5, 5, 5])
    assert done.stdout.count("FINISHED") == 3
    refused = CliRunner().invoke(main, ["status", "--path", str(job.root), "--watch", "often"])
    assert refused.exit_code == 2
    assert "such as '500 ms', '10 s'" in refused.stderr


def test_names_and_series_are_taken_listed_and_gone_back_to(job: StoredJob, tmp_path: Path) -> None:
    to = ("--to", str(tmp_path / "savepoints"))
    code, taken, _ = call(job, "savepoint", job.name, *to, "--name", "before-upgrade", "--note", "the last of 1.x")
    assert code == 0
    assert (taken["name"], taken["note"]) == ("before-upgrade", "the last of 1.x")
    _, described, _ = call(job, "describe", job.name, "savepoint:before-upgrade")
    assert taken["pointer"] in json.dumps(described)
    code, _, told = call(job, "savepoint", job.name, *to, "--name", "before-upgrade")
    assert code == 1
    assert "is that of" in told
    for number in (1, 2, 3):
        job.die(run_id())
        code, of_series, told = call(
            job, "savepoint", job.name, *to, "--name", f"n-{number}", "--series", "nightly", "--keep", "2"
        )
        assert code == 0, told
    assert len(of_series["deleted"]) == 1
    _, rows, _ = call(job, "savepoints", job.name)
    assert [(row["name"], row["state"], row["note"]) for row in rows] == [
        ("before-upgrade", "COMPLETED", "the last of 1.x"),
        ("n-2", "COMPLETED", ""),
        ("n-3", "COMPLETED", ""),
    ]
    call(job, "dispose", taken["pointer"])
    assert [row["state"] for row in call(job, "savepoints", job.name)[1]] == ["GONE", "COMPLETED", "COMPLETED"]
    refused = CliRunner().invoke(main, ["savepoint", job.name, *to, "--path", str(job.root), "--keep", "2"])
    assert refused.exit_code == 2
    assert "need --series" in refused.stderr


def test_the_savepoint_that_a_rollback_goes_to_stays_in_the_history(job: StoredJob, tmp_path: Path) -> None:
    nightly = ("--to", str(tmp_path / "savepoints"), "--series", "nightly", "--keep", "1")
    _, first, _ = call(job, "savepoint", job.name, *nightly, "--name", "n-1")
    job.die(run_id())
    target = job.catalog.resolve(first["pointer"])
    with kept_savepoint(job.catalog, target, "rollback of the test", SystemClock()):
        code, taken, told = call(job, "savepoint", job.name, *nightly, "--name", "n-2")
        assert (code, taken["deleted"]) == (0, [])
        assert "Savepoint n-1 stays" in told
        assert "rollback of the test" in told
    job.die(run_id())
    _, taken, _ = call(job, "savepoint", job.name, *nightly, "--name", "n-3")
    assert len(taken["deleted"]) == 2


def test_a_checkpoint_is_asked_for_and_the_request_is_listed(job: StoredJob) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    code, document, _ = call(job, "checkpoint", job.name)
    assert (code, document) == (0, {"job": job.name, "asked": True})
    requests = job.catalog.records.savepoint_requests
    (request,) = requests.open()
    assert request.checkpoint
    requests.begin(claim.epoch, request, time.time())
    (row,) = call(job, "savepoints", job.name)[1]
    assert (row["kind"], row["state"]) == ("checkpoint", "IN_PROGRESS")
    requests.answer(claim.epoch, request, Answer(time.time(), TakenSavepoint("0" * 32 + "/chk-3", 3, 9, 4, 100, 0.5)))
    (row,) = call(job, "savepoints", job.name)[1]
    assert (row["state"], row["savepoint"], row["batch"]) == ("COMPLETED", "0" * 32 + "/chk-3", 9)
