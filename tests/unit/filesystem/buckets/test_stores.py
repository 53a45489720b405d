"""What a bucket of any kind gives a job, over the wire: lost replies, bad days, large files, and no surprises."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Barrier, Thread

import pytest

from dagster_ckpt.errors import PublishConflict, PublishUnknown, StorageError, StorageUnusable
from dagster_ckpt.filesystem import Entry, FileSystem, ObjectFileSystem, Stopped, Written, open_filesystem
from dagster_ckpt.filesystem.buckets import bucket as object_store
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers.gcs import bucket_of
from tests.unit.filesystem.buckets.checkpoints.life import live
from tests.unit.filesystem.buckets.stores import (
    AmazonStore,
    Asked,
    DisturbedStore,
    ForeignAmazonStore,
    GoogleStore,
    Plan,
    Store,
    Trouble,
    nothing,
)

PART = 1 << 18
LARGE = 2 * PART + 1
#: A request that stores something is not heard of.
UNHEARD = (Trouble.BUSY_AFTER, Trouble.LOST)
PASSING = (*UNHEARD, Trouble.BUSY, Trouble.RESET)
#: Seconds after which what waits for something waits for ever.
_DEADLINE = 90.0


def never() -> bool:
    return False


def times(count: int, kind: str, trouble: Trouble) -> Plan:
    """The first ``count`` requests of a kind go wrong."""
    left = iter(range(count))
    return lambda asked: trouble if asked.kind == kind and next(left, None) is not None else None


def always(kind: str, trouble: Trouble) -> Plan:
    return lambda asked: trouble if asked.kind == kind else None


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large here is so for few bytes."""
    monkeypatch.setattr(object_store, "CHUNK", PART)


