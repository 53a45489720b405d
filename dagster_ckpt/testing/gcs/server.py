"""A server of Google Cloud Storage's JSON API that is strict where a storage of checkpoints needs it.

The server honours preconditions, lists in pages, shows an object of a resumable upload after the last byte, and gives
rising generations. It copies, moves and composes objects without their bytes, and takes calls in batches. Like a real
server it answers late, refuses, loses replies and hangs, when it is told to::

    with GcsServer(latency=0.03) as server:
        server.create_bucket("checkpoints")
        server.plan = lambda request: Reset(after=True) if request.kind == "insert" else None
        storage = GcsFileSystem("checkpoints", options={"endpoint_url": server.url, "token": "anon"})

The kinds of requests are ``insert``, ``begin`` (of a resumable upload), ``append``, ``cancel``, ``read``, ``stat``,
``delete``, ``copy``, ``move``, ``compose``, ``list``, ``bucket``, ``batch``, ``status`` and ``unknown``; the name is
the object (the new one, where there are two), or the prefix of a listing.

The server runs in a thread of the process that started it and keeps everything in memory. It can also serve as a bucket
on a laptop: ``python -m dagster_ckpt.testing.gcs.server --bucket checkpoints``. The server answers unknown requests
with status 501, so that no test relies on a guess.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Sequence

from aiohttp import web

from dagster_ckpt.testing.disturbed_server import (
    Action,
    Alter,
    Answer,
    DisturbedServer,
    Fault,
    Hang,
    Plan,
    Request,
    Reset,
)
from dagster_ckpt.testing.gcs.api import GcsApi
from dagster_ckpt.testing.gcs.messages import Call, error
from dagster_ckpt.testing.gcs.objects import Buckets

__all__ = ["Alter", "Answer", "Fault", "GcsServer", "Hang", "Plan", "Request", "Reset"]


class GcsServer(DisturbedServer):
    """The server; a context manager that starts and stops it.

    Args:
        latency: seconds added to each request.
        token: the bearer token that requests must carry; ``None`` for none.
        port: of this machine; 0 for any free port.
    """

    def __init__(self, latency: float = 0.0, token: str | None = None, port: int = 0) -> None:
        super().__init__(latency, token, port)
        self._buckets = Buckets()
        self._api = GcsApi(self._buckets, self._asked)

    @property
    def forget(self) -> str | None:
        """The bytes of objects whose names begin with this prefix are not kept."""
        return self._buckets.forget

    @forget.setter
    def forget(self, prefix: str | None) -> None:
        self._buckets.forget = prefix

    @property
    def lists_checksums(self) -> bool:
        """Whether a listing contains checksums; Google omits those of objects encrypted with a customer's key."""
        return self._api.lists_checksums

    @lists_checksums.setter
    def lists_checksums(self, told: bool) -> None:
        self._api.lists_checksums = told

    @property
    def unfinished_uploads(self) -> int:
        """How many resumable uploads were begun and neither finished nor cancelled."""
        return len(self._buckets.uploads)

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._buckets.create(name)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """The bytes of all objects in a bucket, by name."""
        return {name: item.data for name, item in self._buckets.of(bucket).items()}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object without a request."""
        self._buckets.put(bucket, name, data)

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object without a request."""
        del self._buckets.of(bucket)[name]

    def route(self, incoming: web.Request, body: bytes) -> tuple[str, str, Action]:
        """What a request asks for."""
        path, query = incoming.rel_url.raw_path, dict(incoming.query)
        return self._api.route(Call(incoming.method, path, query, incoming.headers, body))

    def refuse(self, status: int, message: str) -> web.Response:
        """An error in the API's form."""
        return error(status, message)

    def _asked(self) -> dict[str, int]:
        """The number of requests so far, without ``status`` requests, and the bytes of their bodies."""
        asked = [request for request in self.log if request.kind != "status"]
        return {"requests": len(asked), "bytes": sum(request.size for request in asked)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one bucket until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m dagster_ckpt.testing.gcs.server", description=main.__doc__)
    parser.add_argument("--bucket", default="checkpoints", help="its name")
    parser.add_argument("--port", type=int, default=0, help="of this machine; 0 for any that is free")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes longer")
    options = parser.parse_args(arguments)
    with GcsServer(options.latency, port=options.port) as server, contextlib.suppress(KeyboardInterrupt):
        server.create_bucket(options.bucket)
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
