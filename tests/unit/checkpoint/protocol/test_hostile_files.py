"""Whatever a file of the storage says, who reads it gets a result or an error of this package, and writes nowhere else.

Valid documents are changed by structure (any value becomes any other, under the checksum that belongs to it) and by
byte (under the old checksum). The control records have a test of their own kind beside :mod:`records`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.catalog.pointers import resolve_checkpoint_pointer
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive, PlanArchiveWriter
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.taking.savepoint_files import dispose_savepoint
from dagster_ckpt.datastream.storage_access import (
    CheckpointStorageLocationReference,
    decode_path_from_reference,
    encode_path_as_reference,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import PosixFileSystem, Stored, inside, open_filesystem
from dagster_ckpt.spark.batches.plans import PlannedBatches, forget_plan, lay_out, planned_files, planned_offsets
from dagster_ckpt.spark.capture.rocksdb_files import changelog_lineage, snapshot_members
from dagster_ckpt.spark.files.bucket_location import UnreadableStateFile
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import parse_commit, parse_offsets, parse_operator, parse_query_id
from dagster_ckpt.spark.files.prepare import prepare_location
from dagster_ckpt.spark.preflight.source_files import SourceFiles
from dagster_ckpt.spark.sinks.recorded_positions import RecordedPositions
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink
from dagster_ckpt.spark.sinks.transactional_file_sink import TransactionalFileSink
from dagster_ckpt.spark.sinks.transactions import TransactionLog, decode_files
from dagster_ckpt.stored_json import seal
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST
from tests.helpers.spark.live_location import LiveLocation
from tests.jobs.harness import tree
from tests.unit.checkpoint.protocol.hostile import changed, damaged
from tests.unit.spark.sinks.transactional import TransactionalJob

JOB = MANIFEST.job_name


def mutations(documents: Any, encode: Callable[[Any], bytes], body_of: Callable[[bytes], bytes] | None = None) -> Any:
    """Files: a document changed and encoded, or encoded and damaged, with the checksum anew or not."""

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        if draw(st.booleans()):
            return encode(changed(draw, documents))
        data = encode(documents)
        if body_of is None or draw(st.booleans()):
            return damaged(draw, data)
        return seal(damaged(draw, body_of(data)))

    return made()


def sealed_body(data: bytes) -> bytes:
    return data[: data.rindex(b',\n "digest": ')]


@contextlib.contextmanager
def domain_errors() -> Iterator[None]:
    with contextlib.suppress(CheckpointError):
        yield


@dataclass
class Place:
    """A directory for one example, with files of the user's around it that nobody may touch."""

    root: Path

    def fresh(self) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "canary").mkdir(parents=True)
        (self.root / "canary" / "secret").write_text("the user's")
        for number in range(12):
            (self.root / "canary" / str(number)).write_text("the user's")
        (self.root / "here" / "here").mkdir(parents=True)
        return self.root / "here" / "here"

    def check(self, here: Path) -> None:
        assert {path.name for path in self.root.iterdir()} == {"canary", "here"}
        assert list((self.root / "here").iterdir()) == [here]
        assert tree(self.root / "canary") == self._canary

    @property
    def _canary(self) -> Mapping[str, bytes]:
        names = ["secret", *map(str, range(12))]
        return dict.fromkeys(names, b"the user's")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


# --- manifests -------------------------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


SAVEPOINT = replace(
    MANIFEST,
    kind="savepoint",
    facts=Facts.model_validate(
        {
            "query_id": "q",
            "watermark_ms": 3,
            "state_store_provider": None,
            "operators": [{"id": "0", "name": "x", "partitions": 2, "stores": ["default"]}],
            "sources": [{"id": "0", "offset": {"logOffset": 3}}],
            "sql_confs": {"spark.sql.shuffle.partitions": "2"},
            "progress": {"batch": 1, "rows_per_second": 1.5},
        }
    ),
    sink={"kind": "file", "path": "/out", "batch": 1},
    timings_ms={"pin": 1.5},
    files=(
        FileEntry("checkpoint/offsets/1", 3, sha256(b"v1\n"), inline=b"v1\n"),
        FileEntry("checkpoint/state/0/0/1.sst", 4, sha256(b"pack"), reference="0-pack", offset=0),
        FileEntry("checkpoint/state/0/0/2.sst", 4, sha256(b"more"), reference="0-pack", offset=4),
        FileEntry("checkpoint/commits/1", 5, sha256(b"whole"), reference="0-whole"),
        FileEntry(
            "checkpoint/state/0/0/3.sst",
            5,
            None,
            reference="0-whole",
            stored=Stored(5, "7", md5=base64.b64encode(hashlib.md5(b"whole").digest()).decode()),
        ),
    ),
)


