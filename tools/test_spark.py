"""Runs the tests that every release of Spark has to pass, with older releases: ``python tools/test_spark.py 4.1 4.2``.

Each release gets an environment of its own, ``.venv-spark-4.1`` for example, which has PySpark and takes everything
else from the environment that runs this. In the end two jobs move from the oldest release to the one that is installed
here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: As `make test`: a file stays with one process, because its tests share fixtures.
_WORKERS = min(4, (os.cpu_count() or 1) + 1)
_SIDE_BY_SIDE = ("--numprocesses", str(_WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")


def main() -> int:
    """Run the tests; exit status 1 if any failed."""
    chosen = "releases" if "--exhaustive" in sys.argv else "releases and not exhaustive"
    releases = [argument for argument in sys.argv[1:] if argument != "--exhaustive"]
    if not releases or not all(re.fullmatch(r"\d+\.\d+", release) for release in releases):
        print('Name one release or more, the oldest first: make test-spark SPARK="4.1 4.2"', file=sys.stderr)
        return 2
    pythons = [_environment(release) for release in releases]
    failed = False
    for release, python in zip(releases, pythons, strict=True):
        print(f"Spark {release}", flush=True)
        subprocess.run([python, "-m", "tests.helpers.local_spark"], cwd=ROOT, check=True)  # noqa: S603
        failed |= _pytest(python, chosen, *_SIDE_BY_SIDE)
    os.environ["OLDER_SPARKS"] = os.pathsep.join(pythons)
    print(f"Spark {', '.join(releases)} and then the one installed here", flush=True)
    return int(_pytest(sys.executable, "upgrade") or failed)


def _environment(release: str) -> str:
    """The Python of a release's environment, which is made when it is missing."""
    home = ROOT / f".venv-spark-{release}"
    python = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    if not any(packages.glob(f"pyspark-{release}.*.dist-info")):
        print(f"Installing Spark {release} into {home.name}; the first time takes some minutes.", flush=True)
        venv.create(home, clear=True, symlinks=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, f"pyspark=={release}.*"], check=True)  # noqa: S603
    # Looked at after the environment's own packages.
    others = os.path.relpath(sysconfig.get_path("purelib"), packages)
    (packages / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    return str(python)


def _pytest(python: str, marker: str, *options: str) -> bool:
    """Whether tests failed, or none ran."""
    command = [python, "-m", "pytest", "-m", marker, *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode != 0  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
