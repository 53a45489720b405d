from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers import gcs, s3
from tests.servers.azurite import Azurite
from tests.servers.versitygw import VersityServer, running
from tests.unit.filesystem.buckets.stores import Store, opened

#: Of stores that other people wrote.
OTHERS = ("fake-gcs-server", "versitygw", "azurite")


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


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersityServer]:
    """The server of s3:// that others wrote, of all tests of a worker."""
    with running(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with Azurite(tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture(params=["gs", "s3", *(pytest.param(kind, marks=pytest.mark.integration) for kind in OTHERS)])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each kind of store in turn; those that other people wrote in the integration tests."""
    yield from opened(request.param, request, monkeypatch)


@pytest.fixture(
    params=[
        "gs",
        "gs-customer-keys",
        "s3",
        *(pytest.param(kind, marks=pytest.mark.integration) for kind in ("versitygw", "azurite")),
    ]
)
def copying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each that copies by itself, and only what was pinned."""
    yield from opened(request.param, request, monkeypatch)


@pytest.fixture(
    params=["gs", "gs-customer-keys", "s3", pytest.param("disturbed-azurite", marks=pytest.mark.integration)]
)
def disturbed_copying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each of them that can be told what goes wrong."""
    yield from opened(request.param, request, monkeypatch)


@pytest.fixture(params=["gs", "s3"])
def disturbed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each that can be told what goes wrong."""
    yield from opened(request.param, request, monkeypatch)