def document_of(metadata: CheckpointMetadata) -> Any:
    document = json.loads(metadata.encode())
    del document["digest"]
    return document


def encoded(document: Any) -> bytes:
    """As :meth:`CheckpointMetadata.encode` lays it out, where it can."""
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        return seal(json.dumps(document, indent=1).encode().removesuffix(b"\n}"))
    head = json.dumps({key: value for key, value in document.items() if key != "files"}, indent=1)
    files = ",\n  ".join(map(json.dumps, document["files"]))
    return seal(f'{head.removesuffix(chr(10) + "}")},\n "files": [\n  {files}\n ]'.encode())


manifests = mutations(document_of(SAVEPOINT), encoded, sealed_body)


def read_savepoint(place: Place, data: bytes) -> None:
    here = place.fresh()
    savepoint = here / "savepoint-000000-000000000000"
    savepoint.mkdir()
    (savepoint / "0-pack").write_bytes(b"packmore")
    (savepoint / "0-whole").write_bytes(b"whole")
    (savepoint / METADATA_FILE_NAME).write_bytes(data)
    storage = PosixFileSystem(here)
    catalog = CheckpointCatalog(storage, JOB)
    with domain_errors():
        metadata = catalog.resolve(str(savepoint))
        verify_checkpoint(catalog, metadata)
        materialize_checkpoint(catalog, metadata, here / "materialized")
        assert CheckpointMetadata.decode(metadata.encode(), "again") == replace(metadata, location=None)
    with domain_errors():
        dispose_savepoint(storage, savepoint.name)
    place.check(here)


# --- the archive of plans --------------------------------------------------------------------------------------------


def archived(root: Path) -> Path:
    live = LiveLocation(root, interval=3)
    live.run(2)
    live.plan(2)
    live.plan(3)
    return root


def archive_files(scratch: Path) -> dict[str, bytes]:
    storage = PosixFileSystem(scratch / "archive")
    plans = PlannedBatches(CheckpointLocation(archived(scratch / "live")), -1).new()
    first = PlanArchiveWriter(storage, JOB, JOB_ID, 1, lambda: None)
    first.begin(-1, None, [])
    first.append(plans)
    second = PlanArchiveWriter(storage, JOB, JOB_ID, 2, lambda: None)
    second.begin(1, 1, plans[2:3])
    return {
        file.relative_to(scratch / "archive").as_posix(): file.read_bytes()
        for file in sorted((scratch / "archive").rglob("*"))
        if file.is_file()
    }


def lines_encoded(lines: Any) -> bytes:
    shown = lines if isinstance(lines, list) else [lines]
    return with_checksum("".join(f"{json.dumps(line)}\n" for line in shown).encode())


def with_checksum(body: bytes) -> bytes:
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n"