@pytest.fixture
def hurried(disturbed: DisturbedStore) -> DisturbedStore:
    disturbed.hurry()
    return disturbed


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes((b"content!" * (LARGE // 8 + 1))[:LARGE])
    return path


class TestContract(FileSystemContract):
    @pytest.fixture
    def storage(self, store: Store) -> FileSystem:
        _parts_of_any_size(store)
        return store.storage()


class TestContractWithoutPrefix(FileSystemContract):
    """Where the prefix goes is the same for all stores, and moto is slow."""

    @pytest.fixture
    def storage(self, server: GcsServer) -> FileSystem:
        return bucket_of(server, "")


class TestMany:
    """Small requests that are sent together: what fails is asked for once more, and explained as any other."""

    @pytest.mark.parametrize("trouble", [None, Trouble.BUSY, Trouble.RESET])
    def test_reads_and_listings(self, hurried: DisturbedStore, trouble: Trouble | None) -> None:
        storage = hurried.storage()
        storage.write_many([(f"a/{number}", str(number).encode()) for number in range(5)], never)
        storage.create("b/c/d", b"")
        if trouble is not None:
            once = (times(1, "read", trouble), times(1, "list", trouble))
            hurried.plan(lambda asked: next((found for plan in once if (found := plan(asked))), None))
        assert storage.read_many(["a/3", "gone", "a/0"]) == [b"3", None, b"0"]
        listed = [sorted(entries) for entries in storage.list_many(["a", "gone", "b"])]
        assert listed == [
            [Entry(str(number), is_directory=False) for number in range(5)],
            [],
            [Entry("c", is_directory=True)],
        ]
        assert (list(storage.read_many([])), list(storage.list_many([]))) == ([], [])

    def test_what_is_refused_is_explained(self, disturbed: DisturbedStore) -> None:
        storage = disturbed.storage()
        storage.create("a/1", b"x")
        disturbed.plan(always("read", Trouble.REFUSED))
        with pytest.raises(StorageError, match="permission denied"):
            storage.read_many(["a/1"])
        disturbed.plan(always("list", Trouble.REFUSED))
        with pytest.raises(StorageError, match="permission denied"):
            storage.list_many(["a"])


class TestCreate:
    """It is settled by what is there."""

    @pytest.mark.parametrize("trouble", [*PASSING, Trouble.LIMITED])
    def test_one_whose_first_answer_is_lost_succeeds(self, hurried: DisturbedStore, trouble: Trouble) -> None:
        storage = hurried.storage()
        hurried.plan(times(1, "put", trouble))
        storage.create("a/f", b"mine")
        assert hurried.objects() == {"base/a/f": b"mine"}
        hurried.plan(times(1, "put", trouble))
        with pytest.raises(PublishConflict, match="://checkpoints/base/a/f"):
            storage.create("a/f", b"another's")
        assert hurried.objects() == {"base/a/f": b"mine"}

    @pytest.mark.parametrize("trouble", UNHEARD)
    def test_one_that_is_never_answered_is_read_back(self, hurried: DisturbedStore, trouble: Trouble) -> None:
        storage = hurried.storage()
        hurried.plan(always("put", trouble))
        storage.create("a/f", b"mine")
        with pytest.raises(PublishConflict):
            storage.create("a/f", b"another's")

    def test_nobody_knows_what_became_of_one_that_cannot_be_read_back(self, hurried: DisturbedStore) -> None:
        hurried.plan(lambda asked: Trouble.LOST if asked.kind == "put" else Trouble.RESET)
        with pytest.raises(PublishUnknown, match=r"Nobody can say whether .*://checkpoints/base/f was created"):
            hurried.storage().create("f", b"mine")
        assert hurried.objects() == {"base/f": b"mine"}

    def test_one_that_is_not_there_may_still_come(self, hurried: DisturbedStore) -> None:
        hurried.plan(always("put", Trouble.BUSY))
        with pytest.raises(PublishUnknown, match=r"Could not create .*://checkpoints/base/f"):
            hurried.storage().create("f", b"mine")

    def test_one_that_was_refused_did_not_happen(self, disturbed: DisturbedStore) -> None:
        disturbed.plan(always("put", Trouble.REFUSED))
        with pytest.raises(StorageError, match="permission denied on bucket 'checkpoints'") as raised:
            disturbed.storage().create("f", b"mine")
        assert not isinstance(raised.value, PublishUnknown)

    def test_one_that_is_put_off_may_still_come(self, hurried: DisturbedStore) -> None:
        hurried.plan(always("put", Trouble.LIMITED))
        with pytest.raises(PublishUnknown, match="takes no more requests"):
            hurried.storage().create("f", b"mine")

    @pytest.mark.parametrize(
        ("disturbed", "unanswered"),
        [
            ("gs", 1),
            ("gs", 5),
            ("s3", 1),
            ("s3", 6),  # botocore has given up before, and s3fs has begun anew
            pytest.param("disturbed-azurite", 1, marks=pytest.mark.integration),
        ],
        indirect=["disturbed"],
    )
    def test_a_refusal_says_nothing_of_the_requests_before_it(self, hurried: DisturbedStore, unanswered: int) -> None:
        """The network may hold those back, and they were signed while it was allowed."""
        lost = times(unanswered, "put", Trouble.RESET)
        hurried.plan(lambda asked: lost(asked) or always("put", Trouble.REFUSED)(asked))
        with pytest.raises(PublishUnknown, match="permission denied"):
            hurried.storage().create("f", b"mine")

    def test_a_store_that_ignores_the_condition_is_refused(self, disturbed: DisturbedStore) -> None:
        def forget(asked: Asked) -> None:
            if asked.kind == "put":
                disturbed.hold({})

        disturbed.plan(forget)
        with pytest.raises(StorageUnusable, match="let one file be created twice"):
            disturbed.storage().probe()


class TestDataFiles:
    def test_a_large_one_comes_back_and_overwrites_nothing(self, store: Store, large: Path, tmp_path: Path) -> None:
        """The condition holds until the last of its requests: whoever was first meanwhile keeps the name."""
        _parts_of_any_size(store)
        storage = store.storage()
        written = storage.write("shared/f", large, never)
        assert storage.write("shared/f", large, never) == written, "it has its own name already"
        assert store.objects() == {"base/shared/f": large.read_bytes()}
        assert storage.fetch("shared/f", tmp_path / "back") == written
        store.put("base/shared/f", b"another's")
        with pytest.raises(StorageError, match="exists already and holds something else"):
            storage.write("shared/f", large, never)
        assert store.objects() == {"base/shared/f": b"another's"}

    def test_of_many_that_upload_one_large_file_one_wins(self, store: Store, tmp_path: Path) -> None:
        _parts_of_any_size(store)
        storage, at_once = store.storage(), Barrier(8)

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
        assert store.objects() == {"base/shared/f": bytes([told.index("")]) * (PART + 1)}

    @pytest.mark.parametrize("trouble", PASSING)
    @pytest.mark.parametrize("kind", ["put", "begin", "part", "last"])
    def test_one_whose_answer_is_lost_is_there_once(
        self, hurried: DisturbedStore, large: Path, trouble: Trouble, kind: str
    ) -> None:
        storage = hurried.storage()
        left = iter([trouble])
        hurried.plan(lambda asked: next(left, None) if kind in {asked.kind, _last(hurried, asked)} else None)
        written = storage.write("shared/f", b"content" if kind == "put" else large, never)
        assert next(left, None) is None
        hurried.plan(nothing)
        assert storage.checksum("shared/f") == written
        # Of an upload that was begun without an answer nobody knows the number; a lifecycle rule of the bucket does.
        assert hurried.unfinished_uploads == (kind == "begin" and trouble in UNHEARD)

    @pytest.mark.parametrize("cancelling", [None, Trouble.BUSY, Trouble.REFUSED])
    @pytest.mark.parametrize("trouble", UNHEARD)
    def test_one_whose_last_answer_is_never_heard_is_there(
        self, hurried: DisturbedStore, large: Path, trouble: Trouble, cancelling: Trouble | None
    ) -> None:
        """Whatever cancelling the upload comes to: it is over, and nothing is left of it to cancel."""

        def plan(asked: Asked) -> Trouble | None:
            if asked.kind == "cancel":
                return cancelling
            return trouble if asked.kind == "put" or _last(hurried, asked) else None

        hurried.plan(plan)
        storage = hurried.storage()
        sources: dict[str, Path | bytes] = {"large": large, "small": b"content"}
        for name, source in sources.items():
            assert storage.write(f"shared/{name}", source, never) == storage.checksum(f"shared/{name}")

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("answers", ["lost once", "never heard"])
    def test_one_that_takes_all_memory_is_settled_within_it(
        self, hurried: DisturbedStore, large: Path, monkeypatch: pytest.MonkeyPatch, answers: str
    ) -> None:
        monkeypatch.setattr(object_store, "_MOST_IN_FLIGHT", 2 * PART)
        storage = hurried.storage()
        lost: set[str] = set()

        def plan(asked: Asked) -> Trouble | None:
            if asked.kind != "put" and not _last(hurried, asked):
                return None
            again = asked.name in lost
            lost.add(asked.name)
            return None if again and answers == "lost once" else Trouble.LOST

        hurried.plan(plan)
        sources: dict[str, Path | bytes] = {"large": large, "small": bytes(PART)}
        for name, source in sources.items():
            assert storage.write(f"shared/{name}", source, never) == storage.checksum(f"shared/{name}")
        assert {f"base/shared/{name}" for name in sources} <= lost

    @pytest.mark.parametrize("disturbed", ["s3"], indirect=True)  # whose server here has a thread for each request
    def test_all_in_flight_lose_their_answers_at_once(
        self, hurried: DisturbedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = 12
        monkeypatch.setattr(object_store, "_MOST_IN_FLIGHT", count * 2 * PART)
        storage, under_way, lost = hurried.storage(), Barrier(count), set[str]()

        def plan(asked: Asked) -> Trouble | None:
            if asked.kind != "put" or asked.name in lost:
                return None
            lost.add(asked.name)
            under_way.wait(_DEADLINE)
            return Trouble.LOST

        hurried.plan(plan)
        written: Queue[tuple[str, Written]] = Queue()

        def write(path: str) -> None:
            written.put((path, storage.write(path, bytes(PART), never)))

        for number in range(count):
            Thread(target=write, args=(f"shared/{number}",), daemon=True).start()
        found = dict(written.get(timeout=_DEADLINE) for _ in range(count))
        assert {f"base/{path}" for path in found} == lost
        assert all(storage.checksum(path) == told for path, told in found.items())

    @pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.RESET, Trouble.REFUSED])
    def test_one_that_fails_leaves_nothing(self, hurried: DisturbedStore, large: Path, trouble: Trouble) -> None:
        hurried.plan(always("part", trouble))
        with pytest.raises(StorageError, match=r"Could not write .*://checkpoints/base/shared/f") as raised:
            hurried.storage().write("shared/f", large, never)
        assert not isinstance(raised.value, StorageUnusable), "it is no missing bucket"
        assert hurried.objects() == {}
        assert hurried.unfinished_uploads == 0

    def test_one_that_is_stopped_leaves_nothing(self, hurried: DisturbedStore, large: Path) -> None:
        storage = hurried.storage()
        with pytest.raises(Stopped):
            storage.write("shared/f", b"x", lambda: True)
        assert hurried.log == [], "nothing is sent before the first byte"
        with pytest.raises(Stopped):
            storage.write("shared/f", large, lambda: any(asked.kind == "part" for asked in hurried.log))
        assert [asked.kind for asked in hurried.log] == ["begin", "part", "cancel"]
        assert hurried.objects() == {}
        assert hurried.unfinished_uploads == 0

    @pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b"\n--==0==", b"--==0==--", b"\r\n0\r\n\r\n"])
    def test_no_end_of_one_is_taken_for_the_end_of_a_request(self, store: Store, end: bytes) -> None:
        store.storage().write("shared/f", b"content" + end, never)
        store.storage().create("g", end)
        assert store.objects() == {"base/shared/f": b"content" + end, "base/g": end}


