"""From `pip install` to the first checkpoint seen in the Dagster UI, as a new user does it by the README alone.

    python benchmarks/first_checkpoint.py --output first_checkpoint.json --page docs/reference/first-hour.md

In an empty directory beside a clone, with an empty environment, the lines of the README are run as they are written
(but for Dagster's port), and a headless Chromium clicks what ``dagster-ckpt init`` says: materialize `orders` twice,
launch `turnover_job`, and look at `turnover_checkpoints`. Each step ends when the user sees that it is done. The
packages come from ``--wheels``, which is filled before the clock starts, so that the download is not counted. The run
fails where a line fails, or a click finds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Error, Locator, Page  # noqa: E402 - below the path

from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for  # noqa: E402
from tests.servers.ports import free_port  # noqa: E402
from tools.screenshots import chromium, count_clicks, find_chromium  # noqa: E402

_BEGIN, _END = "<!-- benchmarks/first_checkpoint.py -->", "<!-- end -->"
#: What the README builds the wheel of.
_CLONE = "dagster-ckpt"
#: Far more than any step takes on a busy machine, in seconds.
_PATIENCE = 180.0
_POLL = 0.2


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="all packages as wheels; by default fetched into a temporary place")
    parser.add_argument("--directory", type=Path, help="a new one; by default a temporary one")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path, help=f"put the figures between {_BEGIN!r} and {_END!r} of this page")
    options = parser.parse_args()
    find_chromium()  # its absence is told before minutes are spent
    with ExitStack() as stack:
        place = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="first-checkpoint-")))
        user = NewUser(place.absolute(), options.wheels or _fetched(place.absolute() / "wheels"))
        stack.callback(user.leave)
        user.go()
    report = {"load": os.getloadavg()[0], "steps": user.steps, "seconds": sum(step["seconds"] for step in user.steps)}
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    told = _told(report)
    if options.page:
        before, _, rest = options.page.read_text(encoding="utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        options.page.write_text(f"{before}{_BEGIN}\n\n{told}\n\n{_END}{after}", encoding="utf-8")
    print(told)
    return 0


class NewUser:
    """Who has a clone, an empty environment, an empty directory beside the clone, and the README.

    Args:
        place: where the directory and the environment are made.
        wheels: all packages.
    """

    def __init__(self, place: Path, wheels: Path) -> None:
        self.steps: list[dict[str, Any]] = []
        self._project = place / "project"
        self._project.mkdir(parents=True)
        (place / _CLONE).symlink_to(ROOT)
        venv.create(place / "environment", with_pip=True, symlinks=True)
        given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DAGSTER"))}
        self._environment = {
            **given,
            "PATH": f"{place / 'environment' / 'bin'}{os.pathsep}{given['PATH']}",
            "VIRTUAL_ENV": str(place / "environment"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels.absolute()),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self._dagster = DagsterDev(self._project / "workspace.yaml", self._project / "shop" / "dagster_home")
        self._clicks: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def go(self) -> None:
        """Do all that the README says, and record each step but the building of the wheel.

        Raises:
            RuntimeError: a line failed, or a page does not show what it should.
        """
        wheel, install, init, dagster = readme_lines()
        self._shell(wheel)
        self._step("`pip install`, nothing to download", lambda: self._shell(install), lines=1)
        self._step("`dagster-ckpt init shop`", lambda: self._shell(init), lines=1)
        url = f"http://127.0.0.1:{free_port()}"
        with (self._project / "dagster.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S602 - a line of the README, as a shell takes it
                f"exec env {dagster} -h 127.0.0.1 -p {url.rpartition(':')[2]}",
                shell=True,
                cwd=self._project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        with chromium(url) as page:
            page.set_default_timeout(_PATIENCE * 1000)
            self._clicks = count_clicks(page)
            try:
                self._step("`dagster dev`, until the page is there", lambda: _open(page, url, process), lines=1)
                self._step("land the first hour of orders", lambda: self._land(page, 1))
                self._step("land the second hour", lambda: self._land(page, 2, again=True))
                self._step("launch the job", lambda: _launch(page))
                self._step("see its first checkpoint", lambda: _see_checkpoint(page))
            except (Error, TimeoutError) as error:
                page.screenshot(path=self._project / "failed.png")
                raise RuntimeError(f"{self._project / 'failed.png'} shows the page: {error}") from error

    def leave(self) -> None:
        """Leave no process."""
        self._dagster.kill()

    def _step(self, what: str, do: Callable[[], object], lines: int = 0) -> None:
        clicks, begun = self._clicks()[0], time.monotonic()
        do()
        self.steps.append(
            {
                "what": what,
                "seconds": time.monotonic() - begun,
                "lines": lines,
                "clicks": self._clicks()[0] - clicks,
            }
        )
        print(self.steps[-1], file=sys.stderr, flush=True)

    def _shell(self, line: str) -> None:
        done = subprocess.run(  # noqa: S602 - a line of the README, as a shell takes it
            line, shell=True, cwd=self._project, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    def _land(self, page: Page, hours: int, *, again: bool = False) -> None:
        if not again:
            _link(page, "Lineage").click()
            _asset(page, "orders").click()
        _button(page, "Materialize selected").click()
        landed = self._project / "shop" / "data" / "orders"
        # The page's requests go through this process, so that it must not merely sleep.
        for _ in range(int(_PATIENCE / _POLL)):
            if len(list(landed.glob("*.json"))) == hours:
                return
            page.wait_for_timeout(_POLL * 1000)
        raise TimeoutError(f"Waited {_PATIENCE:.0f} s in vain for {hours} hours of orders")


def readme_lines() -> list[str]:
    """The lines of the README that make a project and start Dagster, without their comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In your own project")[2]
    return [line.partition(" #")[0].strip() for line in text.split("```")[1].strip().splitlines()]