@st.composite
def archives(draw: st.DrawFn, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of an archive, some of which are changed, exchanged or gone."""
    made = dict(files)
    for path in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2)):
        lines = [json.loads(line) for line in files[path].splitlines()[:-1]]
        match draw(st.sampled_from(["change", "change", "old form", "damage", "seal", "exchange"])):
            case "change":
                made[path] = lines_encoded(changed(draw, lines))
            case "old form":
                made[path] = lines_encoded(changed(draw, lines[1:]))
            case "damage":
                made[path] = damaged(draw, files[path])
            case "seal":
                made[path] = with_checksum(damaged(draw, files[path].rpartition(b"sha256:")[0]))
            case _:
                made[path] = files[draw(st.sampled_from(sorted(files)))]
    return made


def read_archive(place: Place, files: Mapping[str, bytes]) -> None:
    here = place.fresh()
    for path, data in files.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(data)
    archive = PlanArchive(PosixFileSystem(here), JOB, JOB_ID)
    checkpoint = replace(MANIFEST, batch=0, epoch=1)
    reads: list[Callable[[], object]] = [
        archive.newest,
        archive.batches,
        archive.newest_batch,
        lambda: archive.planned(2),
        lambda: archive.line_through(checkpoint),
        lambda: archive.newest_after(-1),
    ]
    for read in reads:
        with domain_errors():
            read()
    plans = []
    with domain_errors():
        plans = archive.after(checkpoint)
    for plan in plans:
        live = LiveLocation(here / "live" / "checkpoint", interval=3)
        live.run(plan.batch)
        for use in (planned_files, planned_offsets, lambda found: SourceFiles.of([found])):
            with domain_errors():
                use(plan)
        with domain_errors():
            lay_out(plan, live.path)
        shutil.rmtree(here / "live")
    place.check(here)


# --- what Spark has in a checkpointLocation --------------------------------------------------------------------------


@st.composite
def locations(draw: st.DrawFn, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a checkpointLocation, one of whose lines is changed, or one of whose files is damaged."""
    made = dict(files)
    for path in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2)):
        lines = made[path].decode(errors="replace").split("\n")
        number = draw(st.integers(0, len(lines) - 1))
        try:
            value = json.loads(lines[number])
        except (RecursionError, ValueError):
            made[path] = damaged(draw, made[path])
            continue
        prefix = draw(st.sampled_from(["", "", "../../../canary:", "0:"]))
        lines[number] = prefix + json.dumps(changed(draw, value))
        made[path] = "\n".join(lines).encode()
    return made


def read_location(place: Place, files: Mapping[str, bytes]) -> None:
    here = place.fresh()
    for path, data in files.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(data)
    location = CheckpointLocation(here)
    reads: list[Callable[[], object]] = [
        location.query_id,
        lambda: location.offsets(3).partitions,
        lambda: location.commit(1),
        lambda: PlannedBatches(location, -1).new(),
        lambda: location.operators(1),
    ]
    for read in reads:
        with domain_errors():
            read()
    with domain_errors():
        prepare_location(here)
    with domain_errors():
        forget_plan(here, 3)
    for path, data in files.items():
        text = data.decode(errors="replace")
        for parse in (parse_offsets, parse_commit, parse_operator):
            with domain_errors():
                parse(text, path)
        with domain_errors():
            parse_query_id(text)
    place.check(here)


# --- sinks -----------------------------------------------------------------------------------------------------------


def sink_record(fields: Any) -> bytes:
    if isinstance(fields, dict) and fields.get("version") == 2:
        return seal(json.dumps(fields).removesuffix("}").encode())
    return json.dumps(fields).encode()


LISTED = {"version": 2, "files": [["part-0", 4, 0, "000001-ab"], ["k=1/part-1", 4, 0, "000001-ab"]]}
LINE = {"version": 2, "epoch": 1, "attempts": {"000001-ab": None}, "unique": "u"}
POSITION = {"kind": "transactional", "path": "/x", "batch": 0, "attempt": "000001-ab"}


@st.composite
def transactional(draw: st.DrawFn) -> dict[str, Any]:
    """A savepoint's list and position, and what the sink has on record."""
    made: dict[str, Any] = {"list": sink_record(LISTED), "line": sink_record(LINE), "position": POSITION}
    match draw(st.sampled_from(["list", "list", "line", "commits", "position"])):
        case "line":
            made["line"] = draw(mutations(LINE, sink_record, sealed_body))
        case "position":
            made["position"] = changed(draw, POSITION)
        case which:
            made[which] = draw(mutations(LISTED, sink_record, sealed_body))
    return made