def _last(store: Store, asked: Asked) -> str | None:
    """``last``, if it is what completes the upload of a large file: with gs:// the part that has the last byte."""
    completes = asked.kind == "part" and asked.size == 1 if isinstance(store, GoogleStore) else asked.kind == "complete"
    return "last" if completes else None


_UPLOADER = """
import json, resource, sys
from pathlib import Path
from dagster_ckpt.filesystem import open_filesystem

storage = open_filesystem(sys.argv[1], storage_options=json.loads(sys.argv[2]))
storage.create("f", b"connected")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sources = [(Path(path), int(count)) for path, count in zip(sys.argv[3::2], sys.argv[4::2])]
items = [(f"shared/{source.name}-{number}", source) for source, count in sources for number in range(count)]
storage.write_many(items, lambda: False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_what_is_held_in_memory_is_bounded(disturbed: DisturbedStore, tmp_path: Path) -> None:
    """Many megabytes go up, in small files and in large ones. Were they read at once, all would be in memory."""
    kinds = {"small": (4 << 20, 48), "large": (24 << 20, 8)}
    sources: list[str] = []
    for name, (size, count) in kinds.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        sources += [str(tmp_path / name), str(count)]
    disturbed.server.forget = "base/shared/"
    _parts_of_any_size(disturbed)
    storage = disturbed.storage()
    child = subprocess.run(
        [sys.executable, "-c", _UPLOADER, storage.url, json.dumps(storage.storage_options), *sources],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 256 << 10  # KiB
    assert sum(asked.size for asked in disturbed.log) >= 384 << 20


class TestWhatIsThere:
    def test_what_another_did_is_seen_at_once(self, store: Store) -> None:
        storage = store.storage()
        storage.create("job/a", b"1")
        assert len(storage.list("job")) == 1
        store.put("base/job/b", b"2")
        store.discard("base/job/a")
        assert storage.list("job") == [Entry("b", is_directory=False)]
        store.put("base/job/b", b"longer than before")
        assert storage.read("job/b") == b"longer than before"
        assert storage.size("job/b") == 18

    def test_a_listing_of_many_pages(self, disturbed: DisturbedStore) -> None:
        for number in range(1200):
            disturbed.put(f"base/job/chk-{number}/_metadata", b"")
        disturbed.put("base/job/file", b"")
        disturbed.put("base/job-of-another/chk-1/_metadata", b"")
        expected = {Entry(f"chk-{number}", is_directory=True) for number in range(1200)}
        assert set(disturbed.storage().list("job")) == expected | {Entry("file", is_directory=False)}
        assert [asked.kind for asked in disturbed.log] == ["list", "list"]

    def test_one_request_is_enough(self, disturbed: DisturbedStore) -> None:
        """Nobody is asked for the type of a bucket first, as the client does that gcsfs gives by default."""
        storage = disturbed.storage()
        storage.create("f", b"1")
        storage.read("f")
        storage.list("")
        storage.size("f")
        storage.remove("f")
        assert [asked.kind for asked in disturbed.log] == ["put", "read", "list", "stat", "delete"]

    def test_a_deletion_whose_answer_is_lost_is_done(self, hurried: DisturbedStore) -> None:
        storage = hurried.storage()
        storage.create("f", b"1")
        hurried.plan(times(1, "delete", Trouble.BUSY_AFTER))
        storage.remove("f")
        assert hurried.objects() == {}

    def test_it_goes_through_a_fork_and_into_a_pickle(self, store: Store) -> None:
        storage = store.storage()
        storage.create("f", b"from the parent")
        assert pickle.loads(pickle.dumps(storage)).read("f") == b"from the parent"
        child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(storage,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert storage.read("from the child") == b"1"

    def test_a_job_takes_subsumes_and_goes_on(self, store: Store, tmp_path: Path) -> None:
        live(store.storage, tmp_path)
        assert {name.split("/")[0] for name in store.objects()} == {"base"}
        assert b"of-mine" not in b"".join(store.objects().values()), "no secret is stored"


def _in_a_child(storage: ObjectFileSystem) -> None:
    assert storage.read("f") == b"from the parent"
    storage.create("from the child", b"1")


def operations(storage: ObjectFileSystem) -> list[Callable[[], object]]:
    """What a job does with a storage."""
    return [
        lambda: storage.write("shared/f", b"x", never),
        lambda: storage.read("f"),
        lambda: storage.list("job"),
        lambda: storage.remove("f"),
        lambda: storage.replace("f", b"x"),
        storage.probe,
    ]


class TestBadDays:
    def test_a_bucket_that_is_not_there(self, store: Store, large: Path) -> None:
        storage = store.storage(bucket="no-such-bucket")
        told = f"there is no {store.called} 'no-such-bucket'"
        for write in (storage.probe, lambda: storage.write("f", b"x", never), lambda: storage.write("f", large, never)):
            with pytest.raises(StorageUnusable, match=told) as raised:
                write()
            assert store.creates in raised.value.hint

    @pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.EXPIRED, Trouble.LIMITED, Trouble.BUSY])
    def test_one_that_does_not_pass_is_told_with_the_way_on(self, hurried: DisturbedStore, trouble: Trouble) -> None:
        hurried.plan(lambda asked: trouble)
        message, hint = hurried.told[trouble]
        for operation in operations(hurried.storage()):
            with pytest.raises(StorageError, match=message) as raised:
                operation()
            assert "checkpoints" in str(raised.value)
            assert hint in raised.value.hint
            assert "of-mine" not in str(raised.value), "no secret is told"

    @pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.LIMITED, Trouble.RESET])
    def test_one_that_passes_is_not_noticed(self, hurried: DisturbedStore, trouble: Trouble) -> None:
        storage = hurried.storage()
        for operation in (lambda: storage.create("f", b"1"), *operations(storage)):
            hurried.plan(_first(3, trouble))
            operation()
        assert hurried.objects() == {"base/f": b"x", "base/shared/f": b"x"}


def _first(count: int, trouble: Trouble) -> Plan:
    left = iter(range(count))
    return lambda asked: trouble if next(left, None) is not None else None


def test_options_go_with_a_storage_to_others_of_its_kind_only(disturbed: DisturbedStore) -> None:
    storage = disturbed.storage()
    own, other = ("s3a", "gs") if isinstance(disturbed, AmazonStore) else ("gcs", "s3")
    assert open_filesystem(f"{own}://other/a", like=storage).storage_options == storage.storage_options
    assert not open_filesystem(f"{other}://other/a", like=storage).storage_options


def _parts_of_any_size(store: Store) -> None:
    """Moto and versitygw take none below five megabytes, as Amazon does; what is large here is not."""
    if isinstance(store, AmazonStore):
        store.hurry()
    if isinstance(store, ForeignAmazonStore):
        store.take_whole()
