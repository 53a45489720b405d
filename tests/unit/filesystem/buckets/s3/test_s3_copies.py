"""What is peculiar to copies in S3; `test_copies.py` has what all stores do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem import Copy, Part, S3FileSystem, ServerSide, crc32c_of
from tests.servers.s3 import BUCKET, Answer, BreakOff, S3Server, answering_at_once, bucket_of

DATA = b"the bytes of an object"


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3FileSystem:
    answering_at_once(monkeypatch)
    return bucket_of(s3)


@pytest.fixture
def copies(bucket: S3FileSystem) -> ServerSide:
    assert bucket.copies is not None
    return bucket.copies


def _answers(
    bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch, change: Callable[[str, dict[str, object]], None]
) -> None:
    """Let the client hear other answers than the store gives: ``change`` is given each, by its operation."""
    client = bucket._client()
    call = client._call_s3

    async def changed(method: str, *given: object, **parameters: object) -> object:
        answer = await call(method, *given, **parameters)
        change(method, answer)
        return answer

    monkeypatch.setattr(client, "_call_s3", changed)


def _without_checksums(method: str, answer: dict[str, object]) -> None:
    del method
    result = answer.get("CopyObjectResult", answer)
    assert isinstance(result, dict)
    result.pop("ChecksumCRC32C", None)


def test_a_pin_is_an_etag(bucket: S3FileSystem, copies: ServerSide) -> None:
    """The same bytes once more are what was pinned, and no ETag is taken for a checksum."""
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    assert (pinned.crc32c, pinned.md5) == (None, None)
    bucket.replace("live/a", DATA)
    assert copies.read_stored("live/a", pinned.version) == DATA
    assert copies.copy(Copy("live/a", pinned, "copy")).crc32c == crc32c_of(DATA)


def test_a_copy_of_what_is_pinned_is_one_request(s3: S3Server, bucket: S3FileSystem, copies: ServerSide) -> None:
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    copies.copy(Copy("live/a", pinned, "first"))
    before = len(s3.log)
    copies.copy(Copy("live/a", pinned, "copy"))
    assert [request.kind for request in list(s3.log)[before:]] == ["copy"]


def test_a_store_that_copies_what_was_not_pinned_is_refused_by_name(
    s3: S3Server, bucket: S3FileSystem, copies: ServerSide
) -> None:
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    s3.heeds_pins = False
    for _ in range(2):
        with pytest.raises(StorageUnusable, match="'checkpoints' copies an object that is not the one") as caught:
            copies.copy(Copy("live/a", pinned, "copy"))
        assert "x-amz-copy-source-if-match" in caught.value.hint
        assert "live_location to local" in caught.value.hint
        assert set(s3.objects(BUCKET)) == {"base/live/a"}
    s3.discard(BUCKET, "base/live/a")
    with pytest.raises(FileNotFoundError):
        copies.copy(Copy("live/a", pinned, "copy"))
    s3.put(BUCKET, "base/live/a", DATA)
    with pytest.raises(StorageUnusable):  # what was gone has proven nothing
        copies.copy(Copy("live/a", pinned, "copy"))


def test_the_target_of_a_copy_that_was_refused_is_looked_at(
    s3: S3Server, bucket: S3FileSystem, copies: ServerSide
) -> None:
    """Its name is nobody else's: what is not what was pinned was spoilt, and is not believed."""
    bucket.create("live/a", DATA)
    pinned = copies.stored_below("live")["a"]
    s3.discard(BUCKET, "base/live/a")
    with pytest.raises(FileNotFoundError, match="live/a"):
        copies.copy(Copy("live/a", pinned, "copy"))
    s3.put(BUCKET, "base/copy", DATA + b"!")
    with pytest.raises(StorageError, match="holds something else"):
        copies.copy(Copy("live/a", pinned, "copy"))
    with pytest.raises(FileNotFoundError, match="live/a"):
        copies.copy(Copy("live/a", None, "copy"))


def test_an_answer_of_200_with_an_error_in_it_is_an_error(
    s3: S3Server, bucket: S3FileSystem, copies: ServerSide
) -> None:
    """A store that has begun to answer before it has copied can say only so that it could not."""
    bucket.create("a", DATA)
    broken = Answer(200, "InternalError", message="We encountered an internal error.")
    once = iter([broken])
    s3.plan = lambda request: next(once, None) if request.kind == "copy" else None
    assert copies.copy(Copy("a", None, "copy")).crc32c == crc32c_of(DATA)
    s3.plan = lambda request: broken if request.kind == "copy" else None
    with pytest.raises(StorageError, match="internal error"):
        copies.copy(Copy("a", None, "other"))
    assert set(s3.objects(BUCKET)) == {"base/a", "base/copy"}