def read_transactional(place: Place, made: Mapping[str, Any]) -> None:
    here = place.fresh()
    job = TransactionalJob(here)
    hidden, files = job.sink / "_transactions", here / "files"
    for where in (hidden / "line", hidden / "commits", hidden / "pending/000001-ab/0/k=1", files / "pending"):
        where.mkdir(parents=True)
    for name in ("part-0", "k=1/part-1"):
        (hidden / "pending/000001-ab/0" / name).write_text("rows")
    (hidden / "line" / "0000000001.json").write_bytes(made["line"])
    if "commits" in made:
        (hidden / "commits" / "0-000000000000-00000000.json").write_bytes(made["commits"])
    (files / "pending" / "0").write_bytes(made["list"])
    shutil.copy(files / "pending" / "0", hidden / "pending/000001-ab/0.json")
    sink = TransactionalFileSink(job.sink)
    position = made["position"] if isinstance(made["position"], dict) else {}
    for use in (
        lambda: sink.check(position, files),
        lambda: sink.rollback_to(position, files, 2),
        sink.committed_files,
        sink.newest_batch,
        sink.first_data,
        lambda: sink.rollback_to_nothing(0.0, 3),
        TransactionLog(hidden).line,
        lambda: decode_files(made["list"], "here"),
    ):
        with domain_errors():
            use()
    positions = RecordedPositions(here)
    (here / "positions").mkdir()
    (here / "positions" / "0").write_bytes(made["list"])
    with domain_errors():
        positions.pin_position(0, lambda source, _: source)
    place.check(here)


ENTRY = {"path": "file:///x/part-0", "size": 4, "modificationTime": 0, "action": "add", "isDir": False}


@st.composite
def sink_logs(draw: st.DrawFn) -> bytes:
    body = json.dumps(changed(draw, ENTRY)) if draw(st.booleans()) else json.dumps(ENTRY)
    data = f"v1\n{body}\n".encode()
    return damaged(draw, data) if draw(st.booleans()) else data


def read_sink_log(place: Place, data: bytes) -> None:
    """Entries of a checkpoint's log may name files anywhere: these are looked at, and never changed."""
    here = place.fresh()
    log = here / "log"
    log.mkdir()
    canary = (place.root / "canary" / "secret").as_uri().encode()
    (log / "0").write_bytes(data.replace(b"file:///x/part-0", canary).replace(b'"size": 4', b'"size": 10'))
    sink = FileSink(here / "out")
    for use in (lambda: sink.check(log), lambda: sink.rollback_to(log, 0), sink.committed_files):
        with domain_errors():
            use()
    place.check(here)


# --- files of RocksDB that name others -------------------------------------------------------------------------------

SNAPSHOT = {"sstFiles": [{"dfsSstFileName": "1-a.sst", "sizeBytes": 3}], "logFiles": [], "numKeys": 1}
LINEAGE = [{"version": 2, "checkpointUniqueId": "ab"}]


def zipped(metadata: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("metadata", metadata)
    return made.getvalue()


def changelog(lineage: bytes) -> bytes:
    """One raw block of an LZ4 stream, with the version and the lineage as Java writes texts."""
    plain = b"".join(struct.pack(">H", len(text) & 0xFFFF) + text for text in (b"v3", lineage))
    return b"LZ4Block" + struct.pack("<BiiI", 0x15, len(plain), len(plain), 0) + plain


@st.composite
def state_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    archive = zipped(b"v1\n" + json.dumps(changed(draw, SNAPSHOT)).encode())
    log = changelog(json.dumps(changed(draw, LINEAGE)).encode())
    return (damaged(draw, archive), damaged(draw, log)) if draw(st.booleans()) else (archive, log)


def read_state_files(place: Place, made: tuple[bytes, bytes]) -> None:
    here = place.fresh()
    (here / "1.zip").write_bytes(made[0])
    (here / "2_ab.changelog").write_bytes(made[1])
    with contextlib.suppress(UnreadableStateFile):
        for member in snapshot_members(here / "1.zip"):
            assert member.size >= 0
            assert inside(member.path).count("/") == 1
    with contextlib.suppress(UnreadableStateFile):
        assert all(item.version >= 0 and inside(item.unique_id) for item in changelog_lineage(here / "2_ab.changelog"))
    place.check(here)


# --- paths and pointers ----------------------------------------------------------------------------------------------

pieces = """file:// s3:// gs:// abfs:// hdfs:// ~ [ ] / .. : @ % %00 # ? :: nouser chk-1 _metadata 999999 bucket"""
pointers = st.lists(
    st.sampled_from([*pieces.split(), "\0", "\ud800", "\n", "x" * 300, "\u2100", " "]) | st.text(max_size=3), max_size=6
).map("".join)


def open_pointer(place: Place, pointer: str) -> None:
    here = place.fresh()
    if pointer.startswith(("s3://", "gs://", "abfs://", "hdfs://")) and "[" not in pointer and "\ud800" not in pointer:
        return  # it would be asked for over the network
    for use in (open_filesystem, encode_path_as_reference, resolve_checkpoint_pointer):
        with domain_errors():
            use(pointer)
    with domain_errors():
        decode_path_from_reference(CheckpointStorageLocationReference(pointer.encode(errors="surrogatepass")))
    with contextlib.suppress(ValueError):
        name = inside(pointer)
        assert os.path.normpath(here / name).startswith(f"{here}/")
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("")
    place.check(here)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("valid")
    location = {
        file.relative_to(scratch / "live2").as_posix(): file.read_bytes()
        for file in sorted(archived(scratch / "live2").rglob("*"))
        if file.is_file()
    }
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "x"},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": 1, "stateSchemaFilePaths": ["/x/_stateSchema/a"]}],
    }
    location["state/0/_metadata/v2/0"] = f"v2\n{json.dumps(operator)}".encode()
    location["state/0/_stateSchema/a"] = b"schema"
    location["metadata"] = b'{"id":"q"}'
    return {
        "a savepoint's manifest": (manifests, read_savepoint, SAVEPOINT.encode()),
        "the archive of plans": (archives(files := archive_files(scratch)), read_archive, files),
        "a checkpointLocation": (locations(location), read_location, location),
        "a transactional sink": (transactional(), read_transactional, None),
        "the log of a file sink": (sink_logs(), read_sink_log, None),
        "files of RocksDB": (state_files(), read_state_files, None),
        "a pointer": (pointers, open_pointer, None),
    }


