"""A server of Google Cloud Storage's JSON API that is strict where a store of checkpoints needs it to be.

Preconditions are honoured, listings come in pages, an object of a resumable upload appears when the last byte is there,
and generations rise. Objects are copied, moved and composed without their bytes, calls come in batches. Like a real one
it answers late, refuses, loses replies and hangs, when it is told to::

    with GcsServer(latency=0.03) as server:
        server.create_bucket("checkpoints")
        server.plan = lambda request: Reset(after=True) if request.kind == "insert" else None
        storage = GcsFileSystem("checkpoints", options={"endpoint_url": server.url, "token": "anon"})

The kinds of requests are ``insert``, ``begin`` (of a resumable upload), ``append``, ``cancel``, ``read``, ``stat``,
``delete``, ``copy``, ``move``, ``compose``, ``list``, ``bucket``, ``batch``, ``status`` and ``unknown``; the name is
the object (the new one, where there are two), or the prefix of a listing.

It lives in a thread of the process that started it and keeps everything in memory. By itself it is a bucket on a
laptop: ``python -m dagster_ckpt.testing.gcs.server --bucket checkpoints``. What it does not know it answers with status
501, so that nothing is tested against a guess.
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
        latency: seconds that each request takes longer.
        token: the bearer token that requests must carry; ``None`` for none.
        port: of this machine; 0 for any that is free.
    """

    def __init__(self, latency: float = 0.0, token: str | None = None, port: int = 0) -> None:
        super().__init__(latency, token, port)
        self._buckets = Buckets()
        self._api = GcsApi(self._buckets, self._asked)

    @property
    def forget(self) -> str | None:
        """The bytes of objects whose names begin so are not kept."""
        return self._buckets.forget

    @forget.setter
    def forget(self, prefix: str | None) -> None:
        self._buckets.forget = prefix

    @property
    def lists_checksums(self) -> bool:
        """Whether a listing has the checksums of objects; of those under keys of the customer's Google's has none."""
        return self._api.lists_checksums

    @lists_checksums.setter
    def lists_checksums(self, told: bool) -> None:
        self._api.lists_checksums = told

    @property
    def unfinished_uploads(self) -> int:
        """Resumable uploads that were begun and neither finished nor cancelled."""
        return len(self._buckets.uploads)

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._buckets.create(name)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""
        return {name: item.data for name, item in self._buckets.of(bucket).items()}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""
        self._buckets.put(bucket, name, data)

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""
        del self._buckets.of(bucket)[name]

    def route(self, incoming: web.Request, body: bytes) -> tuple[str, str, Action]:
        """What a request asks for."""
        path, query = incoming.rel_url.raw_path, dict(incoming.query)
        return self._api.route(Call(incoming.method, path, query, incoming.headers, body))

    def refuse(self, status: int, message: str) -> web.Response:
        """An error as the API says it."""
        return error(status, message)

    def _asked(self) -> dict[str, int]:
        """What was asked so far, itself not counted: requests, and bytes of their bodies."""
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
