"""What is peculiar to a bucket of gs://, over the wire; `test_stores.py` has what all stores give a job alike."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from dagster_ckpt.errors import (
    InvalidConfiguration,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import GcsFileSystem, open_filesystem
from dagster_ckpt.filesystem.buckets import gcs_client
from dagster_ckpt.testing.gcs.server import Alter, Answer, Fault, GcsServer, Hang, Reset
from tests.servers.gcs import BUCKET, bucket_of


@pytest.fixture
def storage(server: GcsServer) -> GcsFileSystem:
    return bucket_of(server)


def never() -> bool:
    return False


def test_a_request_that_hangs_is_repeated_and_may_arrive_after_all(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_client, "_SILENCE", 0.2)
    storage = bucket_of(server)
    hangs = iter([Hang(0.6)])
    server.plan = lambda request: next(hangs, None) if request.kind == "insert" else None
    storage.create("f", b"mine")
    assert [request.kind for request in server.log].count("insert") >= 2
    storage.create("f", b"mine")
    assert server.objects(BUCKET) == {"base/f": b"mine"}


# --- data files -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [Answer(503), Reset(), Answer(410), Answer(404)])
def test_an_upload_that_is_gone_is_no_missing_bucket(
    server: GcsServer, storage: GcsFileSystem, tmp_path: Path, fault: Fault
) -> None:
    (tmp_path / "f").write_bytes(bytes(9 << 20))
    server.plan = lambda request: fault if request.kind in {"append", "cancel"} else None
    with pytest.raises(StorageError, match="Could not write gs://checkpoints/base/shared/f") as raised:
        storage.write("shared/f", tmp_path / "f", never)
    assert not isinstance(raised.value, StorageUnusable)
    assert server.objects(BUCKET) == {}


def test_what_arrives_otherwise_than_it_was_sent_is_an_error(server: GcsServer, storage: GcsFileSystem) -> None:
    """The answer says what was stored; if that is something else, so is what is read."""
    other = base64.b64encode(bytes(16))
    spoilt = Alter(lambda answer: re.sub(rb'("md5Hash": )"[^"]*"', rb'\1"' + other + b'"', answer))
    server.plan = lambda request: spoilt if request.kind == "insert" else Alter(bytes.upper)
    for size in (7, 9 << 20):
        with pytest.raises(StorageError, match="Could not write gs://checkpoints/base/shared/f"):
            storage.write("shared/f", b"content"[:size] * max(1, size >> 10), never)


def test_what_is_read_otherwise_than_it_was_stored_is_told(
    server: GcsServer, storage: GcsFileSystem, tmp_path: Path
) -> None:
    sent = storage.write("shared/f", b"content", never)
    server.plan = lambda request: Alter(lambda data: b"C" + data[1:]) if request.kind == "read" else None
    assert storage.fetch("shared/f", tmp_path / "f") != sent
    server.plan = lambda request: Alter(lambda data: data[:-1]) if request.kind == "read" else None
    assert storage.read("shared/f") == b"conten"


def test_hundreds_of_files_go_side_by_side(server: GcsServer, storage: GcsFileSystem, tmp_path: Path) -> None:
    server.latency = 0.02
    items: list[tuple[str, Path | bytes]] = []
    for number in range(300):
        (tmp_path / str(number)).write_bytes(str(number).encode())
        items.append((f"shared/{number}", tmp_path / str(number)))
    written = storage.write_many(items, never)
    assert server.objects(BUCKET) == {f"base/shared/{number}": str(number).encode() for number in range(300)}
    assert [item.size for item in written] == [len(str(number)) for number in range(300)]
    assert 8 < server.most_at_once <= 32
    assert len(server.log) == 300, "one request a file"


# --- what is there --------------------------------------------------------------------------------------------------


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_zonal_bucket_is_refused(server: GcsServer, storage: GcsFileSystem) -> None:
    server.plan = lambda request: (
        Alter(lambda answer: answer.replace(b'"region"', b'"zone"')) if request.kind == "bucket" else None
    )
    with pytest.raises(StorageUnusable, match="is a zonal bucket"):
        storage.probe()


def test_options_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="use_listings_cache") as raised:
        open_filesystem("gs://bucket/a", storage_options={"use_listings_cache": True})
    assert "token" in raised.value.hint
    with pytest.raises(InvalidConfiguration, match="are for object stores"):
        open_filesystem("/tmp/a", storage_options={"token": "anon"})


def test_secrets_are_not_shown(server: GcsServer) -> None:
    storage = GcsFileSystem("bucket", "a", {"token": "/key-file-of-mine", "endpoint_url": server.url})
    assert "key-file" not in f"{storage!r}{storage}{storage.url}"
    with pytest.raises(StorageError) as raised:
        storage.read("f")
    assert "bucket" in str(raised.value)
