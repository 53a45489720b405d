"""Pictures of the Dagster UI, taken by a headless Chromium of what a main job left behind.

    python tools/screenshots.py

Without arguments the newest directory below ``artifacts/main-job`` is shown (``make run`` makes one) and the PNGs go
to ``artifacts/screenshots``. Dagster runs on a copy of the directory, so nothing of the main job is changed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from playwright.sync_api import Error, Locator, Page, Route, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from assets.settings import DATA_VARIABLE, DataPaths  # noqa: E402
from dagster_ckpt.checkpoint import CheckpointCatalog  # noqa: E402
from dagster_ckpt.clock import SystemClock  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.report import html_page, read_history  # noqa: E402
from dagster_ckpt.testing.dagster_dev import DagsterDev  # noqa: E402

Edge: TypeAlias = tuple[str, str]

JOB = "flight_delays"
#: Seconds a page may take to show what is waited for; it is a few on an idle machine.
PATIENCE = 90
#: How often the mouse is put over what tells more then, and the milliseconds for it to tell.
_HOVERS, _HOVER_MS = 18, 5_000
_SIZE = (1440, 900)
#: The graph does not shrink to the window, and gets one in which it is whole.
_SIZES = {"lineage": (1440, 1150)}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LOCATIONS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { location { name } } } } }"
# Edges and nodes lie in one SVG: an edge ends on the border of the nodes it joins, some pixels off.
_EDGES = """() => {
  const nodes = [...document.querySelectorAll('foreignObject')].map(node => ({
    top: node.y.baseVal.value, left: node.x.baseVal.value,
    bottom: node.y.baseVal.value + node.height.baseVal.value, right: node.x.baseVal.value + node.width.baseVal.value,
    text: node.firstElementChild?.innerText ?? '',
  }));
  const at = point => nodes.find(node => node.left - 12 <= point.x && point.x <= node.right + 12
    && node.top <= point.y && point.y <= node.bottom)?.text ?? '';
  return [...document.querySelectorAll('path[marker-end]')].map(edge =>
    [at(edge.getPointAtLength(0)), at(edge.getPointAtLength(edge.getTotalLength()))]);
}"""


def _name(node: str) -> str:
    """The asset of a node, by its text: above the name is only that the asset is older than what it is made of."""
    return next((line for text in node.split("\n") if (line := text.strip()) and not line.startswith("Unsynced")), "")


#: Whether an element shows a text in a colour whose red is much stronger than its green and blue.
_IS_RED = """([within, text]) => [...document.querySelectorAll(within)]
  .flatMap(root => [root, ...root.querySelectorAll('*')])
  .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.includes(text)))
  .some(element => {
    const [red, green, blue] = getComputedStyle(element).color.match(/[0-9.]+/g).map(Number)
    return red > 100 && red > 1.5 * green && red > 1.5 * blue
  })"""


def find_chromium() -> str:
    """The path of Chromium.

    Raises:
        FileNotFoundError: there is none on the PATH.
    """
    for name in _BROWSERS:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        f"Chromium is missing: none of {', '.join(_BROWSERS)} is on the PATH (Debian: apt-get install chromium)."
    )


class DagsterUI:
    """The pages of the Dagster UI that show checkpoints.

    Each method opens a page and returns when what matters on it is visible.

    Args:
        page: of the browser.
        url: of the webserver.
        location: the code location's name.
    """

    def __init__(self, page: Page, url: str, location: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(PATIENCE * 1000)
        self._url = url
        self._location = location

    def lineage(self, group: str, asset: str) -> None:
        """The asset graph of a group, in which ``asset`` is."""
        self._open(f"/locations/{self._location}/asset-groups/{group}")
        self.page.locator("foreignObject", has_text=asset).first.wait_for()
        self.page.locator("path[marker-end]").first.wait_for(state="attached")

    def edges(self) -> set[Edge]:
        """The edges of the asset graph that is shown, by the names of the nodes."""
        found = self.page.evaluate(_EDGES)
        return {(_name(source), _name(target)) for source, target in found}

    def checkpoints(self, asset: str) -> None:
        """The overview of ``<asset>_checkpoints``: the newest checkpoint's metadata as a table."""
        self._open(f"/assets/{asset}_checkpoints?view=overview")
        self.metadata("pointer").wait_for()

    def retained(self, asset: str) -> Locator:
        """The retained set as the overview shows it; returns its table."""
        self.checkpoints(asset)
        table = self.metadata("retained").locator("table")
        table.scroll_into_view_if_needed()
        return table

    def metadata(self, key: str) -> Locator:
        """The row of the overview's metadata with this key."""
        return self.page.locator("tr").filter(has=self.page.locator("td", has_text=re.compile(f"^{key}$"))).first

    def plots(self, asset: str, key: str) -> None:
        """The plots of the numeric metadata of an asset, of which one is called ``key``."""
        self.asset(asset)
        self.metadata(key).wait_for()
        self.page.get_by_role("button", name="Plots").click()
        self.page.get_by_text(key, exact=True).first.wait_for()
        self.page.locator("canvas").first.wait_for()

    def partitions(self, asset: str, newest: str) -> None:
        """The partitions of ``<asset>_checkpoints``, with ``newest`` selected."""
        self._open(f"/assets/{asset}_checkpoints?view=partitions")
        self.page.get_by_text(newest, exact=True).first.click()
        self.page.get_by_text("View all historical events").wait_for()
        self.page.get_by_text("Materialized", exact=True).first.wait_for()

    def newest_partition(self, asset: str, newest: str) -> None:
        """The partitions of ``<asset>_checkpoints``, the newest on top."""
        self._open(f"/assets/{asset}_checkpoints?view=partitions")
        self.newest_first()
        self.page.get_by_text(newest, exact=True).first.wait_for()

    def launch(self, link: str) -> str:
        """Follow a link into the Launchpad and launch the run as it is configured there; returns the run's id."""
        self.page.get_by_role("link", name=link).first.click()
        self.page.get_by_role("button", name="Launch Run").click()
        self.page.wait_for_url("**/runs/*")
        return self.page.url.rpartition("/")[2]

    def materialize(self, asset: str) -> str:
        """Click *Materialize* on the page of an asset, of which Dagster asks nothing; returns the run's id."""
        self.asset(asset)
        self._button("Materialize").click()
        told = self.page.get_by_role("link").filter(has_text=re.compile("^View$")).last
        run = re.search(r"/runs/([0-9a-f-]{36})", told.get_attribute("href") or "")
        assert run is not None
        return run[1]

    def terminate(self, run_id: str) -> None:
        """Click *Terminate* on the page of a run, and confirm."""
        self._open(f"/runs/{run_id}")
        self._button("Terminate").click()
        self._button("Terminate 1 run").click()

    def newest_first(self) -> None:
        """Sort the partitions that are listed by the reverse order of their creation."""
        self.page.get_by_test_id("sort-0").click()
        self.page.get_by_text("Reverse creation sort", exact=True).first.click()

    def partition_keys(self) -> list[str]:
        """The partition keys the page lists, from above."""
        listed = self.page.get_by_text(re.compile(r"^[0-9a-f]{8}\.chk-\d+$")).all_inner_texts()
        return list(dict.fromkeys(listed))

    def run(self, run_id: str, event: str) -> None:
        """A run and those of its events that say ``event``."""
        self._open(f"/runs/{run_id}")
        self.page.get_by_placeholder("Filter…").fill(event)
        self.page.get_by_text(event).first.wait_for()

    def run_tags(self, run_id: str) -> Locator:
        """The tags and configuration of a run; returns the dialog."""
        self._open(f"/runs/{run_id}")
        self.page.get_by_role("button", name="View tags and config").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_text("dagster_ckpt/job:").first.wait_for()
        return dialog

    def picture(self, asset: str, key: str) -> Locator:
        """The pictures in an asset's Markdown metadata; returns the first image."""
        self._open(f"/assets/{asset}?view=overview")
        self.metadata(key).get_by_text("[Show Markdown]").click()
        image = self.page.get_by_role("dialog").locator("img").first
        image.wait_for()
        return image

    def asset(self, asset: str) -> None:
        """The overview of an asset."""
        self._open(f"/assets/{asset}?view=overview")
        self.page.get_by_text("Checks", exact=True).first.wait_for()

    def wait_red(self, text: str, within: str = "body") -> None:
        """Wait until the page shows ``text`` in red, within the elements of a selector."""
        self.page.wait_for_function(_IS_RED, arg=[within, text])

    def check(self, asset: str, check: str, told: str) -> None:
        """An asset check that has been evaluated, and whose reason has ``told``."""
        self._open(f"/assets/{asset}?view=checks")
        self.page.get_by_text(check, exact=True).first.click()
        self.page.get_by_text(told).first.wait_for()

    def execute_check(self, asset: str, check: str) -> str:
        """Execute an asset check that is to fail, and wait until it has; returns what the page says."""
        self._open(f"/assets/{asset}?view=checks")
        self.page.get_by_text(check, exact=True).first.click()
        self._button("Execute").click()
        self.page.get_by_text("cannot be restored").first.wait_for()
        return self.page.locator("body").inner_text()

    def ticks(self, sensor: str) -> str:
        """The ticks of a sensor, with what the newest of them said; returns that."""
        self._open(f"/locations/{self._location}/sensors/{sensor}")
        said = self.page.get_by_text(re.compile(f"^{JOB}: ")).first
        for _ in range(_HOVERS):
            # A tick that comes meanwhile moves the rows, and what was shown of one goes.
            self.page.mouse.move(0, 0)
            self.page.locator("table").get_by_text("0 runs requested").first.hover()
            with suppress(Error):
                return said.inner_text(timeout=_HOVER_MS)
        return said.inner_text()

    def requested_ticks(self, sensor: str) -> None:
        """The ticks of a sensor that launched a run."""
        self._open(f"/locations/{self._location}/sensors/{sensor}")
        self.page.get_by_text("All ticks").click()
        self.page.get_by_role("menuitem", name="Requested").click()
        self.page.locator("table").get_by_text("1 run requested").first.wait_for()

    def _button(self, text: str) -> Locator:
        """The button with this text; its icon has a name of its own."""
        return self.page.get_by_role("button").filter(has_text=re.compile(f"^{text}$")).first

    def _open(self, path: str) -> None:
        self.page.goto(self._url + path)


