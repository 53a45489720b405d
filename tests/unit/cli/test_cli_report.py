"""``dagster-ckpt report``."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt.cli import main
from tests.helpers.orchestration.stored_job import StoredJob, run_id


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    job = StoredJob(tmp_path / "storage", "orders")
    claim = job.claim(run_id())
    store = job.choose(claim)
    for batch in (3, 5):
        job.checkpoint(store, batch)
    job.fail(claim, 1)
    return job


def _report(job: StoredJob, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["report", *arguments, "--path", str(job.root)])


def test_a_page_is_written_and_an_older_page_replaced(job: StoredJob, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("the page of yesterday")
    told = _report(job, "orders", "--to", str(page))
    assert (told.exit_code, told.output) == (0, f"wrote {page}: 2 checkpoints, 1 start\n")
    html = page.read_text(encoding="utf-8")
    assert "yesterday" not in html
    assert "<h1>Checkpoints of orders</h1>" in html
    assert "failure 1" in html
    assert {file.name for file in tmp_path.iterdir() if "report" in file.name} == {"report.html"}


def test_a_link_stays_and_what_it_leads_to_is_replaced(job: StoredJob, tmp_path: Path) -> None:
    page, link = tmp_path / "pages" / "page.html", tmp_path / "report.html"
    page.parent.mkdir()
    link.symlink_to(page)
    for before in (None, "the page of yesterday"):
        if before is not None:
            page.write_text(before)
        assert _report(job, "orders", "--to", str(link)).exit_code == 0
        assert link.is_symlink()
        assert "<h1>Checkpoints of orders</h1>" in page.read_text(encoding="utf-8")
    assert list(page.parent.iterdir()) == [page]


@pytest.mark.parametrize("is_link", [False, True], ids=["", "by a link"])
def test_a_pipe_is_written_to_and_stays(job: StoredJob, tmp_path: Path, *, is_link: bool) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    (link := tmp_path / "link").symlink_to(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    assert _report(job, "orders", "--to", str(link if is_link else pipe)).exit_code == 0
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    reader.join(60)
    assert len(read) == 1
    assert read[0].rstrip().endswith("</html>")


def test_a_terminal_is_written_to(job: StoredJob) -> None:
    ours, terminal = os.openpty()
    read = bytearray()

    def drain() -> None:
        with contextlib.suppress(OSError):  # the end, where nobody has the terminal open any more
            while data := os.read(ours, 4096):
                read.extend(data)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    told = _report(job, "orders", "--to", os.ttyname(terminal))
    os.close(terminal)
    reader.join(60)
    os.close(ours)
    assert told.exit_code == 0, told.stderr
    assert read.rstrip().endswith(b"</html>")


def test_the_same_as_data(job: StoredJob) -> None:
    told = json.loads(_report(job, "orders", "--json").stdout)
    assert [row["batch"] for row in told["checkpoints"]] == [3, 5]
    assert told["newest"].endswith("/chk-2")
    assert [trouble["reason"] for trouble in told["troubles"]] == ["failure 1"]
    assert len(told["starts"]) == 1


def test_neither_page_nor_data_is_a_wrong_call(job: StoredJob) -> None:
    told = _report(job, "orders")
    assert told.exit_code == 2
    assert "Give --to FILE for a page, or --json." in told.stderr


def test_an_unknown_job_is_refused_and_no_page_written(job: StoredJob, tmp_path: Path) -> None:
    told = _report(job, "nosuchjob", "--to", str(tmp_path / "report.html"))
    assert told.exit_code == 1
    assert "There is no job 'nosuchjob'" in told.stderr
    assert "orders" in told.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("above", "why"), [("no/such", "No such file or directory"), ("file", "Not a directory")], ids=["missing", "a file"]
)
def test_a_page_that_cannot_be_written_is_an_error_in_words(
    job: StoredJob, tmp_path: Path, above: str, why: str
) -> None:
    (tmp_path / "file").touch()
    told = _report(job, "orders", "--to", str(tmp_path / above / "report.html"))
    assert told.exit_code == 1
    assert f"cannot be written: {why}" in told.stderr
