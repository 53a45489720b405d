"""A checkpointLocation of plain Spark, read without Spark: whole and untouched, or refused by name."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from dagster_ckpt.config.state_backend import LAYOUTS
from dagster_ckpt.errors import CheckpointError, CorruptCheckpoint, RestoreRefused, SinkMismatch
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from dagster_ckpt.spark.plain.location import PlainLocation, plain_location, read_location
from dagster_ckpt.spark.sinks.delta import DeltaSink
from dagster_ckpt.spark.sinks.iceberg import IcebergSink
from dagster_ckpt.spark.sinks.postgres import PostgresSink
from tests.helpers.checkpoint.memory import CopyingMemory
from tests.helpers.spark.stored_query import StoredQuery
from tests.servers.gcs import BUCKET, BucketServer, bucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.spark.sinks import Sink

_LAST = 5
_PLANNED_MS = 1_700_000_000_000


class JustAfter:
    """A clock at the moment of the last plan."""

    def time(self) -> float:
        return (_PLANNED_MS + _LAST) / 1000

    def monotonic(self) -> float:
        return 0.0


class OnDisk:
    """Writes files as Hadoop does, with a checksum file beside each."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, path: str, data: bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        chunks = [data[at : at + 512] for at in range(0, len(data), 512)]
        checksums = b"crc\0" + struct.pack(">I", 512) + b"".join(struct.pack(">I", zlib.crc32(each)) for each in chunks)
        file.with_name(f".{file.name}.crc").write_bytes(checksums)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredQuery, Path]:
    """A query that has committed batches up to the last, and planned the next."""
    root = tmp_path_factory.mktemp("written") / "plain"
    query = StoredQuery(OnDisk(root))
    query.begin()
    query.run(_LAST + 1)
    query.plan()
    return query, root


@pytest.fixture
def plain(written: tuple[StoredQuery, Path], tmp_path: Path) -> Path:
    """A copy of its location, to be damaged."""
    return Path(shutil.copytree(written[1], tmp_path / "plain"))


def needed(query: StoredQuery) -> dict[str, bytes]:
    """What the job must have of the location: also the plan of the batch in flight."""
    planned = (f"offsets/{_LAST + 1}", f"sources/0/{_LAST + 1}")
    return {**query.needed(_LAST), **{path: query.written[path] for path in planned}}


def read(pointer: str, directory: Path, wait: Callable[[float], object] = lambda _: None) -> PlainLocation | None:
    storage = PosixFileSystem(directory.parent / "storage")
    return plain_location(pointer, directory, like=storage, providers=LAYOUTS, clock=JustAfter(), wait=wait)


def laid_out(directory: Path) -> dict[str, bytes]:
    root = directory / "checkpoint"
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def photograph(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_all_that_the_query_needs(written: tuple[StoredQuery, Path], plain: Path, tmp_path: Path) -> None:
    before = photograph(plain)
    found = read(f"file://{plain}", tmp_path / "start")
    assert found is not None
    assert (found.pointer, found.metadata.batch, found.query.newest) == (str(plain), _LAST, _LAST + 1)
    query_id = json.loads((plain / "metadata").read_text())["id"]
    assert (found.metadata.facts.query_id, found.query.query_id) == (query_id, query_id)
    assert laid_out(tmp_path / "start") == needed(written[0])
    assert photograph(plain) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "start"]
    for file in (tmp_path / "start").rglob("*"):
        assert file.is_dir() or file.stat().st_nlink == 1, "it shares no file with the location"


def test_the_same_from_a_bucket(written: tuple[StoredQuery, Path], tmp_path: Path) -> None:
    bucket: FileSystem = CopyingMemory()
    query = written[0]
    for path, data in query.written.items():
        bucket.replace(f"moved/{path}", data)
    assert bucket.copies is not None
    location = StoredCheckpointLocation(bucket, bucket.copies, "moved")
    found = read_location(location, "gs://b/moved", tmp_path / "start", JustAfter(), lambda _: None)
    assert (found.metadata.batch, found.query.newest) == (_LAST, _LAST + 1)
    assert laid_out(tmp_path / "start") == needed(query)

    def goes_on(_: float) -> None:
        bucket.replace("moved/commits/6", b"v1\n{}")

    with pytest.raises(RestoreRefused, match="gs://b/moved is in use: commits/6 has changed"):
        read_location(location, "gs://b/moved", tmp_path / "again", JustAfter(), goes_on)


