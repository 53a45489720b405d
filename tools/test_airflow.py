"""Runs the example for Airflow under a real Airflow: ``python tools/test_airflow.py``.

Airflow gets an environment of its own, ``.venv-airflow``, with the versions that Airflow publishes for this Python, as
far as that list can be fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOME = ROOT / ".venv-airflow"
_PYTHON = _HOME / "bin" / "python"
_AIRFLOW = "3.3.2"
_CONSTRAINTS = "https://raw.githubusercontent.com/apache/airflow/constraints-{airflow}/constraints-{python}.txt"
#: Seconds until the network counts as away.
_PATIENCE = 20


def main() -> int:
    """Run the tests; returns the exit status of pytest."""
    if not any(_HOME.glob(f"lib/python*/site-packages/apache_airflow-{_AIRFLOW}.dist-info")):
        _install()
    command = [sys.executable, "-m", "pytest", "-m", "airflow", "tests/system/airflow", *sys.argv[1:]]
    environment = {**os.environ, "AIRFLOW_PYTHON": str(_PYTHON)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603


def _install() -> None:
    print(f"Installing Airflow {_AIRFLOW} into {_HOME.name}; the first time takes some minutes.", flush=True)
    venv.create(_HOME, clear=True, symlinks=True, with_pip=True)
    pip = [str(_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"apache-airflow=={_AIRFLOW}", *_constraints()], check=True)  # noqa: S603


def _constraints() -> list[str]:
    """Arguments of pip for the versions that Airflow was tested with; none where they cannot be fetched."""
    python = "{}.{}".format(*sys.version_info)
    url = _CONSTRAINTS.format(airflow=_AIRFLOW, python=python)
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:  # noqa: S310 - https
            text = answer.read()
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"Without Airflow's constraints for Python {python}: {error}", flush=True)
        return []
    kept = _HOME / "constraints.txt"
    kept.write_bytes(text)
    return ["--constraint", str(kept)]


if __name__ == "__main__":
    sys.exit(main())
