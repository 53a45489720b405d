"""``dagster-ckpt restore`` without a webserver that could launch anything."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

import dagster_ckpt.cli.rollback.restore
import dagster_ckpt.cli.spark_files  # noqa: F401 - commands are loaded when they are called
from dagster_ckpt.cli import main
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.orchestration.stored_job import StoredJob, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    job = StoredJob(tmp_path / "storage")
    job.die(run_id(), checkpoints=2)
    return job


def restore(job: StoredJob, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["restore", job.name, *arguments])


def test_a_dry_run_tells_the_launch_and_the_verdict(job: StoredJob) -> None:
    done = restore(job, "chk-7", "--dry-run", "--path", str(job.root), "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["preflight"]["verdict"]) == (4, "NOT_RESTORABLE")
    assert "The newest is chk-2" in done.stdout
    shown = restore(job, "none", "--dry-run", "--allow-loss", "--path", str(job.root))
    assert shown.exit_code == 0
    assert "Would launch orders_rollback with:\n  to: none\n  check_only: false\n  allow_loss: true" in shown.stdout


@pytest.mark.parametrize("failing", ["", "heartbeat", "control/wal"])
@pytest.mark.parametrize("command", ["preflight", "restore"])
def test_a_storage_that_fails_is_no_verdict_on_the_checkpoint(
    command: str, failing: str, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be read; or, at first, all of the checkpoint; or the plans, whose check makes a finding of it."""

    def plan(operation: Operation) -> Fail | None:
        return Fail() if failing in operation.path else None

    storage = FaultInjectingFileSystem(job.catalog.filesystem, plan)
    monkeypatch.setattr(sys.modules["dagster_ckpt.cli.spark_files"], "storage_at", lambda _: storage)
    monkeypatch.setattr(sys.modules["dagster_ckpt.cli.rollback.restore"], "storage_at", lambda _: storage)
    dry = ["--dry-run"] if command == "restore" else []
    done = CliRunner(catch_exceptions=False).invoke(
        main, [command, job.name, "chk-1", *dry, "--path", str(job.root), "--json"]
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert "failed" in done.stderr
    assert "NOT_RESTORABLE" not in done.output


def test_a_dry_run_of_a_start_from_nothing_tells_of_the_run_that_drives_the_job(job: StoredJob) -> None:
    claim = job.claim(run_id())
    job.beat(claim, alive=True)
    done = restore(job, "none", "--dry-run", "--path", str(job.root))
    assert done.exit_code == 4
    assert f"Run {claim.run_id} drives job 'orders'" in done.stdout
    assert "would be refused" in done.stdout
    assert f"Terminate run {claim.run_id}, empty the sink" in done.stdout
    job.beat(claim, alive=False)
    assert restore(job, "none", "--dry-run", "--path", str(job.root)).exit_code == 0


def test_what_is_needed_is_asked_for(job: StoredJob) -> None:
    for arguments, needs in ((("chk-1",), "--dagster-url"), (("chk-1", "--dry-run"), "--path")):
        done = restore(job, *arguments)
        assert done.exit_code == 2
        assert needs in done.stderr


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A web server that is not Dagster's."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"hello": "world"}' if self.path.startswith("/json") else b"<html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Page) as url:
        yield url


@contextmanager
def served(page: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def dagster(status: str, tags: dict[str, str], active: str | None = None) -> Iterator[str]:
    """A webserver with the rollback job of ``orders``, whose run is over, and with an active run of the job or none."""
    locations = {
        "__typename": "RepositoryConnection",
        "nodes": [{"name": "r", "location": {"name": "l"}, "jobs": [{"name": "orders_rollback"}]}],
    }
    told = [{"key": key, "value": value} for key, value in tags.items()]
    runs = [] if active is None else [{"runId": active, "status": "STARTED"}]
    answers = {
        "repositoriesOrError": locations,
        "launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "the-rollback"}},
        "runOrError": {"__typename": "Run", "status": status, "tags": told},
        "runsOrError": {"__typename": "Runs", "results": runs},
    }

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (field,) = (name for name in answers if f"{name}(" in asked["query"] or f"{name} {{" in asked["query"])
            body = json.dumps({"data": {field: answers[field]}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with served(Page) as url:
        yield url


_VERDICT, _ROLLBACK = "dagster_ckpt/verdict", "dagster_ckpt/rollback"


@pytest.mark.parametrize(
    ("status", "tags", "arguments", "code", "told"),
    [
        ("SUCCESS", {_VERDICT: "WITH_LOSS", _ROLLBACK: "settled"}, (), 0, ""),
        ("SUCCESS", {_VERDICT: "WITH_LOSS"}, ("--check-only",), 3, ""),
        ("FAILURE", {_VERDICT: "WITH_LOSS"}, (), 3, ""),
        ("FAILURE", {_VERDICT: "NOT_RESTORABLE"}, ("--allow-loss",), 4, ""),
        ("FAILURE", {}, (), 1, "Nothing is changed: job 'orders' is as it was"),
        ("CANCELED", {_VERDICT: "WITH_LOSS"}, (), 1, "Nothing is changed: job 'orders' is as it was"),
        ("FAILURE", {_VERDICT: "WITH_LOSS", _ROLLBACK: "accepted"}, (), 1, "no run of it is active now"),
        ("FAILURE", {_VERDICT: "WITH_LOSS", _ROLLBACK: "settled"}, (), 1, "Run r-7 of job 'orders' is STARTED now"),
    ],
)
def test_what_has_become_of_the_job_is_told(
    status: str, tags: dict[str, str], arguments: tuple[str, ...], code: int, told: str, job: StoredJob
) -> None:
    """Under AT_LEAST_ONCE a rollback accepts rows that would be doubled, and may fail later for another reason."""
    with dagster(status, tags, active="r-7" if "r-7" in told else None) as url:
        done = restore(job, "chk-1", "--dagster-url", url, *arguments)
        assert done.exit_code == code, done.output
        assert told in done.stderr
        if code == 1:
            assert f"See {url}/runs/the-rollback" in done.stderr
            assert f"`dagster-ckpt restore orders chk-1 --dagster-url {url}`" in done.stderr


class Launching(BaseHTTPRequestHandler):
    """A webserver that launches what it is asked for, and whose answer to that is lost.

    The launch shows itself at the third look; ``shows`` says whether at all.
    """

    launched: ClassVar[list[list[dict[str, str]]]]
    looks: ClassVar[int]
    shows: ClassVar[bool]
    lost: ClassVar[bytes]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "launchRun(" in asked["query"]:
            self.launched.append(asked["variables"]["params"]["executionMetadata"]["tags"])
            if self.lost:
                self._answer(self.lost)
            return
        if "runsOrError(" in asked["query"]:
            type(self).looks += 1
            is_there = self.shows and self.looks >= 3 and asked["variables"]["filter"]["tags"] in self.launched
            results = [{"runId": "the-rollback", "status": "STARTED"}] if is_there else []
            answer: dict[str, object] = {"runsOrError": {"__typename": "Runs", "results": results}}
        elif "runOrError(" in asked["query"]:
            assert asked["variables"] == {"runId": "the-rollback"}
            answer = {"runOrError": {"__typename": "Run", "status": "SUCCESS", "tags": []}}
        else:
            nodes = [{"name": "r", "location": {"name": "l"}, "jobs": [{"name": "orders_rollback"}]}]
            answer = {"repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": nodes}}
        self._answer(json.dumps({"data": answer}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("lost", [b"", b"<html>504", b'{"data": null, "errors": []}'], ids=["cut", "proxy", "error"])
@pytest.mark.parametrize("shows", [True, False])
def test_a_launch_whose_answer_is_lost_is_looked_for(
    shows: bool, lost: bytes, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever called again would take the job back twice."""
    page: Any = type("Page", (Launching,), {"launched": [], "looks": 0, "shows": shows, "lost": lost})
    monkeypatch.setattr("dagster_ckpt.cli.rollback.webserver._SHOWS", 60.0 if shows else 0.1, raising=False)
    monkeypatch.setattr("dagster_ckpt.cli.rollback.webserver._LOOK", 0.05, raising=False)
    with served(page) as url:
        first, second = (restore(job, "chk-1", "--dagster-url", url) for _ in range(2))
    (tag,), (other,) = page.launched
    assert tag["value"] != other["value"], "the run of one call is not that of another"
    if shows:
        assert (first.exit_code, first.stdout) == (0, "SUCCESS\n")
        assert "Run the-rollback of orders_rollback is launched" in first.stderr
        return
    for done, mark in ((first, tag), (second, other)):
        assert (done.exit_code, done.stdout) == (1, "")
        assert "Nobody can tell whether Dagster has launched the run" in done.stderr
        assert f"Look on {url}/runs for a run with the tag {mark['key']}={mark['value']}" in done.stderr


def test_the_next_command_is_as_it_was_asked(job: StoredJob) -> None:
    with dagster("FAILURE", {}) as url:
        told = restore(job, "savepoint:before the sale", "--allow-loss", "--check-only", "--dagster-url", url).stderr
    again = "dagster-ckpt restore orders 'savepoint:before the sale' --check-only --allow-loss --dagster-url"
    assert f"`{again} {url}`" in told


def test_whoever_else_answers_is_told_and_nobody_sees_a_traceback(job: StoredJob, elsewhere: str) -> None:
    for url, why in (
        (elsewhere, "does not answer as a webserver of Dagster does"),
        (f"{elsewhere}/json", "does not answer as a webserver of Dagster does"),
        ("http://127.0.0.1:9", "does not answer: ConnectionError"),
        ("localhost:3000", "is no URL of a webserver"),
        ("here", "is no URL of a webserver"),
    ):
        done = restore(job, "chk-1", "--dagster-url", url)
        assert done.exit_code == 1, url
        assert why in done.stderr
