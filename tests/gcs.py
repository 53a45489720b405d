"""A bucket of the tests."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

import gcsfs.retry

from dagster_ckpt.filesystem.gcs import GcsFileSystem

if TYPE_CHECKING:
    import pytest

    from dagster_ckpt.testing.gcs_server import GcsServer

BUCKET = "checkpoints"


def bucket_of(server: GcsServer, prefix: str = "base") -> GcsFileSystem:
    """What a job sees of the server's bucket."""
    return GcsFileSystem(BUCKET, prefix, {"endpoint_url": server.url, "token": "anon", "project": "tests"})


def answering_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let gcsfs ask its six times without a wait. Here and nowhere else: it has no option for it."""

    async def at_once(seconds: float) -> None:
        del seconds

    patch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=at_once))
    patch.setattr(logging.getLogger("gcsfs"), "disabled", True)  # of thousands of requests that are made to fail
