"""Copies that Google Cloud Storage makes by itself: of the right generation, over no other, settled when in doubt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import Copy, Part, ServerSide, Stopped, gcs_copies
from dagster_ckpt.filesystem.gcs import GcsFileSystem
from dagster_ckpt.filesystem.server_side import crc32c_of
from dagster_ckpt.testing.gcs_server import Answer, Fault, GcsServer, Hang, Request, Reset
from tests.gcs import BUCKET, bucket_of

DATA = b"the bytes of an object"


@pytest.fixture
def bucket(server: GcsServer, impatient: None) -> GcsFileSystem:
    return bucket_of(server)


@pytest.fixture
def store(bucket: GcsFileSystem) -> ServerSide:
    assert bucket.copies is not None
    return bucket.copies


def test_what_the_store_says_of_an_object(bucket: GcsFileSystem, store: ServerSide) -> None:
    bucket.create("a/b c/ä", DATA)
    found = store.stored("a/b c/ä")
    assert (found.size, found.crc32c) == (len(DATA), crc32c_of(DATA))
    assert found.md5
    bucket.replace("a/b c/ä", DATA[::-1])
    again = store.stored("a/b c/ä")
    assert int(again.version) > int(found.version)
    assert not again.is_same_content(found)
    with pytest.raises(FileNotFoundError):
        store.stored("a/b c")


def test_everything_below_a_directory_page_by_page(server: GcsServer, bucket: GcsFileSystem, store: ServerSide) -> None:
    names = {f"live/{number:04}" for number in range(1203)} | {"live/x/y/z", "live2", "liv"}
    for name in names:
        server.put(BUCKET, f"base/{name}", name.encode())
    server.put(BUCKET, "base/live/", b"")  # as Hadoop's connector marks directories
    server.put(BUCKET, "base/live/x/", b"")
    found = store.stored_below("live")
    assert {f"live/{path}" for path in found} == names - {"live2", "liv"}
    assert found["x/y/z"] == store.stored("live/x/y/z")
    assert not store.stored_below("nothing")
    assert store.remove_below("live") == 1204 + 2
    assert set(server.objects(BUCKET)) == {"base/live2", "base/liv"}
    assert store.remove_below("live") == 0


def test_a_pinned_generation_or_nothing(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, tmp_path: Path
) -> None:
    bucket.create("a", DATA)
    pinned = store.stored("a")
    assert store.read_stored("a", pinned.version) == DATA
    assert store.read_stored("a", pinned.version, Part(4, 5)) == DATA[4:9]
    assert store.fetch_stored("a", pinned, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert store.copy(Copy("a", pinned, "copy")).is_same_content(pinned)
    assert bucket.read("copy") == DATA
    bucket.replace("a", DATA)  # the same bytes, and another object
    for ask in (
        lambda: store.read_stored("a", pinned.version),
        lambda: store.fetch_stored("a", pinned, tmp_path / "b"),
        lambda: store.copy(Copy("a", pinned, "other")),
        lambda: store.copy(Copy("gone", pinned, "other")),
        lambda: store.copy(Copy("gone", None, "other")),
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
        assert store.copy(Copy("a", of, "copy")) == store.stored("copy")  # the second time it is there already
    assert bucket.read("taken") == b"something else"


def test_a_large_object_in_several_requests(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_copies, "_MOST_AT_ONCE", 1 << 20)
    data = os.urandom((2 << 20) + 7)
    bucket.create("a", data)
    before = len(server.log)
    store.copy(Copy("a", store.stored("a"), "copy"))
    assert bucket.read("copy") == data
    assert [request.kind for request in list(server.log)[before:]].count("copy") == 3


@pytest.mark.parametrize("kind", ["copy", "list", "stat", "read", "delete"])
@pytest.mark.parametrize("fault", [Answer(503), Reset(), Reset(after=True), Answer(503, after=True)])
def test_one_fault_that_passes_by_is_not_noticed(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, kind: str, fault: Fault
) -> None:
    bucket.create("live/a", DATA)
    pinned = store.stored("live/a")
    struck: list[Request] = []

    def once(request: Request) -> Fault | None:
        if request.kind != kind or struck:
            return None
        struck.append(request)
        return fault

    server.plan = once
    assert store.stored("live/a") == pinned
    assert store.stored_below("live") == {"a": pinned}
    assert store.read_stored("live/a", pinned.version) == DATA
    made = store.copy_many([Copy("live/a", pinned, f"copies/{number}") for number in range(3)])
    assert all(item.is_same_content(pinned) for item in made)
    assert [bucket.read(f"copies/{number}") for number in range(3)] == [DATA] * 3
    store.remove_below("copies")
    assert struck
    assert set(server.objects(BUCKET)) == {"base/live/a"}


@pytest.mark.parametrize(("fault", "what"), [(Answer(403), "permission denied"), (Answer(429), "no more requests")])
def test_what_the_store_refuses_is_told_with_the_way_on(
    server: GcsServer, bucket: GcsFileSystem, store: ServerSide, fault: Fault, what: str
) -> None:
    bucket.create("live/a", DATA)
    pinned = store.stored("live/a")
    server.plan = lambda request: fault if request.kind in {"copy", "list", "delete"} else None
    for ask in (
        lambda: store.copy(Copy("live/a", pinned, "copy")),
        lambda: store.stored_below("live"),
        lambda: store.remove_below("live"),
    ):
        with pytest.raises(StorageError, match=what) as caught:
            ask()
        assert caught.value.hint
    assert "base/copy" not in server.objects(BUCKET)


def test_a_copy_of_other_bytes_is_refused(server: GcsServer, bucket: GcsFileSystem, store: ServerSide) -> None:
    """A store that mixes objects up is not believed."""
    bucket.create("a", DATA)
    pinned = store.stored("a")
    server.put(BUCKET, "base/a", DATA[::-1])
    mistaken = store.stored("a")
    wrong = type(pinned)(pinned.size, mistaken.version, pinned.crc32c, pinned.md5)
    with pytest.raises(StorageError, match="other bytes"):
        store.copy(Copy("a", wrong, "copy"))


def test_copies_stop_when_they_are_asked_to(server: GcsServer, bucket: GcsFileSystem, store: ServerSide) -> None:
    bucket.create("a", DATA)
    made: list[Request] = []

    def slowly(request: Request) -> Fault | None:
        if request.kind == "copy":
            made.append(request)
            return Hang(0.01)
        return None

    server.plan = slowly
    with pytest.raises(Stopped):
        store.copy_many([Copy("a", None, f"copies/{number}") for number in range(500)], lambda: len(made) > 3)
    assert len(made) < 500
