"""How ``dagster-ckpt run`` ends when it is told to, and when nobody reads what it prints: in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DEADLINE = 600.0
COMMAND = """
import sys
from pathlib import Path
from dagster_ckpt.cli.driver_process import keep_running
from tests.helpers.played_driver import PlayedOrder
sys.exit(keep_running(PlayedOrder(sys.argv[1], {}, notes=Path(sys.argv[2]))))
"""


Command = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def sighup_is_heard() -> Iterator[None]:
    """Also where the tests themselves were started by ``nohup``: a process inherits what is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def command() -> Iterator[Command]:
    """Starts the command in a session of its own, with a way for its drivers and the file of their notes."""
    with ExitStack() as started:

        def start(way: str, notes: Path, **how: Any) -> subprocess.Popen[bytes]:
            arguments = [sys.executable, "-c", COMMAND, way, str(notes)]
            run = started.enter_context(subprocess.Popen(arguments, cwd=ROOT, start_new_session=True, **how))
            started.callback(run.kill)  # its driver ends with it
            return run

        yield start


def until(noted: str, notes: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until a driver has made this note."""
    deadline = time.monotonic() + DEADLINE
    while not notes.exists() or noted not in notes.read_text():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def driver_in(notes: Path) -> int:
    """The process of the driver that waits."""
    return int(notes.read_text().partition("waiting ")[2].split()[0])


def full() -> IO[bytes]:
    return Path("/dev/full").open("wb")


def unread() -> IO[bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb", buffering=0)


@pytest.mark.parametrize(
    ("way", "status", "out"),
    [
        ("die,finish", 0, full),
        ("fail", 5, unread),
        pytest.param("die,finish", 0, unread, marks=pytest.mark.exhaustive),
        pytest.param("fail", 5, full, marks=pytest.mark.exhaustive),
    ],
)
def test_what_cannot_be_printed_changes_nothing(
    out: Any, way: str, status: int, tmp_path: Path, command: Command
) -> None:
    with out() as nowhere:
        run = command(way, tmp_path / "notes", stdout=nowhere, stderr=nowhere)
    assert run.wait(DEADLINE) == status


def test_a_signal_reaches_the_driver_although_nobody_reads_what_is_printed(tmp_path: Path, command: Command) -> None:
    notes = tmp_path / "notes"
    reader, writer = os.pipe()
    run = command("wait", notes, stderr=writer)
    until("waiting", notes, run)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"." * 4096):
            pass
    os.set_blocking(writer, True)
    run.send_signal(signal.SIGTERM)
    until("told to end", notes, run)
    os.close(reader)
    assert run.wait(DEADLINE) == 143
    os.close(writer)


@pytest.mark.parametrize("first", ["driver", "command"])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (signal.SIGHUP, signal.SIGINT)),
    ],
)
def test_a_driver_that_was_told_to_end_is_not_disturbed_while_it_ends(
    number: signal.Signals, first: str, tmp_path: Path, command: Command
) -> None:
    """As systemd does, which sends a signal to every process of a service."""
    notes = tmp_path / "notes"
    run = command("hold", notes)
    until("waiting", notes, run)
    driver = driver_in(notes)
    os.kill(driver if first == "driver" else run.pid, number)
    until("told to end", notes, run)
    run.send_signal(number) if first == "driver" else os.kill(driver, number)
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(driver, again)
    (tmp_path / "go").touch()
    assert run.wait(DEADLINE) == 128 + number
    assert notes.read_text().splitlines()[-1] == "stopped"


def test_a_signal_that_the_caller_ignores_is_ignored(tmp_path: Path, command: Command) -> None:
    """As ``nohup`` has it."""
    notes = tmp_path / "notes"
    ignored = (signal.SIGHUP, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        run = command("wait", notes)
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    until("waiting", notes, run)
    os.kill(driver_in(notes), signal.SIGHUP)
    for number in (*ignored, signal.SIGINT):
        run.send_signal(number)
    assert run.wait(DEADLINE) == 130


@pytest.mark.parametrize(
    ("told", "end"),
    [
        pytest.param((signal.SIGHUP, signal.SIGHUP), "stopped", marks=pytest.mark.exhaustive),
        ((signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT), "stopped"),
        pytest.param((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), "stopped", marks=pytest.mark.exhaustive),
        ((signal.SIGINT, signal.SIGINT), "told to end"),
    ],
)
def test_only_a_second_ctrl_c_kills_the_driver(
    told: tuple[signal.Signals, ...], end: str, tmp_path: Path, command: Command
) -> None:
    """A terminal that is closed makes the shell and the kernel send a SIGHUP each."""
    notes = tmp_path / "notes"
    run = command("hold", notes)
    until("waiting", notes, run)
    for number in told:
        run.send_signal(number)
        until("told to end", notes, run)
    if end == "stopped":
        (tmp_path / "go").touch()
    assert run.wait(DEADLINE) == 128 + told[0]
    assert notes.read_text().splitlines()[-1] == end


def test_a_driver_is_lost_although_a_process_that_it_forked_lives(tmp_path: Path, command: Command) -> None:
    run = command("fork,finish", tmp_path / "notes")
    try:
        assert run.wait(DEADLINE) == 0
    finally:
        os.kill(int((tmp_path / "forked").read_text()), signal.SIGKILL)
