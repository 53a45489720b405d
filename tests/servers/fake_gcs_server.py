"""fake-gcs-server: a server of Google Cloud Storage's API that other people wrote, as the second opinion on ours.

Objects are held in memory; what it does otherwise than Google documents is told, line by line, in
``tests/unit/testing/gcs/test_answers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import requests

from tests.servers.go_server import serving
from tests.servers.programs import fake_gcs_server

__all__ = ["FakeGcsServer", "running"]


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


@contextmanager
def running(log: Path) -> Iterator[FakeGcsServer]:
    """The server on a free port of this machine, without a bucket.

    Args:
        log: where it writes what it has to say.
    """
    path = str(fake_gcs_server())

    def command(port: int) -> list[str]:
        where = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
        return [path, *where, "-backend", "memory", "-log-level", "warn"]

    with serving(command, "/_internal/healthcheck", log) as url:
        server = FakeGcsServer(url)
        yield server
        server.close()
