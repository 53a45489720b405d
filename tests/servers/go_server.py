"""Servers that other people wrote in Go, as the second opinion on ours."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.servers.ports import free_port

__all__ = ["serving"]

#: Seconds in which a server, once built, must answer.
_PATIENCE = 120.0


@contextmanager
def serving(
    command: Callable[[int], Sequence[str]], health: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server on a free port of this machine: its URL.

    Args:
        command: that starts it on a port.
        health: the path that it answers when it is ready.
        log: where it writes what it has to say.
        environment: variables that it is given besides those of this process.
    """
    with log.open("wb") as said:
        for _ in range(3):  # the free port may be taken again before it is used
            port = free_port()
            process = subprocess.Popen(
                command(port), stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
            )
            try:
                url = f"http://127.0.0.1:{port}"
                if _answers(url + health, process):
                    yield url
                    return
            finally:
                process.terminate()
                process.wait()
    raise AssertionError(f"{command(0)[0]} does not start: {log.read_text(encoding='utf-8')}")


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < _PATIENCE:
        try:
            if requests.get(url, timeout=5).ok:
                return True
        except requests.ConnectionError:
            time.sleep(0.05)
    return False
