"""What is peculiar to a bucket of S3, over the wire; `test_stores.py` has what all stores give a job alike."""

from __future__ import annotations

import asyncio
import base64
import itertools
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiobotocore.signers import AioRequestSigner
from botocore.exceptions import CredentialRetrievalError

from dagster_ckpt.errors import (
    InvalidConfiguration,
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import S3FileSystem, open_filesystem
from dagster_ckpt.filesystem.buckets import bucket as object_store
from dagster_ckpt.testing.gcs.server import Reset
from tests.helpers.checkpoint.driver import Ledger, Pins, Run, state
from tests.servers.s3 import BUCKET, Answer, Fault, Request, S3Server, Spoil, answering_at_once, bucket_of, connection

PART = 1 << 16
LARGE = 2 * PART + 1
BUSY = Answer(503, "SlowDown", message="Please reduce your request rate.")
BROKEN = Answer(500, "InternalError")


@pytest.fixture
def storage(s3: S3Server) -> S3FileSystem:
    return bucket_of(s3)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large here is so for few bytes, and the client asks again at once."""
    monkeypatch.setattr(object_store, "CHUNK", PART)
    answering_at_once(monkeypatch)


def never() -> bool:
    return False


def always(kind: str, fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.kind == kind else None


# --- a create is settled by what is there ---------------------------------------------------------------------------


def test_a_create_in_conflict_with_another_is_repeated(s3: S3Server, storage: S3FileSystem) -> None:
    conflict = Answer(409, "ConditionalRequestConflict")
    conflicts = iter([conflict] * 3)
    s3.plan = lambda request: next(conflicts, None) if request.kind == "put" else None
    storage.create("f", b"mine")
    assert s3.objects(BUCKET) == {"base/f": b"mine"}
    s3.plan = always("put", conflict)
    with pytest.raises(PublishUnknown, match="Could not create s3://checkpoints/base/g"):
        storage.create("g", b"mine")


def test_a_refusal_after_a_conflict_says_nothing_of_the_requests_before(s3: S3Server, storage: S3FileSystem) -> None:
    """The conflict may be with the first request, which the bucket gave up and still carries out."""
    conflict, refusal = Answer(409, "ConditionalRequestConflict"), Answer(403, "QuotaExceeded")
    silent = Reset(after=False)  # aiohttp would send the request once more by itself, and tell nobody
    for first, outcome in ((BROKEN, PublishUnknown), (silent, PublishUnknown), (conflict, StorageError)):
        storage.list("")  # over a connection that is kept
        answers: Iterator[Fault] = iter([first, conflict, conflict, refusal])
        s3.plan = lambda request, answers=answers: next(answers) if request.kind == "put" else None  # type: ignore[misc]
        with pytest.raises(StorageError, match="Could not create") as raised:
            storage.create("f", b"mine")
        assert type(raised.value) is outcome


def test_credentials_that_are_away_say_nothing_of_the_request_before(
    s3: S3Server, storage: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is signed anew: the machine's role may be away for the second, and the first may be under way."""
    sign = AioRequestSigner.sign

    async def signed(self: AioRequestSigner, operation: str, *given: object, **options: object) -> None:
        if operation == "PutObject" and any(request.kind == "put" for request in s3.log):
            raise CredentialRetrievalError(provider="iam-role", error_msg="no answer")
        await sign(self, operation, *given, **options)

    monkeypatch.setattr(AioRequestSigner, "sign", signed)
    s3.plan = always("put", BROKEN)
    with pytest.raises(PublishUnknown, match=r"credentials for bucket 'checkpoints' .*no answer") as raised:
        storage.create("f", b"mine")
    assert "aws configure" in raised.value.hint
    assert [request.kind for request in s3.log].count("put") == 1


def test_a_store_that_does_not_name_the_condition_is_understood(s3: S3Server, storage: S3FileSystem) -> None:
    s3.plan = always("put", Answer(412, "PreconditionFailed"))
    with pytest.raises(PublishConflict, match="gone again"):
        storage.create("f", b"mine")
    s3.put(BUCKET, "base/f", b"mine")
    storage.create("f", b"mine")
    storage.write("f", b"mine", never)


def test_a_store_that_cannot_create_exclusively_is_refused(s3: S3Server, storage: S3FileSystem) -> None:
    s3.plan = always("put", Answer(501, "NotImplemented", message="A header implies functionality"))
    with pytest.raises(StorageUnusable, match="cannot do that") as raised:
        storage.probe()
    assert "If-None-Match" in raised.value.hint


# --- data files -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "f"
    path.write_bytes((b"content!" * (LARGE // 8 + 1))[:LARGE])
    return path


def test_a_large_file_goes_up_in_parts_and_comes_back(
    s3: S3Server, storage: S3FileSystem, large: Path, tmp_path: Path
) -> None:
    written = storage.write("shared/f", large, never)
    assert [request.kind for request in s3.log] == ["begin", "part", "part", "part", "complete"]
    assert [request.size for request in s3.log if request.kind == "part"] == [PART, PART, 1]
    assert storage.fetch("shared/f", tmp_path / "back") == written
    assert (tmp_path / "back").read_bytes() == large.read_bytes()


def test_parts_are_as_large_as_the_store_wants_them(
    s3: S3Server, storage: S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (tmp_path / "f").write_bytes(bytes(object_store.CHUNK + 1))
    written = storage.write("shared/f", tmp_path / "f", never)
    assert storage.checksum("shared/f") == written
    assert [request.kind for request in s3.log][:4] == ["begin", "part", "part", "complete"]


def test_an_empty_file(s3: S3Server, storage: S3FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert storage.write("f", tmp_path / "f", never).size == 0
    assert storage.read("f") == b""
    assert storage.checksum("f").size == 0


def test_the_parts_are_named_with_their_checksums(
    s3: S3Server, storage: S3FileSystem, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon refuses to complete an upload with checksums without those of its parts; moto does not ask for them."""
    told: list[list[dict[str, object]]] = []
    client = storage._client()
    call = client._call_s3

    async def listen(method: str, *given: object, **parameters: object) -> object:
        if method == "complete_multipart_upload":
            upload = parameters["MultipartUpload"]
            assert isinstance(upload, dict)
            told.append(upload["Parts"])
        answer = await call(method, *given, **parameters)
        if method == "upload_part":
            body = parameters["Body"]
            assert isinstance(body, bytes)
            answer = {**answer, "ChecksumCRC32": base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()}
        return answer

    monkeypatch.setattr(client, "_call_s3", listen)
    storage.write("f", large, never)
    (parts,) = told
    assert [part["PartNumber"] for part in parts] == [1, 2, 3]
    assert all(set(part) == {"PartNumber", "ETag", "ChecksumCRC32"} for part in parts)


def test_a_cancelled_upload_leaves_nothing(s3: S3Server, storage: S3FileSystem, large: Path) -> None:
    """As when the thread that waits is interrupted."""
    held, let_go, aborted = threading.Event(), threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.kind == "part":
            held.set()
            let_go.wait(60)
        if request.kind == "abort":
            aborted.set()

    s3.plan = hold
    client = storage._client()
    upload = asyncio.run_coroutine_threadsafe(
        client._put_file(str(large), f"{BUCKET}/base/f", callback=_NoCallback(), chunksize=PART, mode="create"),
        client.loop,
    )
    assert held.wait(60)
    upload.cancel()
    let_go.set()
    assert aborted.wait(60)
    while s3.unfinished_uploads(BUCKET):
        threading.Event().wait(0.01)  # the store is still at it
    assert s3.objects(BUCKET) == {}


class _NoCallback:
    def relative_update(self, inc: int) -> None:
        pass


def test_an_upload_that_somebody_else_aborted_is_no_missing_bucket(
    s3: S3Server, storage: S3FileSystem, large: Path
) -> None:
    """As a lifecycle rule does; or an earlier request of this very upload completed it."""
    gone = Answer(404, "NoSuchUpload", message="The specified upload does not exist.")
    s3.plan = always("part", gone)
    with pytest.raises(StorageError, match="specified upload does not exist") as raised:
        storage.write("shared/f", large, never)
    assert not isinstance(raised.value, StorageUnusable)
    s3.plan = always("complete", gone)
    with pytest.raises(StorageError, match="is gone again"):
        storage.write("shared/f", large, never)
    s3.put(BUCKET, "base/shared/f", large.read_bytes())
    storage.write("shared/f", large, never)


def test_what_arrives_otherwise_than_it_was_sent_is_refused(s3: S3Server, storage: S3FileSystem) -> None:
    """The checksum goes along, for the store to compare. moto does not, so this looks at what would be compared."""
    sent: dict[str, str] = {}
    client = storage._client()

    def listen(request: object, **given: object) -> None:
        headers = getattr(request, "headers", {})
        sent.update({name.lower(): _text(value) for name, value in headers.items()})

    storage.create("connected", b"")
    client.s3.meta.events.register("before-send.s3.PutObject", listen)
    try:
        storage.write("f", b"content", never)
    finally:
        client.s3.meta.events.unregister("before-send.s3.PutObject", listen)
    assert sent["x-amz-checksum-crc32"] == base64.b64encode(zlib.crc32(b"content").to_bytes(4, "big")).decode()
    assert sent["if-none-match"] == "*"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_what_is_stored_otherwise_than_it_was_sent_is_told(s3: S3Server, storage: S3FileSystem, tmp_path: Path) -> None:
    s3.plan = always("put", Spoil())
    storage.write("shared/f", b"content", never)
    assert s3.objects(BUCKET) == {"base/shared/f": b"contend"}
    with pytest.raises(StorageError, match="checksum"):
        storage.fetch("shared/f", tmp_path / "f")


# --- what is there --------------------------------------------------------------------------------------------------


# --- a job ----------------------------------------------------------------------------------------------------------


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        (Answer(403, "RequestTimeTooSkewed"), "clock of this machine .* bucket 'checkpoints'", "timedatectl"),
        (Answer(403, "InvalidAccessKeyId"), "credentials for bucket 'checkpoints'", "`key` and `secret`"),
        (Answer(403, "SignatureDoesNotMatch"), "credentials for bucket 'checkpoints'", "`profile`"),
        (Answer(400, "AuthorizationHeaderMalformed"), "is in another region", "region_name"),
        (BROKEN, "injected", "next checkpoint tries again"),
    ],
)
def test_what_a_bucket_refuses_is_told_with_the_way_on(
    s3: S3Server, storage: S3FileSystem, answer: Answer, message: str, hint: str
) -> None:
    s3.plan = lambda request: answer
    for operation in (
        lambda: storage.write("shared/f", b"x", never),
        lambda: storage.read("f"),
        lambda: storage.list("job"),
        lambda: storage.remove("f"),
        lambda: storage.replace("f", b"x"),
        storage.probe,
    ):
        with pytest.raises(StorageError, match=message) as raised:
            operation()
        assert "checkpoints" in str(raised.value)
        assert hint in raised.value.hint
        assert "secret-of-mine" not in str(raised.value)


@pytest.mark.parametrize(("off", "told"), [(3600, "clock of this machine"), (60, "permission denied")])
def test_a_refusal_without_a_word_is_explained_by_its_date(
    s3: S3Server, storage: S3FileSystem, monkeypatch: pytest.MonkeyPatch, off: float, told: str
) -> None:
    """As of a request for the size of an object, whose answer has no body."""
    storage.create("f", b"1")
    s3.plan = always("stat", Answer(403, "RequestTimeTooSkewed"))
    monkeypatch.setattr("dagster_ckpt.filesystem.buckets.s3.time", SimpleNamespace(time=lambda: time.time() - off))
    with pytest.raises(StorageError, match=told):
        storage.size("f")


def test_nothing_that_was_acknowledged_is_lost_while_a_clock_is_wrong(s3: S3Server, tmp_path: Path) -> None:
    ledger, pins = Ledger(), Pins(tmp_path)
    run = Run(bucket_of(s3), ledger, pins).start()
    run.checkpoint(state(1), 1)
    for attempt, first in ((2, 1), (3, 4)):
        turn = itertools.count()
        s3.plan = lambda request, turn=turn, first=first: (  # type: ignore[misc]
            Answer(403, "RequestTimeTooSkewed") if next(turn) >= first else None
        )
        with pytest.raises(StorageError, match="clock of this machine"):
            run.checkpoint(state(attempt), attempt)
        s3.plan = lambda request: None
        ledger.examine(bucket_of(s3))
    run.checkpoint(state(4), 4)
    assert Run(bucket_of(s3), ledger, pins).start().store.retained[-1].batch == 4


@pytest.fixture
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.mark.usefixtures("_no_credentials")
@pytest.mark.parametrize("options", [{}, {"profile": "nobody"}])
def test_without_credentials_the_way_to_them_is_told(s3: S3Server, options: dict[str, str]) -> None:
    storage = S3FileSystem(BUCKET, "base", {"endpoint_url": s3.url, **options})
    for operation in (lambda: storage.read("f"), lambda: storage.write("f", b"x", never), storage.probe):
        with pytest.raises(StorageError, match="credentials for bucket 'checkpoints'") as raised:
            operation()
        assert "aws configure" in raised.value.hint
    assert not s3.log


def test_a_server_that_is_not_there(s3: S3Server) -> None:
    storage = S3FileSystem(BUCKET, "base", connection("http://127.0.0.1:1"))
    with pytest.raises(StorageError, match="Could not connect to the endpoint") as raised:
        storage.read("f")
    assert "network" in raised.value.hint


@pytest.mark.parametrize("endpoint", ["host:9000", "https://user:hidden@host", "ftp://host", "https://host/?a=hidden"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(InvalidConfiguration, match="endpoint_url") as raised:
        open_filesystem("s3://bucket/a", storage_options={"endpoint_url": endpoint})
    assert "hidden" not in str(raised.value)


def test_secrets_are_not_shown(storage: S3FileSystem) -> None:
    assert "of-mine" not in f"{storage!r}{storage}{storage.url}"
    with pytest.raises(FileNotFoundError) as raised:
        storage.read("f")
    assert "of-mine" not in f"{raised.value!r}{raised.value}"


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("dagster_ckpt.filesystem", "dagster_ckpt.filesystem.buckets"):
        monkeypatch.delattr(f"{package}.S3FileSystem", raising=False)
    for module in ("s3", "s3_client"):
        monkeypatch.delitem(sys.modules, f"dagster_ckpt.filesystem.buckets.{module}")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidConfiguration, match="Amazon S3 need the module 's3fs'") as raised:
        open_filesystem("s3://bucket/a")
    assert 'pip install "dagster-ckpt[s3]"' in raised.value.hint
