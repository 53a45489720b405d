from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.metadata import CheckpointMetadata, FileEntry
from dagster_ckpt.errors import CorruptCheckpoint, CorruptMetadata, UnknownMetadataVersion
from dagster_ckpt.filesystem import Stored

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
facts = st.dictionaries(text, json_values, max_size=4)
names = st.lists(
    st.text("abcäß.-_ \n\"'", min_size=1, max_size=8).filter(lambda part: part != ".."), min_size=1, max_size=4
).map("/".join)


@st.composite
def entries(draw: st.DrawFn) -> FileEntry:
    data = draw(st.binary(max_size=40) | text.map(str.encode))
    digest = hashlib.sha256(data).hexdigest()
    if draw(st.booleans()):
        return FileEntry(draw(names), len(data), digest, inline=data)
    size, offset = draw(st.integers(0, 2**60)), draw(st.none() | st.integers(0, 2**60))
    if draw(st.booleans()):
        md5 = draw(st.none() | st.just("1B2M2Y8AsgTpgAmY7PhCfg=="))
        stored = Stored(size, draw(text), draw(st.sampled_from([None, "AAAAAA==", "yZRlqg=="])), md5)
        return FileEntry(draw(names), size, None, reference="../shared/" + draw(names), stored=stored)
    return FileEntry(draw(names), size, digest, reference="../shared/" + draw(names), offset=offset)


@st.composite
def manifests(draw: st.DrawFn) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_name=draw(text),
        job_id=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        checkpoint_id=draw(st.integers(1, 2**40)),
        epoch=draw(st.integers(1, 2**31)),
        batch=draw(st.integers(0, 2**60)),
        mode=draw(st.sampled_from(["EXACTLY_ONCE", "AT_LEAST_ONCE"])),
        kind=draw(st.sampled_from(["checkpoint", "salvage"])),
        restored_from=draw(st.none() | text),
        writer=draw(facts),
        triggered_at=draw(text),
        written_at=draw(text),
        timings_ms=draw(st.dictionaries(text, st.floats(0, 1e9), max_size=3)),
        new_bytes=draw(st.integers(0, 2**60)),
        facts=draw(facts),
        sink=draw(st.none() | facts),
        files=tuple(draw(st.lists(entries(), max_size=5))),
    )


SMALL = CheckpointMetadata(
    job_name="flights",
    job_id="0" * 31 + "1",
    checkpoint_id=7,
    epoch=3,
    batch=41,
    mode="EXACTLY_ONCE",
    kind="checkpoint",
    restored_from="0" * 31 + "1/chk-5",
    writer={"run_id": "r", "host": "h", "pid": 1},
    triggered_at="2026-01-01T00:00:00.000+00:00",
    written_at="2026-01-01T00:00:01.000+00:00",
    timings_ms={"pin": 3.5},
    new_bytes=12,
    facts={"query_id": "q"},
    sink=None,
    files=(
        FileEntry("checkpoint/offsets/41", 3, hashlib.sha256(b"v1\n").hexdigest(), inline=b"v1\n"),
        FileEntry("checkpoint/state/0/0/1.sst", 9, "ab" * 32, reference="../shared/000003-x-1.sst"),
    ),
)


@given(manifests())
def test_round_trip(metadata: CheckpointMetadata) -> None:
    assert CheckpointMetadata.decode(metadata.encode(), "here") == metadata


@given(manifests())
def test_any_json_reader_reads_it(metadata: CheckpointMetadata) -> None:
    document = json.loads(metadata.encode())
    assert document["checkpoint"]["id"] == metadata.checkpoint_id
    assert document["totals"]["files"] == len(metadata.files)
    assert document["totals"]["bytes"] == metadata.size
    assert len(document["files"]) == len(metadata.files)


def test_a_person_can_read_it() -> None:
    shown = SMALL.encode().decode()
    lines = shown.splitlines()
    assert ' "version": 1,' in lines
    assert '  "batch": 41,' in lines
    assert '  "restored_from": "00000000000000000000000000000001/chk-5",' in lines
    assert lines[-2].startswith(' "digest": "sha256:')
    assert sum(line.startswith('  {"path": ') for line in lines) == len(SMALL.files), "a file to a line"


def test_every_truncation_is_found() -> None:
    data = SMALL.encode()
    for cut in range(len(data)):
        with pytest.raises(CorruptMetadata, match="here") as raised:
            CheckpointMetadata.decode(data[:cut], "here")
        assert "dagster-ckpt list" in raised.value.hint


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(SMALL.encode())
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint):
                CheckpointMetadata.decode(bytes(data), "here")
            data[position] ^= 1 << bit
    assert CheckpointMetadata.decode(bytes(data), "here") == SMALL


