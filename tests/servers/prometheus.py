"""A Prometheus for the tests, which scrapes one endpoint each second."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError

from dagster_ckpt.testing.dagster_dev import wait_for
from tests.servers.ports import free_port

__all__ = ["Prometheus", "running"]

_CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: dagster_ckpt, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


class Prometheus:
    """A running server at a URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, expression: str) -> dict[str, float]:
        """What an expression gives now, for each ``job_name``; a query that Prometheus refuses fails."""
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        return {each["metric"]["job_name"]: float(each["value"][1]) for each in found}

    def is_ready(self) -> bool:
        with suppress(URLError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=60):
            return True
        return False


@contextmanager
def running(home: Path, port: int) -> Iterator[Prometheus]:
    """A server with its files in a directory.

    Args:
        home: the directory, which is made.
        port: of the endpoint on this machine that the server scrapes.
    """
    home.mkdir()
    (home / "prometheus.yml").write_text(_CONFIGURATION.format(port=port), encoding="utf-8")
    own = free_port()
    command = ["prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://127.0.0.1:{own}")

        def is_ready() -> bool:
            assert process.poll() is None, (home / "log").read_text(encoding="utf-8")
            return server.is_ready()

        wait_for(is_ready, "Prometheus", seconds=120, poll=0.1)
        yield server
    finally:
        process.kill()
        process.wait()
