from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.format import manifest as metadata_module
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.errors import CheckpointFailure, CorruptCheckpoint, CorruptMetadata, UnknownMetadataVersion
from dagster_ckpt.filesystem import Stored
from dagster_ckpt.stored_json import seal

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
#: Members that no release reads: those that one reads have types of their own.
facts = st.dictionaries(text.map("its own {}".format), json_values, max_size=4)
names = st.lists(
    st.text("abcäß.-_ \n\"'", min_size=1, max_size=8).filter(lambda part: part not in {".", ".."}),
    min_size=1,
    max_size=4,
).map("/".join)


moments = st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)


def side_by_side(files: list[FileEntry]) -> bool:
    """Whether no name is both of a file and of a directory."""
    paths = [file.path for file in files]
    return not any(one != other and one.startswith(f"{other}/") for one in paths for other in paths)


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
        job_name=draw(st.sampled_from(["flights", "a", "_1.b-c"])),
        job_id=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        checkpoint_id=draw(st.integers(1, 2**40)),
        epoch=draw(st.integers(1, 2**31)),
        batch=draw(st.integers(0, 2**60)),
        mode=draw(st.sampled_from(["EXACTLY_ONCE", "AT_LEAST_ONCE"])),
        kind=draw(st.sampled_from(["checkpoint", "salvage", "fork", "rescale", "moved"])),
        restored_from=draw(st.none() | text),
        writer=draw(facts),
        triggered_at=draw(moments),
        written_at=draw(moments),
        timings_ms=draw(st.dictionaries(text, st.floats(0, 1e9), max_size=3)),
        new_bytes=draw(st.integers(0, 2**60)),
        facts=Facts.model_validate(draw(facts)),
        sink=draw(st.none() | facts),
        files=tuple(draw(st.lists(entries(), max_size=5, unique_by=lambda file: file.path).filter(side_by_side))),
        given_name=draw(st.none() | st.sampled_from(["before-upgrade", "2.0_a"])),
        note=draw(st.just("") | text),
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
    facts=Facts(query_id="q"),
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


def sealed_again(data: bytes) -> bytes:
    """As :func:`signed`, of a text that no program would write."""
    return seal(data[: data.rindex(b',\n "digest": ')])


def as_written(made: dict[str, Any]) -> bytes:
    """As :func:`signed`, with a file to a line."""
    head = json.dumps({key: value for key, value in made.items() if key != "files"}, indent=1).removesuffix("\n}")
    listed = made["files"]
    shown = json.dumps(listed)
    if isinstance(listed, list):
        shown = "[\n  " + ",\n  ".join(map(json.dumps, listed)) + "\n ]"
    return seal(
        f'{head},\n "files": {shown}\n'.removesuffix("\n").encode() + (b"" if isinstance(listed, list) else b"\n")
    )


