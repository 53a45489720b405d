"""What a bucket gives a job, over the wire: faults, lost replies, bad input, and what goes on when it is great."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.errors import (
    InvalidConfiguration,
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import Entry, Stopped, Written, gcs, open_filesystem
from dagster_ckpt.filesystem.gcs import GcsFileSystem
from dagster_ckpt.testing.gcs_server import Alter, Answer, Fault, GcsServer, Hang, Request, Reset
from tests.gcs import BUCKET, BucketServer, bucket_of


@pytest.fixture
def storage(server: GcsServer) -> GcsFileSystem:
    return bucket_of(server)


def never() -> bool:
    return False


def times(count: int, kind: str, fault: Fault) -> Callable[[Request], Fault | None]:
    """The first ``count`` requests of a kind go wrong."""
    left = iter(range(count))

    def plan(request: Request) -> Fault | None:
        return fault if request.kind == kind and next(left, None) is not None else None

    return plan


# --- a create is settled by what is there ---------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [Answer(503, after=True), Reset(after=True), Answer(503), Reset(), Answer(429)])
def test_a_create_whose_first_answer_is_lost_succeeds(server: GcsServer, storage: GcsFileSystem, fault: Fault) -> None:
    server.plan = times(1, "insert", fault)
    storage.create("a/f", b"mine")
    assert server.objects(BUCKET) == {"base/a/f": b"mine"}
    server.plan = times(1, "insert", fault)
    with pytest.raises(PublishConflict, match="gs://checkpoints/base/a/f"):
        storage.create("a/f", b"another's")
    assert server.objects(BUCKET) == {"base/a/f": b"mine"}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [Answer(503, after=True), Reset(after=True)])
def test_a_create_that_is_never_answered_is_read_back(server: GcsServer, storage: GcsFileSystem, fault: Fault) -> None:
    server.plan = lambda request: fault if request.kind == "insert" else None
    storage.create("a/f", b"mine")
    with pytest.raises(PublishConflict):
        storage.create("a/f", b"another's")


@pytest.mark.usefixtures("impatient")
def test_nobody_knows_what_became_of_a_create_that_cannot_be_read_back(
    server: GcsServer, storage: GcsFileSystem
) -> None:
    server.plan = lambda request: Reset(after=request.kind == "insert")
    with pytest.raises(PublishUnknown, match="Nobody can say whether gs://checkpoints/base/f was created"):
        storage.create("f", b"mine")
    assert server.objects(BUCKET) == {"base/f": b"mine"}


@pytest.mark.usefixtures("impatient")
def test_a_create_that_is_not_there_may_still_come(server: GcsServer, storage: GcsFileSystem) -> None:
    server.plan = lambda request: Answer(503) if request.kind == "insert" else None
    with pytest.raises(PublishUnknown, match="Could not create gs://checkpoints/base/f"):
        storage.create("f", b"mine")


def test_a_create_that_was_refused_did_not_happen(server: GcsServer, storage: GcsFileSystem) -> None:
    server.plan = lambda request: Answer(403) if request.kind == "insert" else None
    with pytest.raises(StorageError, match="permission denied on bucket 'checkpoints'") as raised:
        storage.create("f", b"mine")
    assert not isinstance(raised.value, PublishUnknown)
    assert "roles/storage.objectUser" in raised.value.hint


def test_a_request_that_hangs_is_repeated_and_may_arrive_after_all(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "_SILENCE", 0.2)
    storage = bucket_of(server)
    server.plan = times(1, "insert", Hang(0.6))
    storage.create("f", b"mine")
    assert [request.kind for request in server.log].count("insert") == 2
    storage.create("f", b"mine")
    assert server.objects(BUCKET) == {"base/f": b"mine"}


# --- data files -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [1 << 10, 9 << 20])
@pytest.mark.parametrize("fault", [Answer(503, after=True), Reset(after=True), Answer(503), Reset()])
def test_a_data_file_whose_answer_is_lost_is_there_once(
    server: GcsServer, storage: GcsFileSystem, tmp_path: Path, fault: Fault, size: int
) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * (size // 256))
    server.plan = times(1, "append" if size > 8 << 20 else "insert", fault)
    written = storage.write("shared/f", tmp_path / "f", never)
    server.plan = lambda request: None
    assert storage.checksum("shared/f") == written
    assert written.size == size


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("heard", [Answer(503), Answer(404), Answer(499), None])
@pytest.mark.parametrize("fault", [Answer(503, after=True), Reset(after=True)])
@pytest.mark.parametrize("source", ["file", "bytes"])
def test_a_file_whose_last_answer_is_never_heard_is_there(
    server: GcsServer, storage: GcsFileSystem, tmp_path: Path, fault: Fault, heard: Answer | None, source: str
) -> None:
    """Whatever cancelling the upload comes to: it is over, and nothing is left of it to cancel."""
    data = bytes(range(256)) * (9 << 12)
    (tmp_path / "f").write_bytes(data)
    last = len(data) - (8 << 20) if source == "file" else len(data)

    def plan(request: Request) -> Fault | None:
        if request.kind == "cancel":
            return heard
        return fault if request.kind in {"append", "insert"} and request.size == last else None

    server.plan = plan
    written = storage.write("shared/f", tmp_path / "f" if source == "file" else data, never)
    assert written == Written(len(data), hashlib.sha256(data).hexdigest())
    assert server.objects(BUCKET) == {"base/shared/f": data}


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


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b"\n--==0==", b"--==0==--"])
def test_no_end_of_a_file_is_taken_for_the_end_of_a_request(
    any_server: BucketServer, tmp_path: Path, end: bytes
) -> None:
    storage = bucket_of(any_server)
    storage.write("shared/f", b"content" + end, never)
    storage.create("g", end)
    assert any_server.objects(BUCKET) == {"base/shared/f": b"content" + end, "base/g": end}


def test_a_file_of_several_requests_is_whole_and_overwrites_nothing(any_server: BucketServer, tmp_path: Path) -> None:
    """The precondition is kept until the last of them: whoever was first meanwhile keeps the name."""
    storage = bucket_of(any_server)
    data = bytes(range(256)) * (20 << 12)
    (tmp_path / "f").write_bytes(data)
    written = storage.write("shared/f", tmp_path / "f", never)
    assert storage.checksum("shared/f") == written
    assert any_server.objects(BUCKET) == {"base/shared/f": data}
    any_server.put(BUCKET, "base/shared/f", b"another's")
    with pytest.raises(StorageError, match="holds something else"):
        storage.write("shared/f", tmp_path / "f", never)
    assert any_server.objects(BUCKET) == {"base/shared/f": b"another's"}


def test_a_stop_before_the_first_byte_sends_nothing(server: GcsServer, storage: GcsFileSystem) -> None:
    with pytest.raises(Stopped):
        storage.write("shared/f", b"x", lambda: True)
    assert not server.log


def test_a_stopped_upload_leaves_nothing(server: GcsServer, storage: GcsFileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(40 << 20))

    def stop() -> bool:
        return any(request.kind == "append" for request in server.log)

    with pytest.raises(Stopped):
        storage.write("shared/f", tmp_path / "f", stop)
    assert server.objects(BUCKET) == {}
    assert server.unfinished_uploads == 0
    assert sum(request.size for request in server.log) < 20 << 20


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


_UPLOADER = """
import resource, sys
from pathlib import Path
from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.gcs import GcsFileSystem

