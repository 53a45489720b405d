"""The operator of the example for Airflow, without Airflow: it calls a program in place of ``dagster-ckpt``."""

from __future__ import annotations

import importlib.util
import json
import logging
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PLUGIN = Path(__file__).parents[3] / "examples" / "airflow" / "plugins" / "checkpointed_jobs.py"
#: Answers `status` with the next of the rows, and any other command as the test says; what was called is on record.
_PROGRAM = """
import json, os, sys, time
here, command = os.path.dirname(os.path.abspath(__file__)), sys.argv[3]
with open(here + "/called", "a") as called:
    print(command, file=called)
plan = json.load(open(here + "/plan"))
if command == "status":
    open(here + "/looked", "w").close()
    number = open(here + "/called").read().split().count("status")
    row = plan["status"][min(number, len(plan["status"])) - 1]
    print(json.dumps([{"job": "orders", "reason": "", "checkpoint": None, "batch": None, "run": "r", **row}]))
    sys.exit(5 if row["state"] in {"FAILED", "UNREADABLE"} else 0)
if plan[command] is None:
    open(here + "/begun", "w").close()
    time.sleep(600)
sys.exit(plan[command])
"""


class Failed(Exception):
    """Of a try; Airflow may try again."""


class FailedForGood(Failed):
    pass


class TimedOut(BaseException):
    pass


class Store(dict[str, Any]):
    """The state store of a task."""

    def set(self, key: str, value: Any, *, retention: object) -> None:
        del retention
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Task:
    """A task with a job ``orders``, and its tries.

    Args:
        plugin: the module of the example.
        root: a directory.
    """

    def __init__(self, plugin: types.ModuleType, root: Path) -> None:
        self.store, self._plugin, self._root = Store(), plugin, root
        self.operator: Any = None
        (root / "program.py").write_text(_PROGRAM)
        self._python = root / "python"
        self._python.write_text(f'#!/bin/sh\nexec {sys.executable} {root}/program.py "$@"\n')
        self._python.chmod(0o755)

    def attempt(self, *status: dict[str, Any], run: int | None = 0, cancel: int = 0) -> Any:
        """A try, while ``status`` tells these rows one after another, and the other commands end like this."""
        (self._root / "called").write_text("")
        (self._root / "plan").write_text(json.dumps({"status": status, "run": run, "cancel": cancel}))
        self.operator = self._plugin.CheckpointedJobOperator(
            target="m:f", job="orders", path=str(self._root), python=str(self._python), poll_interval=0.0
        )
        names = dict.fromkeys(("dag_id", "task_id", "run_id", "map_index"), "t")
        ti = types.SimpleNamespace(**names, get_task_states=lambda **_: {"t": {"t": "failed"}})
        context = {"task_state_store": self.store, "dag_run": types.SimpleNamespace(clear_number=0), "ti": ti}
        return self.operator.execute(context)

    @property
    def called(self) -> list[str]:
        """The commands of the last try, but for the looks."""
        return [command for command in (self._root / "called").read_text().split() if command != "status"]

    @property
    def begun(self) -> Path:
        """Is there once a `run` goes on."""
        return self._root / "begun"

    @property
    def looked(self) -> Path:
        """Is there once the try has looked at the job."""
        return self._root / "looked"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The example, with as much of Airflow as it takes to run a try."""

    class BaseOperator:
        log = logging.getLogger("airflow.task")

    told: dict[str, dict[str, object]] = {
        "airflow": {},
        "airflow.sdk": {
            "NEVER_EXPIRE": None,
            "BaseOperator": BaseOperator,
            "Context": dict,
            "conf": types.SimpleNamespace(get=lambda *_: str(tmp_path / "logs")),
        },
        "airflow.sdk.exceptions": {
            "AirflowException": Failed,
            "AirflowFailException": FailedForGood,
            "AirflowTaskTimeout": TimedOut,
        },
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseEventTrigger": object, "TriggerEvent": object},
    }
    for name, members in told.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("checkpointed_jobs", _PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def task(plugin: types.ModuleType, tmp_path: Path) -> Task:
    return Task(plugin, tmp_path)


def row(state: str, epoch: int, **more: Any) -> dict[str, Any]:
    return {"state": state, "epoch": epoch, **more}


def test_a_job_that_nobody_could_read_is_not_taken_for_one_that_never_ran(task: Task) -> None:
    """Else yesterday's end would count as the end of this task's job, which nothing has run."""
    with pytest.raises(Failed, match="is UNREADABLE: the storage is away"):
        task.attempt(row("UNREADABLE", 0, reason="the storage is away"), run=1)
    assert (task.called, task.store) == ([], {})
    done = task.attempt(row("FINISHED", 7), row("FINISHED", 8, checkpoint="j/chk-9"), run=0)
    assert task.called == ["run"], "what ended yesterday is not what this task is for"
    assert (done["status"], done["checkpoint"]) == ("FINISHED", "j/chk-9")


@pytest.mark.parametrize(
    "ways",
    [
        [row("RUNNING", 1, reason="not heard of"), row("RUNNING", 1)],
        [row("DEAD", 1), row("RUNNING", 1)],
    ],
    ids=["a driver in doubt", "a driver that seemed dead"],
)
def test_a_driver_that_was_in_doubt_and_ends_is_not_followed_by_another(
    task: Task, plugin: types.ModuleType, monkeypatch: pytest.MonkeyPatch, ways: list[dict[str, Any]]
) -> None:
    """``dagster-ckpt run`` has found that it lives, on another worker; then it ended as it should."""
    monkeypatch.setattr(plugin, "_DOUBT", -1.0)
    task.store["dagster_ckpt"] = {"epoch": 1, "cleared": 0}
    doubted, *lives = ways
    done = task.attempt(
        doubted, *[doubted] * (doubted["state"] == "RUNNING"), *lives, *lives, row("FINISHED", 1), run=7
    )
    assert (done["status"], task.called) == ("FINISHED", ["run"])


def test_a_driver_that_ends_while_it_is_in_doubt_is_told_by_the_next_try(
    task: Task, plugin: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_DOUBT", -1.0)
    doubted = row("RUNNING", 1, reason="not heard of")
    with pytest.raises(Failed, match="is not to be had"):
        task.attempt(doubted, doubted, row("FINISHED", 1), run=7)
    assert task.attempt(row("FINISHED", 1))["status"] == "FINISHED"
    assert task.called == []


_UNREADABLE = row("UNREADABLE", 0, reason="the heartbeat is truncated")


def test_a_try_ends_that_attends_a_job_of_which_nobody_can_tell_for_long(
    task: Task, plugin: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver may be dead, and Airflow counts tries; the next one that can look goes on with the job."""
    monkeypatch.setattr(plugin, "_DOUBT", -1.0)
    with pytest.raises(Failed, match="is UNREADABLE: the heartbeat is truncated") as failed:
        task.attempt(row("RUNNING", 3), _UNREADABLE, row("FINISHED", 3))
    assert failed.type is Failed, "Airflow may try again"
    assert task.attempt(row("FINISHED", 3))["status"] == "FINISHED"
    assert task.called == []


