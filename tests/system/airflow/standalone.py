"""A real ``airflow standalone`` on the example: with SQLite, in a home of its own and on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests

from dagster_ckpt.testing.dagster_dev import wait_for
from tests.servers.ports import free_ports

_CLONE = Path(__file__).resolve().parents[3]
_README = _CLONE / "examples" / "airflow" / "README.md"
#: Far more than any step takes on a busy machine.
PATIENCE = 300.0


class Airflow:
    """Airflow in a directory of its own.

    Args:
        python: of Airflow's environment.
        root: for its home, its output, and the data of the example.
    """

    def __init__(self, python: Path, root: Path) -> None:
        self.root = root
        self._bin = python.parent
        api, worker_logs, trigger_logs = free_ports(3)
        self._url = f"http://localhost:{api}"
        settings = {
            "API__PORT": api,
            "API__WORKERS": 1,
            "CORE__EXECUTION_API_SERVER_URL": f"{self._url}/execution/",
            "CORE__LOAD_EXAMPLES": False,
            "CORE__PARALLELISM": 3,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_logs,
            "LOGGING__WORKER_LOG_SERVER_PORT": worker_logs,
            # A process that was killed is missed soon, and a slow one is not.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 5,
            "TRIGGERER__JOB_HEARTBEAT_SEC": 2,
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 15,
            # Nor is a task lost while the server of Airflow starts.
            "WORKERS__EXECUTION_API_RETRIES": 20,
            "WORKERS__EXECUTION_API_TIMEOUT": 60,
        }
        self._environment = {
            **_documented(root),
            **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
            "AIRFLOW_HOME": str(root / "home"),
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._processes = ExitStack()

    @property
    def data(self) -> Path:
        """The directory of the example's data."""
        return Path(self._environment["ORDERS_DATA"])

    def start(self) -> None:
        """Start Airflow, and wait until the example's DAGs are known."""
        self.standalone = self.call("standalone")
        wait_for(self._is_ready, "Airflow", seconds=PATIENCE, poll=1)
        for dag in ("orders", "verify_orders"):
            wait_for(lambda dag=dag: self.ask("GET", f"dags/{dag}", missing=True), dag, seconds=PATIENCE, poll=1)  # type: ignore[misc]
            self.ask("PATCH", f"dags/{dag}", json={"is_paused": False})

    def call(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command of Airflow."""
        with (self.root / "airflow.log").open("ab") as log:
            process = subprocess.Popen(
                [self._bin / "airflow", command], env=self._environment, cwd=self.root, stdout=log, stderr=log
            )
        self._processes.callback(_end, process)
        return process

    def interrupt(self) -> None:
        """As Ctrl-C does in the terminal of ``airflow standalone``."""
        self.standalone.send_signal(signal.SIGINT)
        self.standalone.wait(PATIENCE)

    def close(self) -> None:
        """End what is left of Airflow and of its drivers."""
        self._processes.close()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("ORDERS_DATA") == self._environment["ORDERS_DATA"]:
                    process.kill()

    def ask(self, method: str, path: str, *, missing: bool = False, **given: Any) -> Any:
        """Call the REST API; ``missing`` allows that there is no such thing yet."""
        token = requests.get(f"{self._url}/auth/token", timeout=60).json()["access_token"]
        answer = requests.request(
            method, f"{self._url}/api/v2/{path}", headers={"Authorization": f"Bearer {token}"}, timeout=60, **given
        )
        if missing and answer.status_code == 404:
            return None
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    def trigger(self, dag: str) -> str:
        """Start a DAG run; returns its id."""
        return str(self.ask("POST", f"dags/{dag}/dagRuns", json={"logical_date": None})["dag_run_id"])

    def task(self, run: str) -> dict[str, Any]:
        """The task that streams, in a DAG run."""
        found: dict[str, Any] = self.ask("GET", f"dags/orders/dagRuns/{run}/taskInstances/stream")
        return found

    def kill_task(self, run: str) -> None:
        """SIGKILL the process of the task that streams."""
        process = psutil.Process(self.task(run)["pid"])
        # By its parents: Airflow gives its processes names, which may overwrite their environment.
        assert any(parent.pid == self.standalone.pid for parent in process.parents())
        process.kill()

    def until(self, run: str, state: str, *, above: int = 0) -> int:
        """Wait until the task that streams has a state, in a try above the given one; returns the try."""

        def reached() -> int | None:
            task = self.task(run)
            return int(task["try_number"]) if task["state"] == state and task["try_number"] > above else None

        return wait_for(reached, f"{state}, above try {above}", seconds=PATIENCE, poll=0.5)

    def until_attended(self, run: str, *, above: int) -> int:
        """Wait until a try above the given one attends a driver that it has not started; returns the try."""

        def attends() -> int | None:
            task = self.task(run)
            tries = int(task["try_number"])
            is_running = task["state"] == "running" and tries > above
            return tries if is_running and "This try attends it" in self.said(run, tries) else None

        return wait_for(attends, f"a try above {above} attends", seconds=PATIENCE, poll=1)

    def said(self, run: str, tries: int) -> str:
        """The log of a try."""
        path = f"dags/orders/dagRuns/{run}/taskInstances/stream/logs/{tries}"
        return "\n".join(str(line["event"]) for line in self.ask("GET", path, params={"full_content": True})["content"])

    def events(self) -> dict[str, list[bool]]:
        """By checkpoint, in the order of the asset's events: whether Airflow has handed each event to a DAG run.

        An event that comes while the scheduler makes a DAG run of the event before waits for the next event.
        """
        found: dict[str, list[bool]] = {}
        for event in self.ask("GET", "assets/events", params={"limit": 1000, "order_by": "timestamp"})["asset_events"]:
            checkpoint = event["extra"]["payload"]["checkpoint"]
            found.setdefault(checkpoint, []).append(bool(event["created_dagruns"]))
        return found

    def remembered(self) -> list[str]:
        """The checkpoints of which the asset's state store says that they have fired."""
        (asset,) = self.ask("GET", "assets")["assets"]
        kept = self.ask("GET", f"assets/{asset['id']}/state-store/dagster_ckpt", missing=True)
        return [] if kept is None else list(kept["value"])

    def verified(self) -> tuple[Counter[str], set[str]]:
        """The checkpoints that the other DAG has verified, and the states of its runs."""
        runs = self.ask("GET", "dags/verify_orders/dagRuns", params={"limit": 1000})["dag_runs"]
        of = "dags/verify_orders/dagRuns/{}/taskInstances/verify/xcomEntries/return_value"
        results = [self.ask("GET", of.format(run["dag_run_id"])) for run in runs if run["state"] == "success"]
        return Counter(name for result in results for name in result["value"]), {run["state"] for run in runs}

    def _is_ready(self) -> bool:
        assert self.standalone.poll() is None, (self.root / "airflow.log").read_text()
        with suppress(requests.ConnectionError):
            health = self.ask("GET", "monitor/health")
            return all(part["status"] == "healthy" for part in health.values() if part is not None)
        return False


def _documented(root: Path) -> dict[str, str]:
    """The environment that the README's commands make, run up to the one that starts Airflow."""
    commands = re.search(r"```\n(export .*?)airflow standalone\n```", _README.read_text(encoding="utf-8"), re.DOTALL)
    assert commands is not None, "the README tells no more how to try the example"
    given = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "DAGSTER_HOME"}}
    told = subprocess.run(
        ["bash", "-euc", f"{commands[1]}\nenv -0"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_CLONE,
        env={**given, "TMPDIR": str(root)},
    ).stdout
    made = dict(line.split("=", 1) for line in told.split("\0") if line)
    return {**given, **{name: value for name, value in made.items() if name.startswith(("AIRFLOW__", "ORDERS_"))}}


def end(process: psutil.Process) -> None:
    """SIGKILL a process and all below it."""
    with suppress(psutil.NoSuchProcess):
        for found in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # else its number may be that of a stranger
        end(psutil.Process(process.pid))
        process.wait()


@contextmanager
def airflow(root: Path) -> Iterator[Airflow]:
    """Airflow from the environment that ``AIRFLOW_PYTHON`` names; nothing of it is left afterwards."""
    found = Airflow(Path(os.environ["AIRFLOW_PYTHON"]), root)
    try:
        found.start()
        yield found
    finally:
        found.close()