def test_by_its_url(written: tuple[StoredQuery, Path], tmp_path: Path, any_server: BucketServer) -> None:
    query = written[0]
    for path, data in query.written.items():
        any_server.put(BUCKET, f"plain/checkpoint/{path}", data)
    before = any_server.objects(BUCKET)
    pointer, storage = f"gs://{BUCKET}/plain/checkpoint/", bucket_of(any_server)
    found = plain_location(pointer, tmp_path / "start", like=storage, providers=LAYOUTS, clock=JustAfter())
    assert found is not None
    assert (found.pointer, found.metadata.batch) == (pointer[:-1], _LAST)
    assert laid_out(tmp_path / "start") == needed(query)
    assert any_server.objects(BUCKET) == before
    nothing = plain_location(f"{pointer}state", tmp_path / "other", like=storage, providers=LAYOUTS, clock=JustAfter())
    assert nothing is None
    any_server.put(BUCKET, "plain/begun", b"")
    with pytest.raises(RestoreRefused, match="is the live location of a job"):
        plain_location(pointer, tmp_path / "again", like=storage, providers=LAYOUTS, clock=JustAfter())


def test_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "other" / "offsets").mkdir(parents=True)
    for pointer in (tmp_path / "other", tmp_path / "not there", "gs:", "s3://[", "nul\0"):
        assert read(str(pointer), tmp_path / "start") is None


def test_a_query_that_goes_on(plain: Path, tmp_path: Path) -> None:
    """Its last two batches were planned a minute apart, so it is watched for the longest time."""
    put, waited = OnDisk(plain), list[float]()
    plan = (plain / "offsets" / f"{_LAST + 1}").read_text()
    put(f"offsets/{_LAST + 1}", plan.replace(f"{_PLANNED_MS + _LAST + 1}", f"{_PLANNED_MS + 60_000}").encode())

    def goes_on(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) >= 60:
            put(f"commits/{_LAST + 1}", b"v1\n{}")

    with pytest.raises(RestoreRefused, match=r"is in use: .*commits/.*6.* has changed while it was read") as refused:
        read(str(plain), tmp_path / "start", goes_on)
    assert "Stop the query" in refused.value.hint
    assert sum(waited) == pytest.approx(60)


def _damage(random: Random, file: Path) -> Iterator[None]:
    """Let one thing after the other have happened to a file; its checksum file stays. Then put it back."""
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
    for content in (bytes(flipped), data[: random.randrange(len(data))], data + b"\0", random.randbytes(40), b""):
        file.write_bytes(content)
        yield
    file.unlink()
    file.mkdir()
    yield
    file.rmdir()
    yield
    file.write_bytes(data)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 20))])
def test_whatever_is_damaged_is_found(
    written: tuple[StoredQuery, Path], plain: Path, tmp_path: Path, seed: int
) -> None:
    """For every file that the job would begin with: an error of this package, and nothing is changed."""
    random = Random(seed)
    for path in sorted(needed(written[0])):
        for _ in _damage(random, plain / path):
            before = photograph(plain)
            if path == "metadata" and not (plain / path).is_file():
                assert read(str(plain), tmp_path / "start") is None
                continue
            if path == f"offsets/{_LAST + 1}" and not (plain / path).exists():
                continue  # the batch was not planned
            with pytest.raises(CheckpointError) as refused:
                read(str(plain), tmp_path / "start")
            assert str(plain) in refused.value.message or path in refused.value.message
            assert refused.value.hint
            assert "next committed batch" not in refused.value.hint, "no batch follows: the query is stopped"
            assert photograph(plain) == before
            assert not (tmp_path / "start.taken-over").exists()
            shutil.rmtree(tmp_path / "start", ignore_errors=True)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"offsets/8": b"v1"}, "planned batch 8 and committed batch 5 only"),
        ({"commits/6": b"v3\n{}"}, "cannot be taken over"),
        ({"offsets/6": b"v9\n{}"}, "offsets/6 is of version 9"),
        ({"commits/5": b"v9\n{}"}, "commits/5 is of version 9"),
        ({"offsets/5": b"v1\n\n{}"}, "continuous processing"),
        ({"offsets/99999999999999999999": b"v1"}, "committed batch 5 only"),
        ({"state/7/_metadata/metadata": b"v1\n{}"}, "state/7/_metadata/metadata is not a whole entry"),
        ({"state/0/0/6.zip": b"PK"}, "state/0/0"),
    ],
)
def test_what_spark_would_misread(plain: Path, tmp_path: Path, odd: dict[str, bytes], said: str) -> None:
    for path, data in odd.items():
        OnDisk(plain)(path, data)
    before = photograph(plain)
    with pytest.raises(CheckpointError) as refused:
        read(str(plain), tmp_path / "start")
    assert said in refused.value.message
    assert photograph(plain) == before


