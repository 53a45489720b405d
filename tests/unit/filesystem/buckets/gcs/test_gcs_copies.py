"""What is peculiar to copies in Google Cloud Storage; `test_copies.py` has what all stores do alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import Copy, GcsFileSystem, ServerSide, Stored, crc32c_of
from dagster_ckpt.filesystem.buckets import gcs_client
from dagster_ckpt.testing.gcs.server import GcsServer, Request, Reset
from tests.servers.gcs import BUCKET, bucket_of

DATA = b"the bytes of an object"


@pytest.fixture
def bucket(server: GcsServer, impatient: None) -> GcsFileSystem:
    return bucket_of(server)


@pytest.fixture
def store(bucket: GcsFileSystem) -> ServerSide:
    assert bucket.copies is not None
    return bucket.copies


def test_a_pin_is_a_generation(server: GcsServer, bucket: GcsFileSystem, store: ServerSide, tmp_path: Path) -> None:
    bucket.create("a", DATA)
    pinned = store.stored("a")
    assert pinned.md5
    bucket.replace("a", DATA)  # the same bytes, and another object
    again = store.stored("a")
    assert int(again.version) > int(pinned.version)
    assert again.is_same_content(pinned)
    for ask in (
        lambda: store.read_stored("a", pinned.version),
        lambda: store.fetch_stored("a", pinned, tmp_path / "b"),
        lambda: store.copy(Copy("a", pinned, "other")),
    ):
        with pytest.raises(FileNotFoundError):
            ask()
    assert "base/other" not in server.objects(BUCKET)


def test_never_over_another_object(bucket: GcsFileSystem, store: ServerSide) -> None:
    bucket.create("a", DATA)
    bucket.create("taken", b"something else")
    for of in (None, store.stored("a")):
        with pytest.raises(StorageError, match="holds something else"):
            store.copy(Copy("a", of, "taken"))
    assert bucket.read("taken") == b"something else"


@pytest.fixture
def pinned(server: GcsServer, bucket: GcsFileSystem, store: ServerSide) -> Stored:
    """An object ``live/a``, pinned by a listing without checksums."""
    server.lists_checksums = False
    bucket.create("live/a", DATA)
    found = store.stored_below("live")["a"]
    assert not found.has_checksum
    return found


def test_a_copy_of_what_was_listed_without_a_checksum_has_one(store: ServerSide, pinned: Stored) -> None:
    made = store.copy(Copy("live/a", pinned, "copy"))
    assert (made.crc32c, made.size) == (crc32c_of(DATA), len(DATA))


def test_what_was_listed_without_a_checksum_is_no_copy_of_as_many_bytes(
    bucket: GcsFileSystem, store: ServerSide, pinned: Stored
) -> None:
    bucket.create("taken", DATA[::-1])
    with pytest.raises(StorageError, match="holds something else"):
        store.copy(Copy("live/a", pinned, "taken"))


@pytest.mark.parametrize("meanwhile", ["stays", "is deleted", "is replaced"])
def test_a_lost_reply_to_a_copy_is_settled_by_what_the_original_says(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, pinned: Stored, meanwhile: str
) -> None:
    def lost(request: Request) -> Reset | None:
        if request.kind == "copy":
            server.plan = then
            return Reset(after=True)
        return None

    def then(request: Request) -> None:
        if request.kind == "copy" and meanwhile == "is deleted":
            server.discard(BUCKET, "base/live/a")
        if request.kind == "copy" and meanwhile == "is replaced":
            server.put(BUCKET, "base/live/a", DATA)

    server.plan = lost
    if meanwhile == "stays":
        assert store.copy(Copy("live/a", pinned, "copy")) == store.stored("copy")
    else:
        with pytest.raises(FileNotFoundError):
            store.copy(Copy("live/a", pinned, "copy"))


def test_a_large_object_in_several_requests(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_client, "_MOST_AT_ONCE", 1 << 20)
    data = os.urandom((2 << 20) + 7)
    bucket.create("a", data)
    before = len(server.log)
    store.copy(Copy("a", store.stored("a"), "copy"))
    assert bucket.read("copy") == data
    assert [request.kind for request in list(server.log)[before:]].count("copy") == 3
