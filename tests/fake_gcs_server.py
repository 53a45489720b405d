"""fake-gcs-server: a server of Google Cloud Storage's API that other people wrote, as the second opinion on ours.

It is a Go program. ``go install`` builds it once into a cache directory of the user, and ``tools/require-go`` says what
to do where Go is missing. Objects are held in memory; what it does otherwise than Google documents is told, line by
line, in ``tests/object_stores/test_answers.py``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import requests

__all__ = ["FakeGcsServer", "built", "running"]

_MODULE = "github.com/fsouza/fake-gcs-server"
_VERSION = "v1.56.1"
#: Seconds in which the server, once built, must answer.
_PATIENCE = 30.0


class FakeGcsServer:
    """A running server, asked and changed through its own API.

    Args:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()

    def empty(self) -> None:
        """Remove all buckets."""
        self._ask("POST", "/_internal/delete_all")

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._ask("POST", "/storage/v1/b", json={"name": name})

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""
        found = self._ask("GET", f"/storage/v1/b/{bucket}/o").json()
        names = [item["name"] for item in found.get("items", [])]
        return {name: self._ask("GET", _object(bucket, name), params={"alt": "media"}).content for name in names}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o", params={"uploadType": "media", "name": name}, data=data)

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""
        self._ask("DELETE", _object(bucket, name))

    def close(self) -> None:
        """Let go of the connections."""
        self._session.close()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        data: bytes | None = None,
        json: dict[str, str] | None = None,
    ) -> requests.Response:
        answer = self._session.request(method, self.url + path, params=params, data=data, json=json, timeout=60)
        answer.raise_for_status()
        return answer


def _object(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def built() -> Path:
    """The program; the first caller of a machine builds it, and others wait."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagster-ckpt-tests"
    target = cache / f"fake-gcs-server-{_VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            go = shutil.which("go")
            assert go is not None, "Go is missing; see tools/require-go"
            subprocess.run(
                [go, "install", f"{_MODULE}@{_VERSION}"],
                check=True,
                # Without cgo a compiler for C is not needed, nor is the program of another machine's libc.
                env={**os.environ, "GOBIN": directory, "CGO_ENABLED": "0"},
            )
            (Path(directory) / "fake-gcs-server").replace(target)
    return target


@contextmanager
def running(log: Path) -> Iterator[FakeGcsServer]:
    """The server on a free port of this machine, without a bucket.

    Args:
        log: where it writes what it has to say.
    """
    with log.open("wb") as said:
        for _ in range(3):  # the free port may be taken again before it is used
            port = _free_port()
            process = subprocess.Popen(
                [
                    *(str(built()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
                    *("-backend", "memory", "-log-level", "warn"),
                ],
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                url = f"http://127.0.0.1:{port}"
                if _answers(url, process):
                    server = FakeGcsServer(url)
                    yield server
                    server.close()
                    return
            finally:
                process.terminate()
                process.wait()
    raise AssertionError(f"fake-gcs-server does not start: {log.read_text(encoding='utf-8')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < _PATIENCE:
        try:
            if requests.get(f"{url}/_internal/healthcheck", timeout=5).ok:
                return True
        except requests.ConnectionError:
            time.sleep(0.05)
    return False


if __name__ == "__main__":
    built()