def test_half_a_repartition(plain: Path, tmp_path: Path) -> None:
    plan = (plain / "offsets" / f"{_LAST + 1}").read_text()
    OnDisk(plain)(f"offsets/{_LAST + 1}", plan.replace('partitions": "2"', 'partitions": "3"').encode())
    with pytest.raises(RestoreRefused, match="batch 6 with another number of partitions than batch 5"):
        read(str(plain), tmp_path / "start")


def test_no_batch_is_committed(plain: Path, tmp_path: Path) -> None:
    shutil.rmtree(plain / "commits")
    with pytest.raises(RestoreRefused, match="has no committed batch") as refused:
        read(str(plain), tmp_path / "start")
    assert "start the job from nothing" in refused.value.hint


def test_a_checksum_file_of_other_bytes(plain: Path, tmp_path: Path) -> None:
    """Spark does not read such a file, either."""
    checksums = plain / "state" / "0" / "1" / f".{_LAST + 1}.zip.crc"
    for content in (b"", b"crc", b"crc\0\0\0\2\0", b"CRC\0\0\0\2\0\0\0\0\0", checksums.read_bytes() + b"\0\0\0\0"):
        checksums.write_bytes(content)
        with pytest.raises(CorruptCheckpoint, match=r"state/0/1/6\.zip of .* was changed"):
            read(str(plain), tmp_path / "start")
        shutil.rmtree(tmp_path / "start")


def test_the_live_location_of_a_job(plain: Path, tmp_path: Path) -> None:
    live = plain.rename(tmp_path / "checkpoint")
    (tmp_path / "begun").touch()
    with pytest.raises(RestoreRefused, match="is the live location of a job"):
        read(str(live), tmp_path / "start")


@pytest.mark.parametrize(
    "sink",
    [DeltaSink("table"), IcebergSink("local.table"), PostgresSink("host=127.0.0.1", "table")],
    ids=lambda s: s.kind,
)
def test_a_batch_in_flight_and_a_table(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: Sink
) -> None:
    """The table keeps what it holds when the job begins, so a batch that is half there must not run again.

    Unless the table tells that it does not have the batch: tests/jobs/delta/test_moving_in.py.
    """
    monkeypatch.setattr(sink, "take_over", lambda *_: None)
    monkeypatch.setattr(sink, "first_data", lambda: None)
    monkeypatch.setattr(sink, "seed", lambda *_: {"batch": _LAST})
    no_session = cast("SparkSession", None)
    found = read(str(plain), tmp_path / "start")
    assert found is not None
    with pytest.raises(SinkMismatch, match=f"has planned batch {_LAST + 1} .* the {sink.kind} sink") as refused:
        found.lay_out(tmp_path / "start", sink, no_session)
    assert "availableNow" in refused.value.hint
    for name in (f"{_LAST + 1}", f".{_LAST + 1}.crc"):
        (plain / "offsets" / name).unlink()
    finished = read(str(plain), tmp_path / "again")
    assert finished is not None
    assert finished.lay_out(tmp_path / "again", sink, no_session).position == {"batch": _LAST}
