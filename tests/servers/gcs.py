"""A bucket of the tests, in our own server of Google Cloud Storage's API and in other people's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol

import gcsfs.retry

from dagster_ckpt.filesystem import GcsFileSystem
from dagster_ckpt.testing.gcs.server import GcsServer

if TYPE_CHECKING:
    import pytest

    from tests.servers.fake_gcs_server import FakeGcsServer

BUCKET = "checkpoints"


class BucketServer(Protocol):
    """What the tests need of a server, beside its API."""

    url: str

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""


def bucket_of(server: BucketServer, prefix: str = "base") -> GcsFileSystem:
    """What a job sees of the server's bucket."""
    return GcsFileSystem(BUCKET, prefix, {"endpoint_url": server.url, "token": "anon", "project": "tests"})


@contextmanager
def serving(which: str, request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    """``"ours"``, or the session's ``"fake-gcs-server"``, with one empty bucket."""
    if which == "ours":
        with GcsServer() as ours:
            ours.create_bucket(BUCKET)
            yield ours
        return
    other: FakeGcsServer = request.getfixturevalue("fake_gcs_server")
    other.empty()
    other.create_bucket(BUCKET)
    yield other


def answering_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let gcsfs ask its six times without a wait. Here and nowhere else: it has no option for it."""

    async def at_once(seconds: float) -> None:
        del seconds

    patch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=at_once))
    patch.setattr(logging.getLogger("gcsfs"), "disabled", True)  # of thousands of requests that are made to fail