def test_a_try_outlives_looks_that_fail_for_a_moment(task: Task) -> None:
    assert task.attempt(row("RUNNING", 3), *[_UNREADABLE] * 3, row("FINISHED", 3))["status"] == "FINISHED"


@contextmanager
def timing_out(once: Callable[[], object]) -> Iterator[None]:
    """Airflow ends the try as soon as this is so."""

    def look(*_: object) -> None:
        if once():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimedOut

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(TimedOut):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_timeout_ends_a_command_whose_driver_has_not_come(task: Task) -> None:
    """Or whose restart is due: `dagster-ckpt cancel` finds no run that is alive, and nobody would attend the next."""
    with timing_out(task.begun.exists):
        task.attempt(row("DEAD", 1), run=None, cancel=9)
    assert task.called == ["run", "cancel"]
    try:
        assert task.operator._command.wait(10) == -signal.SIGTERM
    finally:
        task.operator._command.kill()
        task.operator._command.wait()
    assert task.store == {}, "the next try begins anew"


def test_a_command_goes_on_whose_driver_could_not_be_asked(task: Task) -> None:
    """The storage is away, or the driver takes its time: the driver lives, and is attended by the next try."""
    with timing_out(task.begun.exists):
        task.attempt(row("DEAD", 1), run=None, cancel=1)
    command = task.operator._command
    try:
        assert task.called == ["run", "cancel"]
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(1)
        assert task.store["dagster_ckpt"]["epoch"] == 2
    finally:
        command.kill()
        command.wait()


@pytest.mark.parametrize(
    ("cancel", "told"),
    [(0, "is canceled"), (9, "had no driver, and its command is interrupted"), (1, "could not be canceled")],
)
def test_a_task_that_is_marked_as_failed_tells_what_has_become_of_its_job(task: Task, cancel: int, told: str) -> None:
    def mark() -> None:
        while not task.begun.exists():
            time.sleep(0.05)
        task.operator.on_kill()

    marking = threading.Thread(target=mark, daemon=True)
    marking.start()
    try:
        with pytest.raises(FailedForGood, match=f"Job 'orders' {told}"):
            task.attempt(row("DEAD", 1), run=None, cancel=cancel)
    finally:
        task.operator._command.kill()
        task.operator._command.wait()
    marking.join()


def test_a_job_that_a_timeout_could_not_cancel_is_attended_by_the_next_try(task: Task) -> None:
    ours = {"dagster_ckpt": {"epoch": 3, "cleared": 0}}
    task.store.update(ours)
    with timing_out(task.looked.exists):
        task.attempt(row("RUNNING", 3), cancel=1)
    assert (task.called, task.store) == (["cancel"], ours)
    assert task.attempt(row("FINISHED", 3))["status"] == "FINISHED"