def _open(page: Page, url: str, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"dagster dev ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False

    wait_for(answers, "dagster dev to answer", seconds=_PATIENCE)
    page.goto(url)
    _link(page, "Lineage").wait_for()


def _launch(page: Page) -> None:
    _link(page, "Jobs").click()
    _link(page, "turnover_job").click()
    _button(page, "Materialize").click()
    _link(page, "View").wait_for()


def _see_checkpoint(page: Page) -> None:
    _link(page, "Lineage").click()
    _asset(page, "turnover_checkpoints").click()
    page.get_by_role("link").filter(has_text="View in Asset Catalog").first.click()
    page.get_by_text("Partitions", exact=True).first.click()
    page.get_by_text(re.compile(r"^[0-9a-f]{8}\.chk-\d+$")).first.click()
    page.get_by_role("link", name=re.compile("^go back to chk-")).first.wait_for()


def _link(page: Page, text: str) -> Locator:
    """The link with this text; its icon has a name of its own."""
    return page.get_by_role("link").filter(has_text=re.compile(f"^{text}$")).first


def _asset(page: Page, name: str) -> Locator:
    """An asset in the list beside the lineage, whose button has the name twice."""
    return page.get_by_text(name, exact=True).first


def _button(page: Page, text: str) -> Locator:
    return page.get_by_role("button").filter(has_text=re.compile(f"^{text}$")).first


def _fetched(wheels: Path) -> Path:
    """All packages, and what the wheel is built with."""
    wanted = [f"{ROOT}[ui]", "hatchling>=1.26,<2"]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir", str(wheels)]
    subprocess.run([*pip, *wanted], check=True)
    for own in wheels.glob("dagster_ckpt-*.whl"):
        own.unlink()  # the README's line has to build it
    return wheels


def _told(report: dict[str, Any]) -> str:
    """The figures as Markdown."""
    steps = report["steps"]
    lines = ["| step | clicks | lines | s |", "|---|---|---|---|"]
    lines += [
        f"| {step['what']} | {step['clicks'] or ''} | {step['lines'] or ''} | {step['seconds']:.0f} |" for step in steps
    ]
    sums = [sum(step[name] for step in steps) for name in ("clicks", "lines")]
    lines.append(f"| **all** | {sums[0]} | {sums[1]} | **{report['seconds']:.0f}** |")
    when = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {report['load']:.1f} at the end."
    return "\n".join([f"Figures of `benchmarks/first_checkpoint.py`, {when}", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
