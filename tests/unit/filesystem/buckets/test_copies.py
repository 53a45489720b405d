"""Copies that stores make by themselves: of what was pinned, and settled when in doubt. All stores alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import Copy, ObjectFileSystem, Part, ServerSide, Stopped, Stored, crc32c_of
from tests.unit.filesystem.buckets.stores import Asked, DisturbedStore, Store, Trouble

DATA = b"the bytes of an object"


@pytest.fixture
def bucket(copying: Store) -> ObjectFileSystem:
    return copying.storage()


@pytest.fixture
def copies(bucket: ObjectFileSystem) -> ServerSide:
    return _copies(bucket)


def _copies(bucket: ObjectFileSystem) -> ServerSide:
    assert bucket.copies is not None
    return bucket.copies


def _tells(made: Stored, copies: ServerSide, data: bytes) -> bool:
    """Whether a copy is told to be of these bytes, as far as its store tells."""
    proof = crc32c_of(data) if copies.tells_checksums else None
    return (made.size, made.crc32c) == (len(data), proof)


def test_what_the_store_says_of_an_object(bucket: ObjectFileSystem, copies: ServerSide) -> None:
    bucket.create("a/b c/ä", DATA)
    found = copies.stored("a/b c/ä")
    assert found.size == len(DATA)
    assert found.crc32c in {None, crc32c_of(DATA)}
    bucket.replace("a/b c/ä", DATA[::-1])
    again = copies.stored("a/b c/ä")
    assert again.version != found.version
    assert not again.is_same_content(found)
    made = copies.copy(Copy("a/b c/ä", again, "cöpy of it/b"))
    assert _tells(made, copies, DATA[::-1])
    assert copies.stored("cöpy of it/b") == made
    with pytest.raises(FileNotFoundError):
        copies.stored("a/b c")


def test_everything_below_a_directory_page_by_page(copying: Store, copies: ServerSide) -> None:
    names = {f"live/{number:04}" for number in range(1203)} | {"live/x/y/z", "live2", "liv"}
    for name in names:
        copying.put(f"base/{name}", name.encode())
    copying.put("base/live/", b"")  # as Hadoop's connectors mark directories
    copying.put("base/live/x/", b"")
    found = copies.stored_below("live")
    assert {f"live/{path}" for path in found} == names - {"live2", "liv"}
    there = copies.stored("live/x/y/z")
    assert (found["x/y/z"].size, found["x/y/z"].version) == (there.size, there.version)
    assert not copies.stored_below("nothing")


def test_all_below_a_directory_is_removed_markers_too(copying: Store, copies: ServerSide) -> None:
    there = {"live/a", "live/x/y z", "live/ä", "live/", "live/x/", "live2", "liv"}
    for name in there:
        copying.put(f"base/{name}", b"")
    assert copies.remove_below("live") == 5
    assert set(copying.objects()) == {"base/live2", "base/liv"}
    assert copies.remove_below("live") == 0


def test_what_was_pinned_or_nothing(
    copying: Store, bucket: ObjectFileSystem, copies: ServerSide, tmp_path: Path
) -> None:
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    assert copies.read_stored("live/a", pinned.version) == DATA
    assert copies.read_stored("live/a", pinned.version, Part(4, 5)) == DATA[4:9]
    assert copies.fetch_stored("live/a", pinned, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert _tells(copies.copy(Copy("live/a", pinned, "copy")), copies, DATA)
    assert bucket.read("copy") == DATA
    bucket.replace("live/a", DATA[::-1])
    for ask in (
        lambda: copies.read_stored("live/a", pinned.version),
        lambda: copies.read_stored("live/a", pinned.version, Part(4, 5)),
        lambda: copies.fetch_stored("live/a", pinned, tmp_path / "b"),
        lambda: copies.copy(Copy("live/a", pinned, "other")),
        lambda: copies.copy(Copy("gone", pinned, "other")),
        lambda: copies.copy(Copy("gone", None, "other")),
    ):
        with pytest.raises(FileNotFoundError):
            ask()
    assert "base/other" not in copying.objects()
    assert _tells(copies.copy(Copy("live/a", None, "other")), copies, DATA[::-1])
    assert bucket.read("other") == DATA[::-1]


def test_an_empty_object(bucket: ObjectFileSystem, copies: ServerSide, tmp_path: Path) -> None:
    bucket.create("live/a", b"")
    pinned = copies.stored_below("live")["a"]
    made = copies.copy(Copy("live/a", pinned, "copy"))
    assert _tells(made, copies, b"")
    assert copies.fetch_stored("copy", made, tmp_path / "copy")


def test_a_copy_that_was_made_before_is_there(bucket: ObjectFileSystem, copies: ServerSide) -> None:
    bucket.create("live/a", DATA)
    for of in (None, copies.stored_below("live")["a"]):
        made = copies.copy(Copy("live/a", of, "copy"))
        assert made == copies.stored("copy")
        assert _tells(made, copies, DATA)


def test_a_copy_of_other_bytes_is_refused(bucket: ObjectFileSystem, copies: ServerSide) -> None:
    """A store that mixes objects up is not believed."""
    bucket.create("a", DATA[::-1])
    mistaken = copies.stored("a")
    wrong = Stored(mistaken.size, mistaken.version, crc32c_of(DATA))
    if not copies.tells_checksums:
        wrong = Stored(mistaken.size - 1, mistaken.version)
    with pytest.raises(StorageError, match="came out with"):
        copies.copy(Copy("a", wrong, "copy"))


@pytest.mark.parametrize("kind", ["copy", "list", "stat", "read", "delete"])
@pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.RESET, Trouble.LOST, Trouble.BUSY_AFTER])
def test_one_fault_that_passes_by_is_not_noticed(
    disturbed_copying: DisturbedStore, kind: str, trouble: Trouble
) -> None:
    disturbed_copying.hurry()
    bucket = disturbed_copying.storage()
    copies = _copies(bucket)
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    copies.copy(Copy("live/a", pinned, "first"))
    struck: list[Asked] = []

    def once(asked: Asked) -> Trouble | None:
        if asked.kind != kind or struck:
            return None
        struck.append(asked)
        return trouble

    disturbed_copying.plan(once)
    assert copies.stored("live/a").version == pinned.version
    assert copies.stored_below("live") == {"a": pinned}
    assert copies.read_stored("live/a", pinned.version) == DATA
    made = copies.copy_many([Copy("live/a", pinned, f"copies/{number}") for number in range(3)])
    assert all(_tells(item, copies, DATA) for item in made)
    assert [bucket.read(f"copies/{number}") for number in range(3)] == [DATA] * 3
    copies.remove_below("copies")
    assert struck
    assert set(disturbed_copying.objects()) == {"base/live/a", "base/first"}


@pytest.mark.parametrize(
    "disturbed_copying",
    ["gs", "s3", pytest.param("disturbed-azurite", marks=pytest.mark.integration)],
    indirect=True,
)
def test_a_copy_whose_reply_was_lost_is_found_though_spark_has_deleted_its_source(
    disturbed_copying: DisturbedStore,
) -> None:
    disturbed_copying.hurry()
    bucket = disturbed_copying.storage()
    copies = _copies(bucket)
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    copies.copy(Copy("live/a", pinned, "first"))
    asked_for: list[Asked] = []

    def lost(asked: Asked) -> Trouble | None:
        if asked.kind != "copy":
            return None
        asked_for.append(asked)
        if len(asked_for) == 1:
            return Trouble.LOST
        disturbed_copying.discard("base/live/a")
        return None

    disturbed_copying.plan(lost)
    made = copies.copy(Copy("live/a", pinned, "copy"))
    assert len(asked_for) == 2
    assert _tells(made, copies, DATA)
    assert disturbed_copying.objects() == {"base/first": DATA, "base/copy": DATA}


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.LIMITED])
def test_what_the_store_refuses_is_told_with_the_way_on(disturbed_copying: DisturbedStore, trouble: Trouble) -> None:
    disturbed_copying.hurry()
    bucket = disturbed_copying.storage()
    copies = _copies(bucket)
    bucket.create("live/a", DATA)
    pinned = copies.stored("live/a")
    disturbed_copying.plan(lambda asked: trouble if asked.kind in {"copy", "list", "delete"} else None)
    what, hint = disturbed_copying.told[trouble]
    for ask in (
        lambda: copies.copy(Copy("live/a", pinned, "copy")),
        lambda: copies.stored_below("live"),
        lambda: copies.remove_below("live"),
    ):
        with pytest.raises(StorageError, match=what) as caught:
            ask()
        assert hint in caught.value.hint
    assert "base/copy" not in disturbed_copying.objects()


def test_copies_stop_when_they_are_asked_to(disturbed_copying: DisturbedStore) -> None:
    bucket = disturbed_copying.storage()
    bucket.create("a", DATA)
    made: list[Asked] = []

    def count(asked: Asked) -> None:
        if asked.kind == "copy":
            made.append(asked)

    disturbed_copying.plan(count)
    with pytest.raises(Stopped):
        _copies(bucket).copy_many([Copy("a", None, f"copies/{number}") for number in range(500)], lambda: len(made) > 3)
    assert len(made) < 500