@given(st.binary(min_size=1, max_size=10), st.booleans())
def test_added_bytes_are_found(extra: bytes, before: bool) -> None:
    data = extra + SMALL.encode() if before else SMALL.encode() + extra
    with pytest.raises(CorruptMetadata):
        CheckpointMetadata.decode(data, "here")


@given(st.binary(max_size=300) | text.map(str.encode))
def test_what_was_never_ours_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptMetadata, match="here"):
        CheckpointMetadata.decode(data, "here")


def signed(document: object) -> bytes:
    """As written by somebody who knows how to compute the digest."""
    body = json.dumps(document, indent=1, ensure_ascii=False).encode().removesuffix(b"\n}")
    return body + b',\n "digest": "sha256:' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def document(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(SMALL.encode())
    del made["digest"]
    return {**made, **changes}


def test_however_it_is_indented_it_is_read() -> None:
    assert signed(document()) != SMALL.encode()
    assert CheckpointMetadata.decode(signed(document()), "here") == SMALL


@given(manifests())
def test_only_files_that_their_store_copied_make_it_version_2(metadata: CheckpointMetadata) -> None:
    version = json.loads(metadata.encode())["version"]
    assert version == (2 if any(file.stored is not None for file in metadata.files) else 1)


@pytest.mark.parametrize(
    "wrong", [{"offset": 3}, {"sha256": "00"}, {"file": None, "text": ""}, {"text": ""}, {"file": "../../b"}]
)
def test_a_copy_lies_whole_under_a_name_of_its_own(wrong: dict[str, Any]) -> None:
    entry = {"path": "a", "size": 1, "crc32c": "AAAAAA==", "version": "7", "file": "../shared/a"}
    assert FileEntry.from_json(entry).stored == Stored(1, "7", "AAAAAA==")
    with pytest.raises(ValueError, match=r"."):
        FileEntry.from_json({name: value for name, value in {**entry, **wrong}.items() if value is not None})


@pytest.mark.parametrize("version", [0, 3, 99, "1", None])
@pytest.mark.parametrize("same_digest", [True, False])
def test_an_unknown_version_is_refused_by_name(version: object, same_digest: bool) -> None:
    data = signed(document(version=version)) if same_digest else json.dumps(document(version=version)).encode()
    with pytest.raises(UnknownMetadataVersion, match=f"here has metadata version {version!r}") as raised:
        CheckpointMetadata.decode(data, "here")
    assert "release" in raised.value.hint


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../x", "text": ""},
        {"path": "a/../../x", "text": ""},
        {"path": "/etc/passwd", "text": ""},
        {"path": "x", "file": "/etc/passwd"},
        {"path": "x", "file": "../../../other/shared/x"},
        {"path": "x", "file": "../shared/../../x"},
        {"path": "x", "file": "a/../../x"},
        {"path": "x", "file": ".."},
        {"path": "../x", "file": "../shared/x"},
    ],
)
def test_paths_that_leave_the_checkpoint_are_refused(entry: dict[str, str]) -> None:
    files = [{"size": 0, "sha256": hashlib.sha256(b"").hexdigest(), **entry}]
    with pytest.raises(CorruptMetadata, match="leaves the checkpoint"):
        CheckpointMetadata.decode(signed(document(files=files)), "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "something else"},
        {"job": "flights"},
        {"files": 3},
        {"files": [{"path": "x", "size": 1, "sha256": "a"}]},
        {"files": [{"path": "x", "size": 1, "sha256": "a", "text": "b", "file": "../shared/x"}]},
        {"files": [{"path": "x", "size": 1, "sha256": "a", "base64": "no base64!"}]},
        {"files": [{"path": 5, "size": 1, "sha256": "a", "text": "b"}]},
        {"files": [{"path": "x", "size": "many", "sha256": "a", "text": "b"}]},
        {"files": [["x"]]},
        {"checkpoint": {}},
    ],
)
def test_a_signed_document_that_is_no_manifest_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadata, match=r"here is not a checkpoint's _metadata"):
        CheckpointMetadata.decode(signed(document(**changes)), "here")


def test_a_digest_protects_what_a_person_edits() -> None:
    edited = SMALL.encode().replace(b'"batch": 41', b'"batch": 40')
    assert edited != SMALL.encode()
    with pytest.raises(CorruptMetadata, match="was changed"):
        CheckpointMetadata.decode(edited, "here")


def test_order_and_names() -> None:
    assert SMALL.key == (3, 7)
    assert SMALL.name == "chk-7"
    assert SMALL.reference == "0" * 31 + "1/chk-7"
    assert SMALL.size == 12
    assert SMALL.references == {"../shared/000003-x-1.sst"}
    assert SMALL.with_timing("write", 2.0).timings_ms == {"pin": 3.5, "write": 2.0}
    assert replace(SMALL, epoch=2, checkpoint_id=12).key < SMALL.key
