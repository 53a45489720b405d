"""Runs the tests that every release of Spark has to pass, with older releases: ``python tools/test_spark.py 4.1 4.2``.

Each release gets an environment of its own (``tools/spark_environment.py``). In the end two jobs move from the oldest
release to the one that is installed here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.helpers.local_spark import EVERY_FORMAT  # noqa: E402
from tools.spark_environment import spark_environment  # noqa: E402

#: As many as in `make test`. A worker without a test takes some of another's: one file has a third of the work.
_WORKERS = min(4, (os.cpu_count() or 1) + 1)
_SHORT = "not exhaustive"
_SIDE_BY_SIDE = ("--numprocesses", str(_WORKERS), "--dist", "worksteal")


def main() -> int:
    """Run the tests; exit status 1 if any failed."""
    whole = "--exhaustive" in sys.argv
    chosen = "releases" if whole else f"releases and {_SHORT} and not newest"
    releases = [argument for argument in sys.argv[1:] if argument != "--exhaustive"]
    if not releases or not all(re.fullmatch(r"\d+\.\d+", release) for release in releases):
        print('Name one release or more, the oldest first: make test-spark SPARK="4.1 4.2"', file=sys.stderr)
        return 2
    pythons = [spark_environment(release) for release in releases]
    if whole:
        os.environ[EVERY_FORMAT] = "1"
    failed = False
    for release, python in zip(releases, pythons, strict=True):
        print(f"Spark {release}", flush=True)
        subprocess.run([python, "-m", "tests.helpers.local_spark"], cwd=ROOT, check=True)  # noqa: S603
        failed |= _pytest(python, chosen, *_SIDE_BY_SIDE)
    os.environ["OLDER_SPARKS"] = os.pathsep.join(pythons)
    print(f"Spark {', '.join(releases)} and then the one installed here", flush=True)
    return int(_pytest(sys.executable, "upgrade" if whole else f"upgrade and {_SHORT}", *_SIDE_BY_SIDE) or failed)


def _pytest(python: str, chosen: str, *options: str) -> bool:
    """Whether tests failed, or none ran. To collect all tests, of which few are chosen, takes longer than a test."""
    mark = f"pytest.mark.{chosen.partition(' ')[0]}"
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text("utf-8")]
    directories = sorted({str(path.parent) for path in files})
    command = [python, "-m", "pytest", "-m", chosen, *options, *directories]
    return subprocess.run(command, cwd=ROOT, check=False).returncode != 0  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
