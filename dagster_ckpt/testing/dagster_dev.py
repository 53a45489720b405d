"""A real ``dagster dev`` for tests and demonstrations: started, queried over GraphQL, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import dagster as dg
import psutil
import yaml

__all__ = ["DagsterDev", "wait_for"]

_T = TypeVar("_T")
_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
_LAUNCH = """
mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""
_TERMINATE = """
mutation($runId: String!, $policy: TerminateRunPolicy) {
  terminateRun(runId: $runId, terminatePolicy: $policy) { __typename }
}"""
#: How often a start is tried: another process may take the free port first.
_STARTS = 3
_LOCATIONS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


def wait_for(ask: Callable[[], _T | None], what: str, *, seconds: float = 120, poll: float = 0.05) -> _T:
    """Ask until the answer is true.

    Raises:
        TimeoutError: the answer was not true in time; ``what`` names it in the error.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(poll)
    raise TimeoutError(f"Waited {seconds:.0f} s in vain for {what}")


class _EndedAtOnce(RuntimeError):
    pass


class DagsterDev:
    """``dagster dev`` on a workspace, with its own DAGSTER_HOME.

    Args:
        workspace: the ``workspace.yaml``; its directory is the working directory.
        home: DAGSTER_HOME; made if missing. The ``dagster.yaml`` beside the workspace is copied into it.
        environment: more environment variables for Dagster and the runs.
        settings: of the instance, beside those of ``dagster.yaml``.
        patience: seconds for Dagster to load the code location.
    """

    def __init__(
        self,
        workspace: Path,
        home: Path,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        patience: float = 180,
    ) -> None:
        self._workspace = workspace
        self._patience = patience
        self._settings = settings or {}
        self.home = home
        self._environment = {**os.environ, **(environment or {}), "DAGSTER_HOME": str(home)}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self._repository: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log(self) -> Path:
        """The output of Dagster and the runs."""
        return self.home / "dagster-dev.log"

    def start(self) -> None:
        """Start Dagster and wait until the code location is loaded.

        Raises:
            RuntimeError: the UI of Dagster is not installed, or Dagster ended at once.
        """
        if find_spec("dagster_webserver") is None:
            raise RuntimeError("The Dagster UI is not installed in this environment: pip install 'dagster-ckpt[ui]'")
        self.home.mkdir(parents=True, exist_ok=True)
        given = self._workspace.with_name("dagster.yaml").read_text(encoding="utf-8")
        more = yaml.safe_dump(dict(self._settings)) if self._settings else ""
        (self.home / "dagster.yaml").write_text(f"{given}\n{more}", encoding="utf-8")
        for left in reversed(range(_STARTS)):
            self._begin()
            try:
                what = f"dagster dev to load {self._workspace} (see {self.log})"
                repository = wait_for(self._loaded, what, seconds=self._patience)
                break
            except _EndedAtOnce:
                if not left:
                    raise
        self._repository = {
            "repositoryName": repository["name"],
            "repositoryLocationName": repository["location"]["name"],
        }

    def _begin(self) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dagster",
                    "dev",
                    "-w",
                    self._workspace.name,
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(port),
                ],
                cwd=self._workspace.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All processes of this Dagster: server, daemon, code server, runs, their steps and JVMs, orphans too."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("DAGSTER_HOME") == str(self.home):
                    mine.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return [process for process in mine if process.pid != os.getpid()]

    def jvms(self) -> list[int]:
        """The process ids of the JVMs of its runs."""
        found = []
        for process in self.processes():
            try:
                if process.name() == "java":
                    found.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        """Send SIGKILL to all processes at once, as when a host dies."""
        while processes := self.processes():
            for process in processes:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(processes, timeout=10)
        if self._process is not None:
            self._process.wait()
            self._process = None

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """The Dagster instance, for reading."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            yield instance

    def launch(
        self,
        job: str,
        *,
        assets: Sequence[Sequence[str]] | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a run as the UI does; returns its id."""
        selector: dict[str, Any] = {**self._repository, "pipelineName": job}
        if assets is not None:
            selector["assetSelection"] = [{"path": list(path)} for path in assets]
        params = {
            "selector": selector,
            "mode": "default",
            "runConfigData": json.dumps(config or {}),
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]},
        }
        answer = self.graphql(_LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise RuntimeError(f"{job} could not be launched: {answer}")
        return str(answer["run"]["runId"])

    def terminate(self, run_id: str, *, force: bool = False) -> None:
        """Terminate a run as the UI does; ``force`` marks it as canceled at once."""
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if force else "SAFE_TERMINATE"
        self.graphql(_TERMINATE, {"runId": run_id, "policy": policy})

    def status(self, run_id: str) -> str:
        """A run's status."""
        with self.instance() as instance:
            run = instance.get_run_by_id(run_id)
            return "UNKNOWN" if run is None else run.status.value

    def wait_finished(self, run_id: str, *, seconds: float = 300) -> str:
        """Wait until a run is over; returns its status."""

        def ask() -> str | None:
            status = self.status(run_id)
            return status if status in _FINISHED else None

        return wait_for(ask, f"run {run_id} to end (see {self.log})", seconds=seconds, poll=0.2)

    def runs(self, job: str) -> list[dg.DagsterRun]:
        """The runs of a checkpointed job, the newest first."""
        with self.instance() as instance:
            return list(instance.get_runs(dg.RunsFilter(tags={"dagster_ckpt/job": job})))

    def graphql(self, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the webserver."""
        request = urllib.request.Request(  # noqa: S310 - always http to this machine
            f"{self.url}/graphql",
            json.dumps({"query": query, "variables": variables or {}}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            answer = json.load(reply)
        if answer.get("errors"):
            raise RuntimeError(f"GraphQL: {answer['errors']}")
        data: dict[str, Any] = answer["data"]
        return data

    def _loaded(self) -> dict[str, Any] | None:
        if self._process is not None and self._process.poll() is not None:
            raise _EndedAtOnce(f"dagster dev ended with {self._process.returncode}; see {self.log}")
        try:
            nodes = self.graphql(_LOCATIONS)["repositoriesOrError"].get("nodes") or []
        except (OSError, urllib.error.URLError, RuntimeError):
            return None
        return nodes[0] if nodes else None


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
