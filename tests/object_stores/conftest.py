from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_ckpt.testing.gcs_server import GcsServer
from tests import gcs, s3
from tests.object_stores.conversation import Conversation


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket(gcs.BUCKET)
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long gcsfs waits before it asks again is not what is tested."""
    gcs.answering_at_once(monkeypatch)


@pytest.fixture(scope="session")
def moto() -> Iterator[s3.S3Server]:
    # One for all: a new client for each server costs half a second.
    with s3.S3Server() as running:
        yield running


@pytest.fixture(name="s3")
def s3_server(moto: s3.S3Server) -> s3.S3Server:
    """The server with nothing in it but an empty bucket."""
    moto.reset()
    moto.create_bucket(s3.BUCKET)
    return moto


@pytest.fixture
def conversation(any_server: gcs.BucketServer) -> Iterator[Conversation]:
    told = Conversation(any_server.url, isinstance(any_server, GcsServer))
    yield told
    told.session.close()
