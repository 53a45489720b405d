"""``dagster-ckpt restore`` against a real webserver of Dagster, whose run is a real one; no Spark is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from dagster_ckpt.cli import main
from dagster_ckpt.cli.rollback.webserver import RunState, Webserver
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.helpers.orchestration.stored_job import StoredJob, run_id
from tests.servers.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_LOCATION = """
from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource, build_checkpoint_definitions
from tests.helpers.orchestration.stored_job import make_asset

defs = build_checkpoint_definitions(
    [make_asset("orders")],
    {"checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path=ROOT), "spark": SparkSessionResource()},
)
"""
#: No daemon runs here, and without a queue none is needed.
_INSTANCE = """
telemetry: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("restore")


@pytest.fixture(scope="module")
def job(place: Path) -> StoredJob:
    job = StoredJob(place / "storage")
    job.end(job.die(run_id(), checkpoints=2), "CANCELED")
    return job


@pytest.fixture(scope="module")
def url(place: Path, job: StoredJob) -> Iterator[str]:
    (place / "home").mkdir()
    (place / "home" / "dagster.yaml").write_text(_INSTANCE)
    (place / "location.py").write_text(f"ROOT = {str(job.root)!r}\n{_LOCATION}")
    port = free_port()
    server = [sys.executable, "-m", "dagster_webserver", "-f", str(place / "location.py"), "-p", str(port)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [*server, "-h", "127.0.0.1"],
            env={**os.environ, "DAGSTER_HOME": str(place / "home"), "PYTHONPATH": str(Path.cwd())},
            stdout=log,
            stderr=log,
        )
    found = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (place / "log").read_text()
        try:
            return requests.get(f"{found}/server_info", timeout=30).ok
        except requests.exceptions.ConnectionError:
            return False

    try:
        wait_for(answers, "the webserver", seconds=180, poll=0.5)
        yield found
    finally:
        process.terminate()
        process.wait(60)


def restore(job: StoredJob, *arguments: str) -> tuple[int, Any, str]:
    done = CliRunner(catch_exceptions=False).invoke(main, ["restore", job.name, *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.exhaustive
def test_a_run_checks_and_its_verdict_is_the_exit_status(
    job: StoredJob, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the stored job is none of Spark's, so going back is impossible, and the run says so."""
    dry, told, _ = restore(job, "chk-1", "--dry-run", "--path", str(job.root), "--dagster-url", url)
    assert told["launch"] == {
        "job": "orders_rollback",
        "run_config": {"to": "chk-1", "check_only": False, "allow_loss": False},
        "url": url,
    }
    rescaled = ("chk-1", "--state-partitions", "7", "--dagster-url", url)
    _, other, _ = restore(job, *rescaled, "--dry-run", "--path", str(job.root))
    assert other["launch"]["run_config"]["state_partitions"] == 7
    assert "state partitions" in {finding["check"] for finding in other["preflight"]["findings"]}
    moved = ("chk-1", "--start-sources", '{"orders": {"0": 7}}', "--dagster-url", url)
    _, other, _ = restore(job, *moved, "--dry-run", "--path", str(job.root))
    assert other["launch"]["run_config"]["start_sources"] == {"orders": {"0": 7}}
    assert "start sources" in {finding["check"] for finding in other["preflight"]["findings"]}
    checked, document, progress = restore(job, *rescaled, "--check-only")
    assert (checked, document["status"]) == (4, "SUCCESS"), progress
    checked, document, progress = restore(job, "chk-1", "--check-only", "--dagster-url", url)
    assert (document["status"], document["verdict"]) == ("SUCCESS", told["preflight"]["verdict"]), progress
    assert checked == dry == 4
    assert f"{url}/runs/{document['run']}" in progress
    with monkeypatch.context() as patch:
        answers = iter([CheckpointError("The webserver restarts.", hint="")])

        def away_once(server: Webserver, run: str) -> RunState:
            for error in answers:
                raise error
            return ask(server, run)

        ask = Webserver.run
        patch.setattr(Webserver, "run", away_once)
        refused, document, progress = restore(job, "chk-1", "--dagster-url", url)
    assert "The webserver restarts" in progress
    assert (refused, document["status"], document["verdict"]) == (4, "FAILURE", "NOT_RESTORABLE")


@pytest.mark.exhaustive
def test_what_is_not_there_is_told(job: StoredJob, url: str) -> None:
    code, document, told = restore(job, "chk-99", "--dagster-url", url)
    assert (code, document["status"], document["verdict"]) == (1, "FAILURE", None)
    assert "/runs/" in told
    assert "job 'orders' is as it was" in told
    assert Webserver(url).active("dagster_ckpt/job", job.name) is None
    other = CliRunner().invoke(main, ["restore", "nosuchjob", "latest", "--dagster-url", url])
    assert other.exit_code == 1
    assert "No code location" in other.stderr
