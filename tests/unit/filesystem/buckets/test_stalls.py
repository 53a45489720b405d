"""Uploads that come to a stand in the middle of a body, of which no library takes notice."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import AzureBlobFileSystem, FileSystem, GcsFileSystem, S3FileSystem
from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers import azure_front, gcs
from tests.servers import s3 as amazon
from tests.servers.azurite import Azurite, options_at
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
    azure_front.answering_at_once(monkeypatch)


@pytest.fixture
def silent() -> Iterator[str]:
    """Where a server accepts connections and reads nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_one_to_google_is_given_up_and_repeated(server: GcsServer) -> None:
    with StallingWay(server.url) as way:
        options = {"endpoint_url": way.url, "token": "anon", "project": "tests"}
        _written(GcsFileSystem(gcs.BUCKET, "base", options), way)


def test_one_to_amazon_is_given_up_and_repeated(s3: amazon.S3Server) -> None:
    with StallingWay(s3.url) as way:
        _written(S3FileSystem(amazon.BUCKET, "base", amazon.connection(way.url)), way)


@pytest.mark.integration
def test_one_to_azure_is_given_up_and_repeated(azurite: Azurite) -> None:
    with StallingWay(f"http://{azurite.host}") as way:
        _written(AzureBlobFileSystem(azurite.container(), "base", options_at(way.url.removeprefix("http://"))), way)


def test_those_to_azure_give_back_the_memory_that_they_held(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "LONGEST_REQUEST", 0.5)
    storage = AzureBlobFileSystem("container", "base", options_at(silent))
    with pytest.raises(StorageError, match="Not done after"):
        storage.write_many([(f"shared/{number}", DATA) for number in range(3)], lambda: False)
    with storage.held_in_memory(96 << 20, lambda: False):  # all that there is
        pass


def test_the_process_ends_in_the_midst_of_one(silent: str) -> None:
    subprocess.run([sys.executable, "-c", _UPLOADING, silent], check=True, timeout=60)


_UPLOADING = f"""
import sys, threading, time
from dagster_ckpt.filesystem import AzureBlobFileSystem
from tests.servers.azurite import options_at

storage = AzureBlobFileSystem("container", "base", options_at(sys.argv[1]))
files = [("shared/f", bytes({len(DATA)}))]
threading.Thread(target=storage.write_many, args=(files, lambda: False), daemon=True).start()
time.sleep(2)
assert storage._in_flight._taken, "the upload has not begun"
"""


def _written(storage: FileSystem, way: StallingWay) -> None:
    written = storage.write("shared/f", DATA, lambda: False)
    assert way.has_stalled
    assert storage.checksum("shared/f") == written