@contextmanager
def browse(dev: DagsterDev) -> Iterator[DagsterUI]:
    """A headless Chromium on a running Dagster. It may talk to this machine only.

    Raises:
        FileNotFoundError: Chromium is missing.
    """
    location = dev.graphql(_LOCATIONS)["repositoriesOrError"]["nodes"][0]["location"]["name"]
    with chromium(dev.url) as page:
        yield DagsterUI(page, dev.url, location)


@contextmanager
def chromium(url: str) -> Iterator[Page]:
    """An empty page of a headless Chromium, which may talk to ``url`` only.

    Raises:
        FileNotFoundError: Chromium is missing.
    """
    found = find_chromium()

    def only_here(route: Route) -> None:
        if route.request.url.startswith((url, "data:", "blob:")):
            route.continue_()
        else:
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=list(_FLAGS))
        try:
            page = browser.new_page(viewport={"width": _SIZE[0], "height": _SIZE[1]})
            page.route("**/*", only_here)
            yield page
        finally:
            browser.close()


def count_clicks(page: Page) -> Callable[[], tuple[int, int]]:
    """Begin to count what a user does on every page from now on; returns a look at the clicks and the keys."""
    done = {"click": 0, "keydown": 0}

    def count(source: object, kind: str) -> None:
        del source
        done[kind] += 1

    page.context.expose_binding("done", count)
    page.context.add_init_script(
        "for (const kind of ['click', 'keydown'])"
        " addEventListener(kind, event => event.isTrusted && window.done(kind), true)"
    )
    return lambda: (done["click"], done["keydown"])


