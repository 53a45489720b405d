"""``dagster-ckpt restore`` without a webserver that could launch anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt.cli import main
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
    assert "The nearest is chk-2" in done.stdout
    shown = restore(job, "none", "--dry-run", "--allow-loss", "--path", str(job.root))
    assert shown.exit_code == 0
    assert "Would launch orders_rollback with:\n  to: none\n  check_only: false\n  allow_loss: true" in shown.stdout


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

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