def test_a_checksum_that_the_answer_does_not_have_is_asked_for(
    s3: S3Server, bucket: S3FileSystem, copies: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("a", DATA)
    pinned = copies.stored("a")

    def leave_out(method: str, answer: dict[str, object]) -> None:
        if method == "copy_object":
            _without_checksums(method, answer)

    _answers(bucket, monkeypatch, leave_out)
    copies.copy(Copy("a", pinned, "first"))
    before = len(s3.log)
    assert copies.copy(Copy("a", pinned, "copy")).crc32c == crc32c_of(DATA)
    assert [request.kind for request in list(s3.log)[before:]] == ["copy", "stat"]


def test_a_store_that_does_not_tell_checksums_is_refused_by_name(
    bucket: S3FileSystem, copies: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("a", DATA)
    pinned = copies.stored("a")
    copies.copy(Copy("a", pinned, "first"))
    _answers(bucket, monkeypatch, _without_checksums)
    with pytest.raises(StorageUnusable, match="'checkpoints' does not tell the CRC32C") as caught:
        copies.copy(Copy("a", pinned, "copy"))
    assert "live_location to local" in caught.value.hint


@pytest.mark.parametrize(
    "told",
    [
        {"ChecksumCRC32C": "zGS3ag==-3"},
        {"ChecksumCRC32C": "zGS3ag==", "ChecksumType": "COMPOSITE"},
        {"ChecksumCRC32C": "AAAAAAAA"},
    ],
)
def test_a_checksum_of_parts_is_none_of_the_bytes(
    bucket: S3FileSystem, copies: ServerSide, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    bucket.create("a", DATA)
    _answers(bucket, monkeypatch, lambda method, answer: answer.update(told))
    assert copies.stored("a").crc32c is None


def test_what_is_too_large_for_one_request_is_refused_by_name(
    s3: S3Server, bucket: S3FileSystem, copies: ServerSide
) -> None:
    bucket.create("a", DATA)
    pinned = replace(copies.stored("a"), size=(5 << 30) + 1)
    with pytest.raises(StorageError, match=r"it has 5368709121 bytes, and S3 copies at most 5368709120") as caught:
        copies.copy(Copy("a", pinned, "copy"))
    assert "live_location to local" in caught.value.hint
    assert set(s3.objects(BUCKET)) == {"base/a"}


def test_an_etag_is_the_same_with_quotation_marks_and_without(
    bucket: S3FileSystem, copies: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("live/a", DATA)
    known = copies.stored("live/a").version

    def without(method: str, answer: dict[str, object]) -> None:
        for item in answer.get("Contents", ()):  # type: ignore[attr-defined]
            item["ETag"] = item["ETag"].strip('"')

    _answers(bucket, monkeypatch, without)
    pinned = copies.stored_below("live")["a"]
    assert pinned.version == known
    assert copies.copy(Copy("live/a", pinned, "copy")).size == len(DATA)


def test_a_copy_is_asked_for_as_the_user_wants_it_stored(s3: S3Server) -> None:
    storage = bucket_of(
        s3, requester_pays=True, s3_additional_kwargs={"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "of-mine"}
    )
    storage.create("a b/ä", DATA)
    sent: dict[str, str] = {}

    def listen(request: object, **given: object) -> None:
        headers = getattr(request, "headers", {})
        sent.update(
            {name.lower(): value if isinstance(value, str) else value.decode() for name, value in headers.items()}
        )

    storage._client().s3.meta.events.register("before-send.s3.CopyObject", listen)
    assert storage.copies is not None
    pinned = storage.copies.stored_below("a b")["ä"]
    storage.copies.copy(Copy("a b/ä", pinned, "copy"))
    assert sent["x-amz-copy-source"] == f"{BUCKET}/base/a%20b/%C3%A4"
    assert sent["x-amz-copy-source-if-match"] == f'"{pinned.version}"'
    assert sent["x-amz-checksum-algorithm"] == "CRC32C"
    assert sent["x-amz-server-side-encryption"] == "aws:kms"
    assert sent["x-amz-server-side-encryption-aws-kms-key-id"] == "of-mine"
    assert sent["x-amz-request-payer"] == "requester"


def test_bytes_that_break_off_are_asked_for_again(s3: S3Server, bucket: S3FileSystem, copies: ServerSide) -> None:
    bucket.create("a", DATA)
    pinned = copies.stored("a")
    for part in (None, Part(0, 10)):
        before, once = len(s3.log), iter([BreakOff()])
        s3.plan = lambda request, once=once: next(once, None) if request.kind == "read" else None  # type: ignore[misc]
        assert copies.read_stored("a", pinned.version, part) == (DATA if part is None else DATA[:10])
        assert [request.kind for request in list(s3.log)[before:]] == ["read", "read"]
