"""What a bucket of S3 gives a job, over the wire: faults, lost replies, conflicts, bad input, and large files."""

from __future__ import annotations

import asyncio
import base64
import itertools
import multiprocessing
import pickle
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import aiobotocore.endpoint
import moto.s3.models
import pytest

from dagster_ckpt.errors import (
    InvalidConfiguration,
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import Entry, Stopped, object_store, open_filesystem
from dagster_ckpt.filesystem.s3 import S3FileSystem
from dagster_ckpt.testing.gcs_server import Reset
from tests.checkpoint.driver import Ledger, Pins, Run, state
from tests.object_stores.life import live
from tests.s3 import BUCKET, Answer, Fault, Request, S3Server, Spoil, bucket_of, connection

PART = 1 << 16
LARGE = 2 * PART + 1
BUSY = Answer(503, "SlowDown", message="Please reduce your request rate.")
BROKEN = Answer(500, "InternalError")


@pytest.fixture
def storage(s3: S3Server) -> S3FileSystem:
    return bucket_of(s3)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again at once: how long it waits between its attempts is not what is tested."""
    wait = asyncio.sleep

    async def at_once(seconds: float) -> None:
        del seconds
        await wait(0)

    monkeypatch.setattr(aiobotocore.endpoint.asyncio, "sleep", at_once)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large here is so for few bytes, since moto is slow."""
    monkeypatch.setattr(object_store, "CHUNK", PART)
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def never() -> bool:
    return False


def times(count: int, kind: str, fault: Fault) -> Callable[[Request], Fault | None]:
    """The first ``count`` requests of a kind go wrong."""
    left = iter(range(count))

    def plan(request: Request) -> Fault | None:
        return fault if request.kind == kind and next(left, None) is not None else None

    return plan


def always(kind: str, fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.kind == kind else None


def after(fault: Answer) -> Answer:
    return Answer(fault.status, fault.code, after=True, message=fault.message)


# --- a create is settled by what is there ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [after(BROKEN), Reset(after=True), after(BUSY), BROKEN, Reset(), BUSY])
def test_a_create_whose_first_answer_is_lost_succeeds(s3: S3Server, storage: S3FileSystem, fault: Fault) -> None:
    s3.plan = times(1, "put", fault)
    storage.create("a/f", b"mine")
    assert s3.objects(BUCKET) == {"base/a/f": b"mine"}
    s3.plan = times(1, "put", fault)
    with pytest.raises(PublishConflict, match="s3://checkpoints/base/a/f"):
        storage.create("a/f", b"another's")
    assert s3.objects(BUCKET) == {"base/a/f": b"mine"}


@pytest.mark.parametrize("fault", [after(BROKEN), Reset(after=True)])
def test_a_create_that_is_never_answered_is_read_back(s3: S3Server, storage: S3FileSystem, fault: Fault) -> None:
    s3.plan = always("put", fault)
    storage.create("a/f", b"mine")
    with pytest.raises(PublishConflict):
        storage.create("a/f", b"another's")


def test_nobody_knows_what_became_of_a_create_that_cannot_be_read_back(s3: S3Server, storage: S3FileSystem) -> None:
    s3.plan = lambda request: Reset(after=request.kind == "put")
    with pytest.raises(PublishUnknown, match="Nobody can say whether s3://checkpoints/base/f was created"):
        storage.create("f", b"mine")
    assert s3.objects(BUCKET) == {"base/f": b"mine"}


@pytest.mark.parametrize("fault", [BROKEN, BUSY])
def test_a_create_that_is_not_there_may_still_come(s3: S3Server, storage: S3FileSystem, fault: Fault) -> None:
    s3.plan = always("put", fault)
    with pytest.raises(PublishUnknown, match="Could not create s3://checkpoints/base/f"):
        storage.create("f", b"mine")


def test_a_create_that_was_refused_did_not_happen(s3: S3Server, storage: S3FileSystem) -> None:
    s3.plan = always("put", Answer(403, "AccessDenied", message="not authorized to perform: s3:PutObject"))
    with pytest.raises(StorageError, match="permission denied on bucket 'checkpoints'") as raised:
        storage.create("f", b"mine")
    assert not isinstance(raised.value, PublishUnknown)
    assert "arn:aws:s3:::checkpoints/base/*" in raised.value.hint


def test_a_create_in_conflict_with_another_is_repeated(s3: S3Server, storage: S3FileSystem) -> None:
    conflict = Answer(409, "ConditionalRequestConflict")
    s3.plan = times(3, "put", conflict)
    storage.create("f", b"mine")
    assert s3.objects(BUCKET) == {"base/f": b"mine"}
    s3.plan = always("put", conflict)
    with pytest.raises(StorageError, match="Could not create s3://checkpoints/base/g") as raised:
        storage.create("g", b"mine")
    assert not isinstance(raised.value, PublishUnknown), "the store said that it did not do it"


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


def test_a_store_that_ignores_the_condition_is_refused(s3: S3Server, storage: S3FileSystem) -> None:
    def forget(request: Request) -> None:
        if request.kind == "put":
            for name in s3.objects(BUCKET):
                s3.discard(BUCKET, name)

    s3.plan = forget
    with pytest.raises(StorageUnusable, match="let one file be created twice"):
        storage.probe()


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


def test_of_many_that_upload_one_large_file_one_wins(s3: S3Server, storage: S3FileSystem, tmp_path: Path) -> None:
    at_once = Barrier(8)

    def write(number: int) -> str:
        source = tmp_path / str(number)
        source.write_bytes(bytes([number]) * (PART + 1))
        at_once.wait()
        try:
            storage.write("shared/f", source, never)
        except StorageError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(write, range(8)))
    assert told.count("") == 1
    assert sum("exists already and holds something else" in message for message in told) == 7
    assert s3.objects(BUCKET) == {"base/shared/f": bytes([told.index("")]) * (PART + 1)}
    assert s3.unfinished_uploads(BUCKET) == 0


@pytest.mark.parametrize("kind", ["begin", "part", "complete"])
@pytest.mark.parametrize("fault", [after(BROKEN), Reset(after=True), BROKEN, Reset(), BUSY])
def test_a_large_file_whose_answer_is_lost_is_there_once(
    s3: S3Server, storage: S3FileSystem, large: Path, fault: Fault, kind: str
) -> None:
    s3.plan = times(1, kind, fault)
    written = storage.write("shared/f", large, never)
    s3.plan = lambda request: None
    assert storage.checksum("shared/f") == written
    # Of an upload that was begun without an answer nobody knows the number; a lifecycle rule of the bucket does.
    assert s3.unfinished_uploads(BUCKET) == (kind == "begin" and getattr(fault, "after", False))


@pytest.mark.parametrize("fault", [after(BROKEN), Reset(after=True), BROKEN, Reset(), BUSY])
def test_a_data_file_whose_answer_is_lost_is_there_once(s3: S3Server, storage: S3FileSystem, fault: Fault) -> None:
    s3.plan = times(1, "put", fault)
    written = storage.write("shared/f", b"content", never)
    assert storage.checksum("shared/f") == written


@pytest.mark.parametrize("kind", ["part", "complete"])
def test_an_upload_that_fails_is_aborted(s3: S3Server, storage: S3FileSystem, large: Path, kind: str) -> None:
    s3.plan = always(kind, Answer(403, "AccessDenied"))
    with pytest.raises(StorageError, match="permission denied"):
        storage.write("shared/f", large, never)
    assert s3.objects(BUCKET) == {}
    assert s3.unfinished_uploads(BUCKET) == 0


def test_a_stopped_upload_leaves_nothing(s3: S3Server, storage: S3FileSystem, large: Path) -> None:
    with pytest.raises(Stopped):
        storage.write("shared/f", large, lambda: any(request.kind == "part" for request in s3.log))
    assert [request.kind for request in s3.log] == ["begin", "part", "abort"]
    assert s3.objects(BUCKET) == {}
    assert s3.unfinished_uploads(BUCKET) == 0


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


def test_a_listing_of_many_pages(s3: S3Server, storage: S3FileSystem) -> None:
    for number in range(1200):
        s3.put(BUCKET, f"base/job/chk-{number}/_metadata", b"")
    s3.put(BUCKET, "base/job/file", b"")
    s3.put(BUCKET, "base/job-of-another/chk-1/_metadata", b"")
    assert set(storage.list("job")) == {Entry(f"chk-{number}", is_directory=True) for number in range(1200)} | {
        Entry("file", is_directory=False)
    }
    assert [request.kind for request in s3.log] == ["list", "list"]


def test_what_another_did_is_seen_at_once(s3: S3Server, storage: S3FileSystem) -> None:
    storage.create("job/a", b"1")
    assert len(storage.list("job")) == 1
    s3.put(BUCKET, "base/job/b", b"2")
    s3.discard(BUCKET, "base/job/a")
    assert storage.list("job") == [Entry("b", is_directory=False)]
    s3.put(BUCKET, "base/job/b", b"longer than before")
    assert storage.read("job/b") == b"longer than before"
    assert storage.size("job/b") == 18


def test_one_request_is_enough(s3: S3Server, storage: S3FileSystem) -> None:
    storage.create("f", b"1")
    storage.read("f")
    storage.list("")
    storage.list("no/such/directory")
    storage.size("f")
    storage.remove("f")
    assert [request.kind for request in s3.log] == ["put", "read", "list", "list", "stat", "delete"]


def test_a_deletion_whose_answer_is_lost_is_done(s3: S3Server, storage: S3FileSystem) -> None:
    storage.create("f", b"1")
    s3.plan = times(1, "delete", after(BROKEN))
    storage.remove("f")
    assert s3.objects(BUCKET) == {}


def _in_a_child(storage: S3FileSystem) -> None:
    assert storage.read("f") == b"from the parent"
    storage.create("from the child", b"1")


def test_it_goes_through_a_fork_and_into_a_pickle(s3: S3Server, storage: S3FileSystem) -> None:
    storage.create("f", b"from the parent")
    copied = pickle.loads(pickle.dumps(storage))
    assert copied.read("f") == b"from the parent"
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(storage,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.read("from the child") == b"1"


# --- a job ----------------------------------------------------------------------------------------------------------


def test_a_job_takes_subsumes_and_goes_on(s3: S3Server, tmp_path: Path) -> None:
    live(lambda: bucket_of(s3), tmp_path)
    assert {name.split("/")[0] for name in s3.objects(BUCKET)} == {"base"}
    assert "of-mine" not in b"".join(s3.objects(BUCKET).values()).decode("latin-1")


def test_a_job_does_so_whatever_answers_are_lost(s3: S3Server, tmp_path: Path) -> None:
    turn = itertools.count()
    faults: Iterator[Fault] = itertools.cycle((Reset(after=True), BUSY, after(BROKEN)))
    s3.plan = lambda request: next(faults) if next(turn) % 3 == 1 else None
    live(lambda: bucket_of(s3), tmp_path)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there(s3: S3Server) -> None:
    storage = S3FileSystem("no-such-bucket", options=connection(s3))
    with pytest.raises(StorageUnusable, match="there is no bucket 'no-such-bucket'") as raised:
        storage.probe()
    assert "aws s3 mb s3://no-such-bucket" in raised.value.hint
    with pytest.raises(StorageUnusable, match="there is no bucket"):
        storage.write("f", b"x", never)


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        (Answer(403, "AccessDenied"), "permission denied on bucket", "s3:ListBucket"),
        (Answer(400, "ExpiredToken"), "credentials for bucket 'checkpoints'", "aws sso login"),
        (Answer(403, "RequestTimeTooSkewed"), "clock of this machine .* bucket 'checkpoints'", "timedatectl"),
        (Answer(403, "InvalidAccessKeyId"), "credentials for bucket 'checkpoints'", "`key` and `secret`"),
        (Answer(403, "SignatureDoesNotMatch"), "credentials for bucket 'checkpoints'", "`profile`"),
        (BUSY, "takes no more requests", "interval"),
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
    monkeypatch.setattr("dagster_ckpt.filesystem.s3.time", SimpleNamespace(time=lambda: time.time() - off))
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
    storage = S3FileSystem(BUCKET, "base", {**connection(s3), "endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(StorageError, match="Could not connect to the endpoint") as raised:
        storage.read("f")
    assert "network" in raised.value.hint


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("s3://", "no name of a bucket"),
        ("s3://UPPER/x", "no name of a bucket"),
        ("s3:///checkpoints-data/", "no name of a bucket"),
        ("s3://bucket/a?versionId=1", "more in it than a bucket"),
        ("s3://bucket/a#b", "more in it than a bucket"),
        ("s3://user:hidden@bucket/a", "more in it than a bucket"),
        ("s3a://hidden@bucket/a", "more in it than a bucket"),
        ("s3://bucket/a/../b", "takes for names"),
        ("simplecache::s3://bucket/a", "chain of file systems"),
    ],
)
def test_a_path_that_is_not_what_it_seems(location: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as raised:
        open_filesystem(location)
    assert raised.value.hint
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("location", ["s3://bucket/a/b", "s3://bucket//a/b/", "s3a://bucket/a//b"])
def test_one_place_has_one_name(location: str) -> None:
    assert open_filesystem(location, storage_options={"anon": True}).url == "s3://bucket/a/b"


@pytest.mark.parametrize("option", ["use_listings_cache", "version_aware", "asynchronous", "password"])
def test_options_that_nobody_knows_are_refused(option: str) -> None:
    with pytest.raises(InvalidConfiguration, match=option) as raised:
        open_filesystem("s3://bucket/a", storage_options={option: True})
    assert "endpoint_url" in raised.value.hint


@pytest.mark.parametrize("endpoint", ["host:9000", "https://user:hidden@host", "ftp://host", "https://host/?a=hidden"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(InvalidConfiguration, match="endpoint_url") as raised:
        open_filesystem("s3://bucket/a", storage_options={"endpoint_url": endpoint})
    assert "hidden" not in str(raised.value)


def test_options_go_with_a_storage_to_others_of_its_kind_only(s3: S3Server, storage: S3FileSystem) -> None:
    assert open_filesystem("s3a://other/a", like=storage).storage_options == connection(s3)
    assert not open_filesystem("gs://other/a", like=storage).storage_options


def test_secrets_are_not_shown(storage: S3FileSystem) -> None:
    assert "of-mine" not in f"{storage!r}{storage}{storage.url}"
    with pytest.raises(FileNotFoundError) as raised:
        storage.read("f")
    assert "of-mine" not in f"{raised.value!r}{raised.value}"


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dagster_ckpt.filesystem.s3")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidConfiguration, match="Amazon S3 need the module 's3fs'") as raised:
        open_filesystem("s3://bucket/a")
    assert 'pip install "dagster-ckpt[s3]"' in raised.value.hint
