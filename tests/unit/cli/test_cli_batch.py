"""``dagster-ckpt batch``, on a storage and a live location without Spark."""

from __future__ import annotations

import json
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchiveWriter
from dagster_ckpt.cli import main
from dagster_ckpt.spark.batches.plans import PlannedBatches
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from tests.helpers.orchestration.stored_job import StoredJob, run_id
from tests.helpers.spark.live_location import LiveLocation


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    """Batches 0 to 6 are done, 7 is in flight; checkpoints of 2 and 5; the plans from 3 to 7 are in the archive."""
    job = StoredJob(tmp_path / "storage")
    live = LiveLocation(tmp_path / "live")
    live.run(7)
    live.plan(7, files=[str(tmp_path / "there.json"), "gone.json"], watermark=1_700_000_000_500)
    claim = job.claim(run_id())
    store = job.choose(claim)
    for batch in (2, 5):
        job.checkpoint(store, batch)
    archive = PlanArchiveWriter(job.catalog.filesystem, job.name, _lineage(job), claim.epoch, lambda: None)
    archive.begin(-1, None, [])
    archive.append(PlannedBatches(CheckpointLocation(live.path), 2).new())
    return job


def _lineage(job: StoredJob) -> str:
    chosen = job.catalog.choice()
    assert chosen is not None
    return chosen[1].job_id


def call(job: StoredJob, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["batch", job.name, *arguments, "--path", str(job.root)])


def shown(job: StoredJob, *arguments: str) -> dict[str, Any]:
    result = call(job, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_watermark_that_no_calendar_has_is_told(tmp_path: Path) -> None:
    """One record with such a time is enough: Spark takes the greatest."""
    job = StoredJob(tmp_path / "storage")
    live = LiveLocation(tmp_path / "live")
    live.plan(0, files=["gone.json"], watermark=10**15)
    claim = job.claim(run_id())
    job.choose(claim)
    archive = PlanArchiveWriter(job.catalog.filesystem, job.name, _lineage(job), claim.epoch, lambda: None)
    archive.begin(-1, None, [])
    archive.append(PlannedBatches(CheckpointLocation(live.path), -1).new())
    assert shown(job)["watermark"] == "1000000000000000 ms"


def test_the_newest_planned_batch_with_its_files(job: StoredJob, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("twelve bytes")
    plan = shown(job)["plan"]
    for at, (batch, digest) in enumerate([(7, plan), (7, None), (7, "of another plan"), (6, None)], start=1):
        failure = Failure("run", at, float(at), batch, f"failure {at}", kind="QueryFailed", plan=digest)
        job.failures.record(at, failure)
    document = shown(job)
    assert document == shown(job, "7")
    assert document["batch"] == 7
    assert (document["committed"], document["checkpoint"]) == (False, None)
    assert document["planned_at"] == "2023-11-14T22:13:20.007+00:00"
    assert document["watermark"] == "2023-11-14T22:13:20.500+00:00"
    assert [failure["reason"] for failure in document["failures"]] == ["failure 1", "failure 2"]
    (source,) = document["sources"]
    assert (source["source"], source["start"], source["end"]) == ("0", {"logOffset": 6}, {"logOffset": 7})
    gone, there = source["files"]
    assert (gone["path"], gone["bytes"], gone["exists"]) == ("file:///in/gone.json", None, False)
    assert (there["bytes"], there["exists"]) == (12, True)
    text = call(job).stdout
    for words in ("batch 7 of job orders", "planned, not committed, in no checkpoint", "gone  file:///in/gone.json"):
        assert words in text
    assert "failed 2 times" in text
    assert "failure 2" in text


@pytest.mark.parametrize(
    ("batch", "committed", "number"), [(3, True, 2), (5, True, 2), (6, True, None)], ids=["between", "of", "after"]
)
def test_what_became_of_a_batch(job: StoredJob, batch: int, committed: bool, number: int | None) -> None:
    document = shown(job, str(batch))
    assert document["committed"] is committed
    assert document["checkpoint"] == (None if number is None else f"{_lineage(job)}/chk-{number}")
    assert [item["path"] for item in document["sources"][0]["files"]] == [f"file:///in/{batch}.json"]


def test_without_the_live_location_the_archive_tells(job: StoredJob, tmp_path: Path) -> None:
    before = shown(job)
    shutil.rmtree(tmp_path / "live")
    assert shown(job) == {**before, "committed": None}
    assert "not known whether committed" in call(job).stdout
    assert shown(job, "3")["sources"][0]["start"] is None, "the plan before it is not kept any more"


def test_a_batch_that_is_not_in_the_archive_yet_is_told_from_the_live_location(job: StoredJob, tmp_path: Path) -> None:
    live = LiveLocation(tmp_path / "live")
    live.commit(7)
    live.plan(8)
    assert shown(job)["batch"] == 8
    assert shown(job, "7")["committed"]


def test_a_batch_that_is_not_known(job: StoredJob) -> None:
    result = call(job, "2")
    assert result.exit_code == 1
    assert "The plan of batch 2 of job 'orders' is not known, those of 3 to 7 are." in result.stderr
    assert "from the oldest retained checkpoint on" in result.stderr


@pytest.mark.parametrize("form", ["{}/a", "simplecache::{}/a", "abfs://loot@{}/a"])
def test_no_host_that_a_record_names_is_asked(form: str, tmp_path: Path) -> None:
    """Whoever writes to the storage would reach what the operator's machine reaches."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - as http.server names it

    server = HTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    uri = form.format(address if "@" in form else f"http://{address}")
    job = StoredJob(tmp_path / "storage")
    live = LiveLocation(tmp_path / "live")
    live.run(1)
    live.plan(1, files=["read.json"])
    (log,) = (path for path in live.path.rglob("*") if path.is_file() and b"read.json" in path.read_bytes())
    log.write_text(log.read_text().replace("file:///in/read.json", uri))
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 0)
    report = shown(job, "1")
    server.shutdown()
    server.server_close()
    (read,) = [file for source in report["sources"] for file in source["files"]]
    assert read["exists"] is None
    assert asked == []


def test_a_job_that_never_ran(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    result = call(StoredJob(tmp_path / "storage"))
    assert result.exit_code == 1
    assert "Job 'orders' has never run in" in result.stderr
