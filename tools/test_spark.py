"""Runs the tests that every release of Spark has to pass, with older releases: ``python tools/test_spark.py 4.1 4.2``.

Each release gets an environment of its own (``tools/spark_environment.py``). The tests of all releases run side by
side, with those of jobs that move from the oldest release to the one that is installed here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.helpers.local_spark import EVERY_FORMAT  # noqa: E402
from tools.spark_environment import spark_environments  # noqa: E402

#: As many as in `make test`, of all releases together.
_WORKERS = min(4, (os.cpu_count() or 1) + 1)
_SHORT = "not exhaustive"


def main() -> int:
    """Run the tests; exit status 1 if any failed."""
    whole = "--exhaustive" in sys.argv
    chosen = "releases" if whole else f"releases and {_SHORT} and not newest"
    releases = [argument for argument in sys.argv[1:] if argument != "--exhaustive"]
    if not releases or not all(re.fullmatch(r"\d+\.\d+", release) for release in releases):
        print('Name one release or more, the oldest first: make test-spark SPARK="4.1 4.2"', file=sys.stderr)
        return 2
    pythons = spark_environments(releases)
    if whole:
        os.environ[EVERY_FORMAT] = "1"
    os.environ["OLDER_SPARKS"] = os.pathsep.join(pythons)
    upgrade = "upgrade" if whole else f"upgrade and {_SHORT}"
    runs = [(f"Spark {release}", python, chosen) for release, python in zip(releases, pythons, strict=True)]
    runs.append((f"Spark {releases[0]} and newer", sys.executable, upgrade))
    workers = max(1, _WORKERS // len(runs))
    with ThreadPoolExecutor(len(runs)) as pool:
        passing = [pool.submit(_pytest, *run, workers) for run in runs]
        failed = [lines for run in passing if (lines := run.result())]
    # Once more and last: the lines of a run that passed may be many, and whoever reads the end must see what failed.
    for lines in failed:
        print(*lines, sep="", end="", flush=True)
    return int(bool(failed))


def _pytest(name: str, python: str, chosen: str, workers: int) -> list[str]:
    """The last lines of tests that did not all pass, none otherwise; each line begins with the name."""
    mark = f"pytest.mark.{chosen.partition(' ')[0]}"
    # To collect all tests, of which few are chosen, takes longer than a test.
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text("utf-8")]
    directories = sorted({str(path.parent) for path in files})
    # A worker without a test takes some of another's: one file has a third of the work.
    side_by_side = ("--numprocesses", str(workers), "--dist", "worksteal")
    return _run(name, [python, "-m", "tests.helpers.local_spark"]) or _run(
        name, [python, "-m", "pytest", "-m", chosen, *side_by_side, *directories]
    )


def _run(name: str, command: list[str]) -> list[str]:
    """The last lines of a command that fails, none of one that succeeds."""
    running = subprocess.Popen(  # noqa: S603
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert running.stdout is not None
    last: deque[str] = deque(maxlen=100)
    for line in running.stdout:
        last.append(f"{name}: {line}")
        print(last[-1], end="", flush=True)
    return [f"{name} failed; its last lines:\n", *last] if running.wait() else []


if __name__ == "__main__":
    sys.exit(main())