KINDS = [
    "a savepoint's manifest",
    "the archive of plans",
    "a checkpointLocation",
    "a transactional sink",
    "the log of a file sink",
    "files of RocksDB",
    "a pointer",
]


def look(examples: dict[str, Any], place: Place, kind: str, count: int) -> None:
    strategy, read, _ = examples[kind]

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def fuzz(made: Any) -> None:
        read(place, made)

    fuzz()


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_or_an_error_of_this_package(examples: dict[str, Any], place: Place, kind: str) -> None:
    look(examples, place, kind, 100)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_or_an_error_of_this_package_many_times(examples: dict[str, Any], place: Place, kind: str) -> None:
    look(examples, place, kind, 4_000)


def test_what_is_not_changed_is_read(examples: dict[str, Any], place: Place) -> None:
    """Otherwise all of the above could be refusals of what is valid."""
    here = place.fresh()
    savepoint = here / "savepoint-000000-000000000000"
    savepoint.mkdir()
    (savepoint / "0-pack").write_bytes(b"packmore")
    (savepoint / "0-whole").write_bytes(b"whole")
    (savepoint / METADATA_FILE_NAME).write_bytes(examples["a savepoint's manifest"][2])
    catalog = CheckpointCatalog(PosixFileSystem(here), JOB)
    materialize_checkpoint(catalog, catalog.resolve(str(savepoint)), here / "materialized")
    assert len(tree(here / "materialized")) == 5
    (here / "1.zip").write_bytes(zipped(b"v1\n" + json.dumps(SNAPSHOT).encode()))
    assert snapshot_members(here / "1.zip") == (("SSTs/1-a.sst", 3),)
    (here / "2_ab.changelog").write_bytes(changelog(json.dumps(LINEAGE).encode()))
    assert changelog_lineage(here / "2_ab.changelog") == ((2, "ab"),)
    for path, data in examples["the archive of plans"][2].items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(data)
    archive = PlanArchive(PosixFileSystem(here), JOB, JOB_ID)
    plans = archive.newest_after(1)
    assert [plan.batch for plan in plans] == [2]
    live = LiveLocation(here / "live" / "checkpoint", interval=3)
    live.run(2)
    lay_out(plans[0], live.path)
    assert CheckpointLocation(live.path).planned() == 2
    job = TransactionalJob(here / "sink")
    start = job.start(None)
    start.write()
    checkpoint = start.take()
    job.start(checkpoint)
    job.assert_exact(checkpoint.rows)
