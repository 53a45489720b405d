"""Driver processes of a job, which tell their events as lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.helpers.processes import lives
from tests.system.cluster.standalone import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """A driver process, and what it has told so far."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None, within: Sequence[str] = ()
    ) -> None:
        self.said: list[dict[str, Any]] = []
        self.paused: list[psutil.Process] = []
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", *arguments],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [said for said in list(self.said) if said["event"] == event]

    def await_(self, what: str, condition: Any) -> None:
        def happened() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, "the driver has ended:\n" + "\n".join(self._log[-50:])
            return False

        eventually(what, happened)

    def kill(self) -> None:
        """SIGKILL it, and wait until its JVM has ended with it."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        eventually("the driver's JVM ends with it", lambda: not any(map(lives, family)))

    def family(self) -> list[psutil.Process]:
        """The driver and its JVM."""
        driver = psutil.Process(self.process.pid)
        return [driver, *driver.children(recursive=True)]

    def pause(self) -> None:
        """SIGSTOP it and its JVM, at one moment as far as that is possible."""
        self.paused = self.family()
        for process in reversed(self.paused):
            with suppress(psutil.NoSuchProcess):  # one that was just ending
                process.suspend()

    def wake(self) -> None:
        """SIGCONT it and its JVM."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def log(self) -> str:
        """What it has printed besides what it told; all of it, once it has ended."""
        if self.process.poll() is not None:
            self._reader.join(60)
        return "\n".join(self._log)

    def ended(self) -> str:
        """Wait for the end; how the run ended."""
        eventually("the driver ends", lambda: self.process.poll() is not None)
        self._reader.join()
        assert self.process.returncode == 0, "\n".join(self._log[-50:])
        (end,) = self.of("Ended")
        return str(end["status"])

    def close(self) -> None:
        """After its end, however it came."""
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event"'):
                self.said.append(json.loads(line))
            else:
                self._log.append(line.rstrip())


#: As if on another host: with another name, so that no process of this one can be looked at or killed.
ELSEWHERE: dict[str, Any] = {
    "environment": {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"},
    "within": ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "--"),
}


@contextmanager
def driving(
    *arguments: str, environment: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Iterator[Driver]:
    """A driver started with ``python -m`` and these arguments, by the command ``within`` if there is one.

    Nothing of it is left afterwards.
    """
    driver = Driver(arguments, environment, within)
    try:
        yield driver
    finally:
        # A paused JVM may have had a child, about to run `chmod` for example, that outlives the JVM.
        left = driver.family() if driver.process.poll() is None else []
        for process in {*left, *driver.paused}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.close()