def document(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(SMALL.encode())
    del made["digest"]
    return {**made, **changes}


def test_however_it_is_indented_it_is_read() -> None:
    assert signed(document()) != SMALL.encode()
    assert CheckpointMetadata.decode(signed(document()), "here") == SMALL


@given(manifests())
def test_only_what_an_older_release_does_not_know_makes_a_newer_version(metadata: CheckpointMetadata) -> None:
    version = json.loads(metadata.encode())["version"]
    copies = any(file.stored is not None for file in metadata.files)
    named = metadata.given_name or metadata.note
    assert version == (4 if metadata.kind in {"rescale", "moved"} else 3 if named else 2 if copies else 1)


def test_a_manifest_without_a_name_has_the_bytes_of_the_release_before_names() -> None:
    """The SHA-256 of what that release wrote; so the one reads what the other writes."""
    assert (
        hashlib.sha256(SMALL.encode()).hexdigest() == "1c81795220d964eba14b27d86129a65183d924a69cef44fce07643e7da05564d"
    )


@pytest.mark.parametrize(
    "wrong", [{"offset": 3}, {"sha256": "00"}, {"file": None, "text": ""}, {"text": ""}, {"file": "../../b"}]
)
def test_a_copy_lies_whole_under_a_name_of_its_own(wrong: dict[str, Any]) -> None:
    entry = {"path": "a", "size": 1, "crc32c": "AAAAAA==", "version": "7", "file": "../shared/a"}
    assert FileEntry.from_json(entry).stored == Stored(1, "7", "AAAAAA==")
    with pytest.raises(ValueError, match=r"."):
        FileEntry.from_json({name: value for name, value in {**entry, **wrong}.items() if value is not None})


@pytest.mark.parametrize("version", [0, 5, 99, "1", None])
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


@pytest.mark.parametrize(
    "names",
    [["a", "a"], ["a", "b", "a"], ["a", "a/b"], ["a/b/c", "a/b"], ["a/b/c/d", "x", "a"]],
)
@pytest.mark.parametrize("inline", [True, False])
def test_files_that_cannot_lie_side_by_side_are_refused(names: list[str], inline: bool) -> None:
    where = {"text": ""} if inline else {"file": "../shared/x"}
    files = [{"path": name, "size": 0, "sha256": hashlib.sha256(b"").hexdigest(), **where} for name in names]
    with pytest.raises(CorruptMetadata, match=r"is there twice|is a file and a directory"):
        CheckpointMetadata.decode(signed(document(files=files)), "here")
    entries = tuple(map(FileEntry.from_json, files))
    with pytest.raises(CheckpointFailure, match=r"is there twice|is a file and a directory"):
        replace(SMALL, files=entries).encode()


def test_names_that_only_look_alike_are_taken() -> None:
    entry = SMALL.files[1]
    names = ["a", "a.b", "a-b/c", "b/a", "ab/a", "..a/...", "a b/ c", "\u00e4/b"]
    like = replace(SMALL, files=tuple(entry._replace(path=name) for name in names))
    assert CheckpointMetadata.decode(like.encode(), "here") == like


NO_NUMBER = [True, "3", 3.0, -1, 2**63, 10**400, None, [], {}]


@pytest.mark.parametrize("value", NO_NUMBER)
@pytest.mark.parametrize("member", ["checkpoint.id", "checkpoint.epoch", "checkpoint.batch", "totals.new_bytes"])
def test_a_number_is_a_number(member: str, value: object) -> None:
    made = document()
    group, _, name = member.partition(".")
    made[group][name] = value
    with pytest.raises(CorruptMetadata, match="here is not a checkpoint's _metadata"):
        CheckpointMetadata.decode(signed(made), "here")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *[("size", value) for value in NO_NUMBER],
        *[("offset", value) for value in NO_NUMBER if value is not None],
        *[("sha256", value) for value in ("", "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", None, 3, ["a"])],
        *[("path", value) for value in ("", ".", "a/", "/a", "a//b", "a/./b", "a\0", "a" * 256, "a/" * 2000 + "a", 3)],
        *[("file", value) for value in ("", ".", "..", "../a", "../shared", "../shared/", "../shared/../a", 3, True)],
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_file_is_what_it_must_be(member: str, value: object, alone: bool) -> None:
    entry = {"path": "a", "size": 1, "sha256": "a" * 64, "file": "../shared/a", "offset": 0, member: value}
    made = document(files=[entry])
    data = signed(made) if alone else as_written(made)
    with pytest.raises(CorruptMetadata, match="here is not a checkpoint's _metadata"):
        CheckpointMetadata.decode(data, "here")


@pytest.mark.parametrize(("member", "value"), [("version", 7), ("version", "x" * 5000), ("crc32c", 3), ("md5", None)])
def test_a_copy_is_what_it_must_be(member: str, value: object) -> None:
    entry = {"path": "a", "size": 1, "crc32c": "AAAAAA==", "version": "7", "file": "../shared/a", member: value}
    with pytest.raises(CorruptMetadata, match="not a text of at most"):
        CheckpointMetadata.decode(signed(document(version=2, files=[entry])), "here")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("kind", "\x1b[31mred"),
        ("mode", "MAYBE"),
        ("written_at", ""),
        ("written_at", "yesterday"),
        ("written_at", "2026-01-01T00:00:00"),
        ("triggered_at", 3),
        ("timings_ms", {"pin": "3"}),
        ("timings_ms", {"pin": True}),
        ("restored_from", 3),
        ("restored_from", "x" * 5000),
        ("epoch", 10**10),
    ],
)
def test_what_a_checkpoint_says_of_itself_is_what_it_must_be(member: str, value: object) -> None:
    with pytest.raises(CorruptMetadata, match=f"checkpoint.{member}"):
        CheckpointMetadata.decode(signed(document(checkpoint={**document()["checkpoint"], member: value})), "here")


