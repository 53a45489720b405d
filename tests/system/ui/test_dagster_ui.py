"""What a user sees in the Dagster UI: the example, killed and resumed, in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from playwright.sync_api import Dialog

from assets.batch_answer import batch_answer
from assets.delays import WATERMARK_DAYS
from assets.flights import land
from assets.settings import DATA_VARIABLE, MAX_FILES_VARIABLE, DataPaths
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.cli import main
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.report import Trouble, html_page, read_history
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for
from tools.screenshots import DagsterUI, browse, find_chromium

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[3]
JOB = "flight_delays"
#: Far more than any step takes on an idle machine.
PATIENCE = 900.0
#: By this batch, two days each, the watermark has closed windows for the report.
_CLOSED = 6
#: By how many pixels a table reaches beyond the window, or beyond what clips the table, when nothing is scrolled aside.
_CUT = """table => {
  const boxes = [];
  for (let box = table.parentElement; box; box = box.parentElement) boxes.push(box);
  boxes.forEach(box => { box.scrollLeft = 0 });
  const clipping = boxes.filter(box => getComputedStyle(box).overflowX !== 'visible');
  const ends = clipping.map(box => box.getBoundingClientRect().left + box.clientLeft + box.clientWidth);
  return table.getBoundingClientRect().right - Math.min(innerWidth, ...ends);
}"""
_HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>"


@dataclass(frozen=True)
class Shown:
    """A finished story, and the UI that shows it."""

    ui: DagsterUI
    first_run: str
    resumed_run: str
    restored: str
    retained: list[CheckpointMetadata]
    catalog: CheckpointCatalog
    #: The rows that are in the state and not in the output, as pandas computes them.
    still_open: pd.DataFrame

    @property
    def keys(self) -> list[str]:
        return [names.partition_key(metadata) for metadata in self.retained]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Stream, kill, resume; then by clicks: a savepoint, the end of the job, a drill, a look into the state."""
    find_chromium()  # its absence is told before minutes are spent
    root = tmp_path_factory.mktemp("ui")
    paths = DataPaths(root / "data")
    land(paths.landed, days=20)
    environment = {DATA_VARIABLE: str(paths.root), MAX_FILES_VARIABLE: "2", "SPARK_LOCAL_IP": "127.0.0.1"}
    with DagsterDev(ROOT / "workspace.yaml", root / "dagster_home", environment) as dev:
        catalog = CheckpointCatalog(open_filesystem(paths.checkpoints), JOB)
        first = dev.launch(f"{JOB}_job")
        _wait_checkpoints(dev, catalog, first, 2)
        heartbeat = HeartbeatFile(catalog.filesystem, JOB).read()
        assert heartbeat is not None
        os.kill(heartbeat.processes[0].pid, signal.SIGKILL)

        def resumed() -> str | None:
            return next((run.run_id for run in dev.runs(JOB) if names.ATTEMPT_TAG in run.tags), None)

        second = wait_for(resumed, f"the sensor to resume the job (see {dev.log})", seconds=PATIENCE, poll=0.5)
        land(paths.landed, days=4)
        _wait_checkpoints(dev, catalog, second, 1, batch=_CLOSED)
        # Spark reports on a batch after it is committed, so a run's first checkpoint may know no numbers of it yet.
        land(paths.landed, days=2)
        _wait_checkpoints(dev, catalog, second, 2)
        closed = _watermark(paths)
        _wait_checkpoints(dev, catalog, second, 2, watermark=closed)
        with browse(dev) as ui:
            with _pictured(ui, root):
                _by_clicks(dev, ui, second)
            reports = [dev.launch("__ASSET_JOB", assets=[["delay_report"]]), dev.launch(f"{JOB}_report_job")]
            for report in reports:
                assert dev.wait_finished(report, seconds=PATIENCE) == "SUCCESS", f"see {dev.log}"
            chosen = catalog.choice()
            assert chosen is not None
            assert chosen[1].restored is not None
            answer = batch_answer(paths.landed)
            still_open = answer[answer["window_end"] > closed]
            yield Shown(
                ui, first, second, chosen[1].restored, catalog.completed(chosen[1].job_id)[0], catalog, still_open
            )
            assert not ui.errors, "the UI's own code failed on a page"


