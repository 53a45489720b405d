"""The signal that tells a process to end is raised once, unless it is swallowed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dagster_ckpt.standalone.signals import ToldToEnd, told_to_end


@pytest.fixture(autouse=True)
def by_default() -> Iterator[None]:
    """What tests before have left to handle a signal would be taken for the program's own."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def tell(number: signal.Signals = signal.SIGTERM) -> None:
    """Python handles a signal a little later than the kernel delivers it."""
    os.kill(os.getpid(), number)
    time.sleep(0.01)


def test_only_the_first_signal_is_raised_while_it_is_carried_out() -> None:
    ended: list[bool] = []

    @told_to_end()
    def run() -> None:
        try:
            tell()
        finally:
            tell()
            tell(signal.SIGHUP)
            ended.append(True)

    with pytest.raises(ToldToEnd) as told:
        run()
    assert ended
    assert told.value.code == 128 + signal.SIGTERM


def test_while_another_error_takes_its_place_none_is_raised() -> None:
    @told_to_end()
    def run() -> None:
        try:
            tell()
        except ToldToEnd as told:
            raise OSError("it ends") from told
        finally:
            tell()

    with pytest.raises(OSError, match="it ends") as raised:
        run()
    assert isinstance(raised.value.__cause__, ToldToEnd)


def test_after_one_that_was_swallowed_the_next_is_raised() -> None:
    """As by a bare ``except:`` of code that a job imports."""

    @told_to_end()
    def run() -> None:
        with suppress(BaseException):
            tell()
        tell()

    with pytest.raises(ToldToEnd):
        run()


def test_after_one_that_came_within_a_finalizer_the_next_is_raised() -> None:
    program = (
        "import os, signal, time\n"
        "from dagster_ckpt.standalone.signals import told_to_end\n"
        "class Held:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.01)\n"
        "with told_to_end():\n"
        "    held = Held()\n"
        "    del held\n"
        "    print('it goes on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "it goes on\n")
