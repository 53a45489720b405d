"""Uploads that come to a stand in the middle of a body, of which no library takes notice."""

from __future__ import annotations

import pytest

from dagster_ckpt.filesystem import FileSystem, GcsFileSystem, S3FileSystem
from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers import gcs
from tests.servers import s3 as amazon
from tests.unit.filesystem.buckets.stalling import StallingWay

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("_soon")]

#: More than the buffers on the way to a server take.
DATA = bytes(24 << 20)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes too long does so soon, and is repeated at once."""
    monkeypatch.setattr(transfers, "LONGEST_REQUEST", 4.0)
    gcs.answering_at_once(monkeypatch)
    amazon.answering_at_once(monkeypatch)


def test_one_to_google_is_given_up_and_repeated(server: GcsServer) -> None:
    with StallingWay(server.url) as way:
        options = {"endpoint_url": way.url, "token": "anon", "project": "tests"}
        _written(GcsFileSystem(gcs.BUCKET, "base", options), way)


def test_one_to_amazon_is_given_up_and_repeated(s3: amazon.S3Server) -> None:
    with StallingWay(s3.url) as way:
        _written(S3FileSystem(amazon.BUCKET, "base", amazon.connection(way.url)), way)


def _written(storage: FileSystem, way: StallingWay) -> None:
    written = storage.write("shared/f", DATA, lambda: False)
    assert way.has_stalled
    assert storage.checksum("shared/f") == written