@pytest.mark.parametrize(
    "job", [{"name": "../x", "id": "a" * 32}, {"name": "control", "id": "a" * 32}, {"name": "a", "id": "../a"}]
)
def test_a_job_that_no_directory_can_be_of_is_refused(job: dict[str, str]) -> None:
    with pytest.raises(CorruptMetadata, match=r"job\."):
        CheckpointMetadata.decode(signed(document(job=job)), "here")


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("where", ["spark", "sink", "writer", "files"])
def test_what_lies_too_deep_is_refused(where: str) -> None:
    """Also so deep that a parser cannot follow; the document is put together as text for that."""
    marked = as_written(document(**{where: "deep" if where == "files" else {"deep": "here it is"}}))
    for depth in (101, 900, 100_000):
        deep = b"[" * depth + b"]" * depth
        whole = b"[\n  {" + b'"path": ' + deep + b"}\n ]"
        data = marked.replace(b'"deep"\n', whole) if where == "files" else marked.replace(b'"here it is"', deep)
        with pytest.raises(CorruptMetadata, match="not a checkpoint's _metadata"):
            CheckpointMetadata.decode(sealed_again(data), "here")
    if where != "files":
        bare = CheckpointMetadata.decode(signed(document(**{where: {"deep": nested(90)}})), "here")
        assert CheckpointMetadata.decode(bare.encode(), "here") == bare


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000])
@pytest.mark.parametrize("where", ["spark", "sink", "timings"])
def test_a_number_that_is_none_is_refused(where: str, number: bytes) -> None:
    made = document(sink={"value": 7331}) if where == "sink" else document(spark={"value": 7331})
    if where == "timings":
        made["checkpoint"]["timings_ms"] = {"pin": 7331}
        made["spark"] = {}
    data = as_written(made)
    assert data.count(b"7331") == 1
    with pytest.raises(CorruptMetadata, match="not a checkpoint's _metadata"):
        CheckpointMetadata.decode(sealed_again(data.replace(b"7331", number)), "here")


@pytest.mark.parametrize("member", ["spark", "writer", "sink"])
def test_text_that_is_no_text_is_refused(member: str) -> None:
    for wrong in ({"a": "\ud800"}, {"\udcff": 1}):
        body = json.dumps(document(**{member: wrong}), indent=1).encode().removesuffix(b"\n}")
        with pytest.raises(CorruptMetadata, match="not a checkpoint's _metadata"):
            CheckpointMetadata.decode(seal(body), "here")


@pytest.mark.parametrize(
    ("facts", "sink"),
    [({"rate": float("nan")}, None), ({"name": "\ud800"}, None), ({}, {"value": nested(200)}), ({"a": {1, 2}}, None)],
)
def test_what_nobody_could_read_again_is_not_written(facts: Any, sink: Any) -> None:
    with pytest.raises(CheckpointFailure, match="chk-7 of job 'flights' cannot be written") as caught:
        replace(SMALL, facts=Facts.model_validate(facts), sink=sink).encode()
    assert "JSON values" in caught.value.hint


def test_a_savepoint_that_needs_what_is_not_its_own_is_refused() -> None:
    """Its disposal would delete that."""
    savepoint = document(checkpoint={**document()["checkpoint"], "kind": "savepoint"})
    with pytest.raises(CorruptMetadata, match="refers to files outside its directory"):
        CheckpointMetadata.decode(signed(savepoint), "here")
    savepoint["files"][1]["file"] = "000003-x-1.sst"
    assert CheckpointMetadata.decode(signed(savepoint), "here").references == {"000003-x-1.sst"}


def test_a_manifest_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    data, otherwise = SMALL.encode(), signed(document())
    monkeypatch.setattr(metadata_module, "MOST_FILES", 1)
    for laid_out in (data, otherwise):
        with pytest.raises(CorruptMetadata, match="more than 1 files"):
            CheckpointMetadata.decode(laid_out, "here")
    with pytest.raises(CheckpointFailure, match="more than 1 files"):
        SMALL.encode()
    monkeypatch.setattr(metadata_module, "MOST_FILES", 2)
    monkeypatch.setattr(metadata_module, "LONGEST", len(data) - 1)
    with pytest.raises(CorruptMetadata, match=f"{len(data)} bytes, more than {len(data) - 1}"):
        CheckpointMetadata.decode(data, "here")
    with pytest.raises(CheckpointFailure, match="bytes, more than"):
        SMALL.encode()


@given(manifests())
def test_the_layout_makes_no_difference(metadata: CheckpointMetadata) -> None:
    made = json.loads(metadata.encode())
    del made["digest"]
    assert CheckpointMetadata.decode(signed(made), "here") == metadata


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
    assert replace(SMALL, epoch=2, checkpoint_id=12).key < SMALL.key


@pytest.mark.parametrize("name", ["../x", "a\udcff", "a" * 300])
def test_a_file_that_could_not_be_restored_is_not_written(name: str) -> None:
    with pytest.raises(CheckpointFailure, match="cannot be written"):
        replace(SMALL, files=(SMALL.files[0]._replace(path=name),)).encode()