def test_the_lineage_goes_from_the_landing_to_checkpoints_and_output_and_on_to_the_report(shown: Shown) -> None:
    shown.ui.lineage("flights", "delay_report")
    assert {
        (JOB, f"{JOB}_checkpoints"),
        ("landed_flights", JOB),
        ("landed_flights", "flight_delays_daily"),
        (JOB, "delay_report"),
    } <= shown.ui.edges()
    node = shown.ui.page.locator("foreignObject", has_text=f"{len(shown.retained)} partitions")
    node.wait_for()
    assert "checkpoints" in (node.text_content() or "")


def test_the_partitions_are_the_retained_set(shown: Shown) -> None:
    shown.ui.partitions(JOB, shown.keys[-1])
    assert set(shown.ui.partition_keys()) == set(shown.keys)
    shown.ui.page.get_by_text(f"{len(shown.keys)} Partitions Selected").wait_for()
    shown.ui.newest_first()
    wait_for(lambda: shown.ui.partition_keys() == shown.keys[::-1], "the newest to be on top", poll=0.5)


def test_the_newest_checkpoint_shows_its_numbers_and_its_pointer(shown: Shown) -> None:
    newest = shown.retained[-1]
    shown.ui.checkpoints(JOB)
    shown.ui.page.get_by_text(shown.keys[-1], exact=True).first.wait_for()
    told = {
        "checkpoint": newest.name,
        "checkpoint_id": str(newest.checkpoint_id),
        "epoch": str(newest.epoch),
        "batch": str(newest.batch),
        "files": str(len(newest.files)),
        "bytes": str(newest.size),
        "new_bytes": str(newest.new_bytes),
        "restored_from": shown.restored,
    }
    for key, value in told.items():
        assert shown.ui.metadata(key).locator("td").last.inner_text() == value, key
    for key in ("duration_ms", "pin_ms", "state_rows", "retained_bytes"):
        assert float(shown.ui.metadata(key).locator("td").last.inner_text()) >= 0, key
    shown.ui.metadata("pointer").get_by_text(f"{newest.job_id}/{newest.name}").wait_for()


def test_the_retained_set_is_a_table_with_the_newest_first(shown: Shown) -> None:
    """All of its columns are seen without scrolling to the side."""
    table = shown.ui.retained(JOB)
    assert shown.ui.page.viewport_size == {"width": 1440, "height": 900}
    assert table.evaluate(_CUT) <= 0
    rows = table.locator("tr").all_inner_texts()[1:]
    listed = [re.search(r"chk-\s*\d+", row) for row in rows]
    assert [match[0] if match else None for match in listed] == [item.name for item in reversed(shown.retained)]


def test_the_newest_comes_first_in_the_list_to_go_back_to(shown: Shown) -> None:
    shown.ui.checkpoints(JOB)
    listed = shown.ui.metadata("go_back_to")
    if (behind := listed.get_by_text("[Show Markdown]")).count():
        behind.click()
        listed = shown.ui.page.get_by_role("dialog")
    listed.get_by_role("link").first.wait_for()
    links = listed.get_by_role("link").all()
    assert [link.inner_text() for link in links] == [item.name for item in reversed(shown.retained)]
    oldest = shown.retained[0]
    links[-1].click()
    shown.ui.page.get_by_role("button", name="Launch Run").wait_for()
    shown.ui.page.get_by_text(oldest.reference).first.wait_for()


def test_the_numbers_are_plotted(shown: Shown) -> None:
    for key in ("batch", "bytes"):
        shown.ui.plots(f"{JOB}_checkpoints", key)
        _assert_drawn(shown.ui)


def test_the_resumed_run_tells_what_it_is_and_where_it_came_from(shown: Shown) -> None:
    tags = shown.ui.run_tags(shown.resumed_run).inner_text()
    assert f"dagster_ckpt/job: {JOB}" in tags
    assert "dagster_ckpt/attempt: 1" in tags
    assert f"dagster_ckpt/job_id: {shown.retained[-1].job_id}" in tags
    assert f"dagster_ckpt/restored_from: {shown.restored}" in tags
    assert f"parent_run_id: {shown.first_run}" in tags
    assert f"root_run_id: {shown.first_run}" in tags
    shown.ui.run(shown.resumed_run, "of lineage")
    shown.ui.page.get_by_text(f"starts from {shown.restored}").first.wait_for()


