"""``dagster-ckpt run``: its options, and the processes of its drivers, which run no Spark here."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
from click.testing import CliRunner

from dagster_ckpt.cli import driver_process, main
from dagster_ckpt.cli.driver_process import Order, keep_running
from tests.helpers.played_driver import PlayedOrder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "status", "drivers"),
    [
        ("lose,blind die,early die,early lose,blind lose,finish", 0, 6),
        pytest.param("die,blind lose,blind lose,blind lose,finish", 1, 4, marks=pytest.mark.exhaustive),
        ("die,fail", 5, 2),
        ("cancel", 6, 1),
        ("other", 7, 1),
        ("early die", 1, 1),
        ("early lose", 1, 1),
        ("exit,interrupt,finish", 0, 3),
        ("early exit", 1, 1),
        pytest.param(
            *("leave-0,leave-1,leave-2,leave-3,leave-5,leave-6,leave-7,leave-127,finish", 0, 9),
            marks=pytest.mark.exhaustive,
        ),
        ("leave-2,leave-127,finish", 0, 3),
        ("early leave-0", 1, 1),
        ("early leave-3", 1, 1),
        ("die,blind leave-4,fail", 5, 3),
        ("twin,finish", 0, 2),
    ],
)
def test_a_driver_that_is_lost_is_followed_by_the_next(
    way: str, status: int, drivers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first word of a step: the driver ends before it has claimed the job, or even before it has seen the job.

    ``leave-N``: what the driver has loaded ends the process with the status N, and the driver does not get to say how
    the job is.
    """
    monkeypatch.setattr(driver_process, "_TRIES", 3)
    monkeypatch.setattr(driver_process, "_PAUSE", 0.01)
    notes = tmp_path / "notes"
    assert keep_running(PlayedOrder(way, {}, notes=notes)) == status
    assert len(notes.read_text().splitlines()) == drivers


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "status", "drivers"),
    [({2, 3}, 0, 2), ({2, 3, 4}, 1, 1), ({1}, 1, 0)],
    ids=["for a while", "again and again", "at first"],
)
def test_a_host_without_room_for_a_driver_is_tried_again(
    fails: set[int],
    status: int,
    drivers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once the job has begun; what a user has just started fails at once, as with any other first driver."""
    monkeypatch.setattr(driver_process, "_TRIES", 3)
    monkeypatch.setattr(driver_process, "_PAUSE", 0.01)
    calls = itertools.count(1)
    spawn, opened = SpawnProcess.start, open_files()

    def start(process: SpawnProcess) -> None:
        if next(calls) in fails:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        spawn(process)

    monkeypatch.setattr(SpawnProcess, "start", start)
    notes = tmp_path / "notes"
    assert keep_running(PlayedOrder("die,finish", {}, notes=notes)) == status
    assert (len(notes.read_text().splitlines()) if notes.exists() else 0) == drivers
    said = capfd.readouterr().err
    assert "could not be started (Resource temporarily unavailable)" in said
    assert "The output cannot be written" not in said
    # The tracker of resources, which outlives a driver, has one.
    assert open_files() <= opened + 1, "no end of a pipe is left open"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_driver_and_no_other_follows(number: signal.Signals, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    def send() -> None:
        pause = threading.Event()
        while not notes.exists() or "waiting" not in notes.read_text():
            pause.wait(0.05)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    before = signal.getsignal(number)
    assert keep_running(PlayedOrder("wait,finish", {}, notes=notes)) == 128 + number
    sender.join()
    assert signal.getsignal(number) == before
    assert "finish" not in notes.read_text()


def invoke(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner(catch_exceptions=False, env={"DAGSTER_CKPT_PATH": None, **(env or {})}).invoke(
        main, ["run", *arguments]
    )
    return done.exit_code, done.output


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """The orders that the command gives, which nobody carries out."""
    orders: list[Order] = []

    def keep(order: Order, *, as_json: bool) -> int:
        assert not as_json
        orders.append(order)
        return 0

    monkeypatch.setattr(driver_process, "keep_running", keep)
    return orders


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument 'MODULE:NAME'"),
        (["turnover", "--path", "x"], "'turnover' is not MODULE:NAME"),
        (["jobs:turnover"], "Give --path"),
        (["jobs:turnover", "--path", ""], "it is empty; name a directory"),
        (["jobs:turnover", "--path", "x", "--set", "interval"], "'interval' is not KEY=VALUE"),
        (["jobs:turnover", "--path", "x", "--op-config", "[1]"], "is no JSON object"),
        (["jobs:turnover", "--path", "x", "--claim-mode", "MINE"], "'MINE' is not one of"),
    ],
)
def test_a_wrong_call_is_refused_before_a_process_is_started(
    arguments: list[str], told: str, ordered: list[Order]
) -> None:
    status, output = invoke(*arguments)
    assert status == 2
    assert told in output
    assert not ordered


def test_the_options_reach_the_drive(ordered: list[Order], tmp_path: Path) -> None:
    status, _ = invoke(
        *("jobs:turnover", "--path", str(tmp_path), "--set", "execution.checkpointing.interval=10 s"),
        *("--conf", "spark.ui.enabled=false", "--restore-from", "chk-3", "--allow-loss", "--replay-to", "7"),
        *("--op-config", '{"shops": 3}', "--claim-mode", "claim"),
    )
    assert status == 0
    (order,) = ordered
    drive = replace(order, target=f"{__name__}:a_function").drive("0" * 32, ())
    request = drive.asset.settings.of_run(drive.op_config)
    assert request.config.interval == timedelta(seconds=10)
    asked = request.request
    assert (asked.restore_from, asked.allow_loss, asked.replay_to, asked.claim_mode) == ("chk-3", True, 7, "CLAIM")
    assert drive.op_config["shops"] == 3
    assert drive.resources["checkpoint_storage"].checkpoint_path == str(tmp_path)
    assert drive.resources["spark"].conf == {"spark.ui.enabled": "false"}
    later = replace(order.continued(), target=f"{__name__}:a_function").drive("0" * 32, ())
    assert later.asset.settings.of_run(later.op_config).request.is_plain


def test_the_resources_of_dagster_win_over_the_environment(ordered: list[Order]) -> None:
    invoke("jobs:turnover", "--resources", "jobs:defs", env={"DAGSTER_CKPT_PATH": "/elsewhere"})
    assert ordered[0].arguments["storage"] is None
    invoke("jobs:turnover", "--resources", "jobs:defs", "--path", "/here")
    assert ordered[1].arguments["storage"]["checkpoint_path"] == "/here"


def test_what_cannot_be_imported_is_told_and_nothing_is_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke("no_such_module:turnover", "--path", str(tmp_path))[0] == 1
    told = capfd.readouterr().err
    assert "'no_such_module:turnover', what is to be run, cannot be imported" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("def turnover(:", "SyntaxError: "),
        pytest.param("turnover = no_name", "NameError: name 'no_name' is not defined", marks=pytest.mark.slow),
        pytest.param("1 / 0", "ZeroDivisionError: division by zero", marks=pytest.mark.slow),
        pytest.param("raise SystemExit(0)", "SystemExit: 0", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("command", ["run", "drill"])
def test_what_a_module_raises_is_told_without_a_traceback(
    command: str,
    module: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = f"jobs_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner(catch_exceptions=False).invoke(main, [command, f"{name}:turnover", "--path", str(tmp_path / "c")])
    output = done.output + capfd.readouterr().err
    assert done.exit_code == 1, output
    assert told in output
    assert "Traceback" not in output


def test_run_and_drill_have_the_same_options_for_a_job() -> None:
    def options(command: str) -> dict[str, Any]:
        found = main.get_command(click.Context(main), command)
        assert found is not None
        return {option.name or "": option.to_info_dict() for option in found.params}

    run, drill = options("run"), options("drill")
    for name in ("target", "path", "resources", "name", "conf", "master", "op_config"):
        assert run[name] == drill[name]


def test_help_names_every_exit_status() -> None:
    output = " ".join(invoke("--help")[1].split())
    for told in (
        "0 for FINISHED",
        "5 for FAILED",
        "6 for CANCELED",
        "7 for one that another run",
        "130 for Ctrl-C",
        "143 for SIGTERM",
    ):
        assert told in output


class Shops(dg.Config):
    shops: int = 1


def a_function(context: Any, spark: Any, shops: Shops) -> Any:
    raise AssertionError("no test runs this query")
