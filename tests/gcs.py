"""A bucket of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.filesystem.gcs import GcsFileSystem

if TYPE_CHECKING:
    from dagster_ckpt.testing.gcs_server import GcsServer

BUCKET = "checkpoints"


def bucket_of(server: GcsServer, prefix: str = "base") -> GcsFileSystem:
    """What a job sees of the server's bucket."""
    return GcsFileSystem(BUCKET, prefix, {"endpoint_url": server.url, "token": "anon", "project": "tests"})