def test_a_savepoint_was_taken_by_a_click(shown: Shown, tmp_path: Path) -> None:
    shown.ui.asset(f"{JOB}_savepoints")
    pointer = shown.ui.metadata("pointer").locator("td").last.inner_text().strip()
    assert shown.ui.metadata("batch").locator("td").last.inner_text() == str(shown.retained[-1].batch)
    shown.ui.metadata("ways_back").get_by_role("link", name="go back to this savepoint").wait_for()
    shown.ui.page.screenshot(path=tmp_path / "savepoint.png")
    verified = CliRunner().invoke(main, ["verify", JOB, pointer, "--path", shown.catalog.filesystem.url])
    assert verified.exit_code == 0, verified.output
    shutil.move(Path(pointer), Path(pointer).with_name("moved"))
    try:
        verified = CliRunner().invoke(main, ["verify", JOB, pointer, "--path", shown.catalog.filesystem.url])
        assert verified.exit_code != 0, "the savepoint is somewhere else"
    finally:
        shutil.move(Path(pointer).with_name("moved"), Path(pointer))


def test_the_state_is_read_by_a_click(shown: Shown, tmp_path: Path) -> None:
    """The rows of a table in the UI are those that pandas finds without any state."""
    wanted = shown.still_open.groupby("window_start").agg(carriers=("carrier", "nunique"), flights=("flights", "sum"))
    rows = [[f"{start:%Y-%m-%d %H:%M}", str(row.carriers), str(row.flights)] for start, row in wanted.iterrows()]
    shown.ui.asset("open_windows")
    table = shown.ui.metadata("windows").locator("table")
    table.locator("tr").nth(len(rows)).wait_for()
    listed = [row.split("\t") for row in table.locator("tr").all_inner_texts()[1:]]
    shown.ui.page.screenshot(path=tmp_path / "state.png")
    assert (len(rows) > 0, listed) == (True, rows)


def test_a_drill_by_a_click_is_plotted(shown: Shown, tmp_path: Path) -> None:
    shown.ui.plots(f"{JOB}_drill", "recovery_seconds")
    shown.ui.page.screenshot(path=tmp_path / "plots.png")
    _assert_drawn(shown.ui)
    shown.ui.asset(f"{JOB}_drill")
    told = {
        key: shown.ui.metadata(key).locator("td").last.inner_text() for key in ("checkpoint", "batch", "state_rows")
    }
    shown.ui.page.screenshot(path=tmp_path / "drill.png")
    newest = shown.retained[-1]
    assert (told["batch"], told["state_rows"]) == (str(newest.batch + 1), str(len(shown.still_open)))
    assert newest.name in told["checkpoint"]


def test_the_report_shows_its_picture(shown: Shown) -> None:
    image = shown.ui.picture("delay_report", "picture")
    assert image.evaluate("image => image.complete && image.naturalWidth") == 810


def test_the_report_of_the_job_shows_its_charts(shown: Shown) -> None:
    image = shown.ui.picture(f"{JOB}_report", "charts")
    charts = shown.ui.page.get_by_role("dialog").locator("img")
    assert charts.count() >= 4  # durations, bytes, state, starts; files have no lag
    for number in range(charts.count()):
        chart = charts.nth(number)
        assert chart.evaluate("image => image.decode().then(() => image.naturalWidth)") == 480
    assert image.is_visible()
    shown.ui.asset(f"{JOB}_report")
    assert shown.ui.metadata("restarts").locator("td").last.inner_text() == "1"
    shown.ui.metadata("starts").get_by_text(shown.resumed_run).first.wait_for()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_of_the_job_fits_and_runs_nothing(shown: Shown, tmp_path: Path, width: int) -> None:
    """As a browser shows it, with a reason in it that would be markup."""
    history = read_history(shown.catalog, SystemClock(), [Trouble(1.0, "failure", "run", _HOSTILE)])
    file = tmp_path / "report.html"
    file.write_text(html_page(history), encoding="utf-8")
    browser = shown.ui.page.context.browser
    assert browser is not None
    page = browser.new_page()
    try:
        said: list[str] = []

        def hear(dialog: Dialog) -> None:
            said.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", hear)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(file.as_uri())
        page.get_by_text(_HOSTILE, exact=True).wait_for()
        assert page.evaluate("[document.documentElement.scrollWidth <= innerWidth, document.scripts.length]") == [
            True,
            0,
        ]
        for chart in page.locator("svg").all():
            box = chart.bounding_box()
            assert box is not None
            assert (box["width"] > 300, box["x"] + box["width"] <= width) == (True, True)
        dots = page.locator("circle")
        assert dots.count() >= 2 * len(shown.retained)
        assert shown.retained[0].name in (dots.first.locator("title").text_content() or "")
        assert not said
    finally:
        page.close()