storage = GcsFileSystem("checkpoints", "base", {"endpoint_url": sys.argv[1], "token": "anon"})
storage.create("f", b"connected")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
storage.write_many([(f"shared/{number}", Path(sys.argv[2])) for number in range(int(sys.argv[3]))], lambda: False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("size", [4 << 20, 24 << 20])
def test_what_is_held_in_memory_is_bounded(server: GcsServer, tmp_path: Path, size: int) -> None:
    """Half a gigabyte goes up. Were the files read all at once, it would be in memory more than once."""
    (tmp_path / "f").write_bytes(bytes(size))
    server.forget = "base/shared/"
    child = subprocess.run(
        [sys.executable, "-c", _UPLOADER, server.url, str(tmp_path / "f"), str((512 << 20) // size)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 256 << 10  # KiB


# --- what is there --------------------------------------------------------------------------------------------------


def test_a_listing_of_many_pages(server: GcsServer, storage: GcsFileSystem) -> None:
    for number in range(2500):
        server.put(BUCKET, f"base/job/chk-{number}/_metadata", b"")
    server.put(BUCKET, "base/job/file", b"")
    server.put(BUCKET, "base/job-of-another/chk-1/_metadata", b"")
    assert set(storage.list("job")) == {Entry(f"chk-{number}", is_directory=True) for number in range(2500)} | {
        Entry("file", is_directory=False)
    }
    assert len(server.log) == 3


def test_what_another_did_is_seen_at_once(any_server: BucketServer) -> None:
    storage = bucket_of(any_server)
    storage.create("job/a", b"1")
    assert len(storage.list("job")) == 1
    any_server.put(BUCKET, "base/job/b", b"2")
    any_server.discard(BUCKET, "base/job/a")
    assert storage.list("job") == [Entry("b", is_directory=False)]
    any_server.put(BUCKET, "base/job/b", b"longer than before")
    assert storage.read("job/b") == b"longer than before"
    assert storage.size("job/b") == 18


@pytest.mark.usefixtures("impatient")
def test_a_deletion_whose_answer_is_lost_is_done(server: GcsServer, storage: GcsFileSystem) -> None:
    storage.create("f", b"1")
    server.plan = times(1, "delete", Answer(503, after=True))
    storage.remove("f")
    assert server.objects(BUCKET) == {}


def _in_a_child(storage: GcsFileSystem) -> None:
    assert storage.read("f") == b"from the parent"
    storage.create("from the child", b"1")


def test_it_goes_through_a_fork_and_into_a_pickle(any_server: BucketServer) -> None:
    storage = bucket_of(any_server)
    storage.create("f", b"from the parent")
    copied = pickle.loads(pickle.dumps(storage))
    assert copied.read("f") == b"from the parent"
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(storage,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.read("from the child") == b"1"


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there(any_server: BucketServer) -> None:
    storage = GcsFileSystem("no-such-bucket", options={"endpoint_url": any_server.url, "token": "anon"})
    with pytest.raises(StorageUnusable, match="there is no bucket 'no-such-bucket'") as raised:
        storage.probe()
    assert "gcloud storage buckets create gs://no-such-bucket" in raised.value.hint


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        (Answer(403, message="no storage.objects.create access"), "permission denied on bucket", "objectUser"),
        (Answer(401, message="Invalid Credentials"), "credentials for bucket 'checkpoints'", "gcloud auth"),
        (Answer(429, message="rateLimitExceeded"), "takes no more requests", "interval"),
        (Answer(503, message="backendError"), "backendError", "next checkpoint tries again"),
    ],
)
def test_what_a_bucket_refuses_is_told_with_the_way_on(
    server: GcsServer, storage: GcsFileSystem, answer: Answer, message: str, hint: str
) -> None:
    server.plan = lambda request: answer
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


def test_a_zonal_bucket_is_refused(server: GcsServer, storage: GcsFileSystem) -> None:
    server.plan = lambda request: (
        Alter(lambda answer: answer.replace(b'"region"', b'"zone"')) if request.kind == "bucket" else None
    )
    with pytest.raises(StorageUnusable, match="is a zonal bucket"):
        storage.probe()


def test_an_emulator_that_ignores_preconditions_is_refused(server: GcsServer, storage: GcsFileSystem) -> None:
    def overwrite(request: Request) -> None:
        if request.kind == "insert":
            server.objects(BUCKET)
            for name in server.objects(BUCKET):
                server.discard(BUCKET, name)

    server.plan = overwrite
    with pytest.raises(StorageUnusable, match="let one file be created twice"):
        storage.probe()


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("gs://", "no name of a bucket"),
        ("gs://UPPER/x", "no name of a bucket"),
        ("gs://bucket/a?b", "more in it than a bucket"),
        ("gs://bucket/a#b", "more in it than a bucket"),
        ("gs://user:hidden@bucket/a", "more in it than a bucket"),
        ("gs://bucket/a/../b", "takes for names"),
        ("simplecache::gs://bucket/a", "chain of file systems"),
    ],
)
def test_a_path_that_is_not_what_it_seems(location: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as raised:
        open_filesystem(location)
    assert raised.value.hint
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("location", ["gs://bucket/a/b", "gs://bucket//a/b/", "gcs://bucket/a//b"])
def test_one_place_has_one_name(location: str) -> None:
    assert open_filesystem(location, storage_options={"token": "anon"}).url == "gs://bucket/a/b"


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


def test_nobody_is_asked_for_the_type_of_a_bucket(server: GcsServer, storage: GcsFileSystem) -> None:
    """The client that gcsfs gives by default asks another API first, for a minute where it cannot be reached."""
    storage.create("f", b"1")
    assert [request.kind for request in server.log] == ["insert"]