def take(ui: DagsterUI, resumed_run: str, newest: str, output: Path) -> list[Path]:
    """Take the pictures; those that exist are replaced.

    Args:
        ui: the UI of a Dagster that has run the main job.
        resumed_run: the run that the sensor launched.
        newest: the partition key of the newest checkpoint.
        output: the directory of the PNGs.

    Raises:
        RuntimeError: a page does not show what it should.
    """
    sensor = f"{JOB}_resume_sensor"
    shots: dict[str, Callable[[], object]] = {
        "lineage": lambda: ui.lineage("flights", "delay_report"),
        "checkpoints": lambda: ui.checkpoints(JOB),
        "retained": lambda: ui.retained(JOB),
        "plots": lambda: ui.plots(f"{JOB}_checkpoints", "batch"),
        "partitions": lambda: ui.partitions(JOB, newest),
        "resumed-run": lambda: ui.run(resumed_run, "lineage"),
        "resumed-run-tags": lambda: ui.run_tags(resumed_run),
        "report": lambda: ui.picture("delay_report", "picture"),
        "sensor-says": lambda: ui.ticks(sensor),
        "sensor-resumed": lambda: ui.requested_ticks(sensor),
    }
    output.mkdir(parents=True, exist_ok=True)
    taken = []
    for name, show in shots.items():
        width, height = _SIZES.get(name, _SIZE)
        ui.page.set_viewport_size({"width": width, "height": height})
        try:
            show()
        except Error as error:
            ui.page.screenshot(path=output / f"failed-{name}.png")
            raise RuntimeError(f"The page {name} does not show what it should: {error.message}") from error
        ui.page.wait_for_timeout(1_500)  # what is drawn over several frames is no element to wait for
        path = output / f"{name}.png"
        ui.page.screenshot(path=path)
        taken.append(path)
    return taken


