"""A real ``dagster dev`` on a host: ``python -m tests.jobs.hosts.desk HOME``.

The first one on its disk launches the job. Dagster is all that is on this host, and goes on until it is killed.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import yaml

from dagster_ckpt.testing.dagster_dev import DagsterDev
from tests.jobs.hosts.yarn import MASTER, YARN, configured

_ROOT = Path(__file__).resolve().parents[3]
JOB = "counted"
UP = "Dagster is up"
#: Seconds for Dagster to be up beside whatever else the machine does.
_PATIENCE = 900.0


def main(home: Path) -> None:
    """Start Dagster, and say when it is up."""
    is_first = not home.exists()
    home.mkdir(exist_ok=True)
    if os.environ[MASTER] == YARN:
        os.environ["HADOOP_CONF_DIR"] = str(configured(home))
    (home / "dagster.yaml").write_bytes((_ROOT / "dagster.yaml").read_bytes())
    location = {"python_module": {"module_name": "tests.jobs.hosts.submitted"}}
    (home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [location]}), encoding="utf-8")
    dev = DagsterDev(home / "workspace.yaml", home / "dagster", patience=_PATIENCE)
    dev.start()
    if is_first:
        dev.launch(f"{JOB}_job")
    print(UP, flush=True)  # noqa: T201 - what the test reads
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