def test_the_sensor_tells_why_it_does_nothing_and_what_it_launched(shown: Shown) -> None:
    assert f"{JOB}: it ended CANCELED" in shown.ui.ticks(f"{JOB}_resume_sensor")
    shown.ui.requested_ticks(f"{JOB}_resume_sensor")
    shown.ui.page.get_by_text(shown.resumed_run[:8]).first.wait_for()


def test_a_terminated_run_tells_what_became_of_the_checkpoints(shown: Shown) -> None:
    shown.ui.run(shown.resumed_run, f"The job is over: 0 checkpoints are deleted, and {len(shown.retained)} stay")


def test_a_damaged_file_turns_a_check_red_and_the_advised_command_works(shown: Shown) -> None:
    older, newest = shown.retained[-2:]
    damaged = next(file for file in newest.files if file.reference is not None and file not in older.files)
    path = Path(shown.catalog.filesystem.url, shown.catalog.stored_path(newest, damaged.reference or ""))
    genuine = path.read_bytes()
    path.write_bytes(genuine[:-1] + bytes([genuine[-1] ^ 1]))
    try:
        told = shown.ui.execute_check(JOB, "restorable")
    finally:
        path.write_bytes(genuine)
    assert f"{newest.name} of {JOB} cannot be restored: {path}" in told
    assert f"restore_from: {older.reference}" in told
    assert "Failed" in told
    advised = re.search(r"dagster-ckpt (verify \S+ \S+ --path \S+)\.", told)
    assert advised is not None
    done = CliRunner().invoke(main, advised[1].split())
    assert (done.exit_code, older.reference in done.stdout) == (0, True), done.output


def test_a_missing_chromium_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Chromium is missing"):
        find_chromium()


def _by_clicks(dev: DagsterDev, ui: DagsterUI, run_id: str) -> None:
    """Take a savepoint, end the job, then have a drill and a look into the state."""
    saved = ui.materialize(f"{JOB}_savepoints")
    assert dev.wait_finished(saved, seconds=PATIENCE) == "SUCCESS", f"see {dev.log}"
    ui.terminate(run_id)
    assert dev.wait_finished(run_id, seconds=PATIENCE) == "CANCELED"
    for launched in [ui.materialize(f"{JOB}_drill"), ui.materialize("open_windows")]:
        assert dev.wait_finished(launched, seconds=PATIENCE) == "SUCCESS", f"see {dev.log}"


@contextmanager
def _pictured(ui: DagsterUI, directory: Path) -> Iterator[None]:
    """Leaves a picture of the page where something is not as it should be."""
    try:
        yield
    except Exception:
        ui.page.screenshot(path=directory / "failed.png")
        raise


def _assert_drawn(ui: DagsterUI) -> None:
    drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(v => v)"
    assert ui.page.locator("canvas").first.evaluate(drawn)


def _watermark(paths: DataPaths) -> pd.Timestamp:
    """The watermark behind all that has landed."""
    newest = max(
        pq.read_table(file, columns=["time_hour"])["time_hour"].to_pandas().max()
        for file in paths.landed.glob("*.parquet")
    )
    return pd.Timestamp(newest) - pd.Timedelta(days=WATERMARK_DAYS)


def _wait_checkpoints(
    dev: DagsterDev,
    catalog: CheckpointCatalog,
    run_id: str,
    count: int,
    *,
    batch: int = 0,
    watermark: pd.Timestamp | None = None,
) -> None:
    """Wait for so many checkpoints of a run, the newest at ``batch`` or later, and behind ``watermark``."""

    def ask() -> bool:
        chosen = catalog.choice()
        completed = catalog.completed(chosen[1].job_id)[0] if chosen is not None else []
        # A salvage is no checkpoint of the run: it was taken of what the run before had left, and knows no progress.
        mine = [item for item in completed if item.writer["run_id"] == run_id and item.kind == "checkpoint"]
        closed = None if watermark is None else watermark.timestamp() * 1000
        if len(mine) >= count and mine[-1].batch >= batch and closed in {None, mine[-1].facts.watermark_ms}:
            return True
        if (status := dev.status(run_id)) in ("SUCCESS", "FAILURE", "CANCELED"):
            raise AssertionError(f"run {run_id} ended {status}; see {dev.log}")
        return False

    wait_for(ask, f"{count} checkpoints of run {run_id} (see {dev.log})", seconds=PATIENCE, poll=0.5)