def take_report(page: Page, storage: str, output: Path) -> list[Path]:
    """Take the pictures of the job's report, for a desk and for a hand.

    Args:
        page: of the browser; it is left on the report.
        storage: the checkpoint path of the main job.
        output: the directory of the PNGs.
    """
    history = read_history(CheckpointCatalog(open_filesystem(storage), JOB), SystemClock())
    page.set_content(html_page(history))
    output.mkdir(parents=True, exist_ok=True)
    taken = []
    for name, width in (("job-report", _SIZE[0]), ("job-report-narrow", 390)):
        page.set_viewport_size({"width": width, "height": _SIZE[1]})
        taken.append(output / f"{name}.png")
        page.screenshot(path=taken[-1])
    return taken


def main() -> int:
    """Parse the arguments and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="of a finished main job; default: the newest")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "screenshots")
    options = parser.parse_args()
    find_chromium()
    directory = options.directory or _newest_main_job()
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    newest = report["checkpoints"][-1]["pointer"].split("/")[-2:]
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-screenshots-") as temporary:
        copy = Path(temporary) / "main-job"
        shutil.copytree(directory, copy)
        dev = DagsterDev(ROOT / "workspace.yaml", copy / "dagster_home", {DATA_VARIABLE: str(copy / "data")})
        with dev, browse(dev) as ui:
            print(f"Dagster is up at {dev.url}", flush=True)
            for path in take(ui, report["resumed_run"], f"{newest[0][:8]}.{newest[1]}", options.output):
                print(path)
            for path in take_report(ui.page, DataPaths(copy / "data").checkpoints, options.output):
                print(path)
    return 0


def _newest_main_job() -> Path:
    finished = sorted(path.parent for path in (ROOT / "artifacts" / "main-job").glob("*/report.json"))
    if not finished:
        raise FileNotFoundError(f"{ROOT / 'artifacts' / 'main-job'} holds no finished main job: call `make run` first.")
    return finished[-1]


if __name__ == "__main__":
    sys.exit(main())
