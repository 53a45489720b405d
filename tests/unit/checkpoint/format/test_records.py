"""The one door of control records: what comes in is what was written, or is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dagster_ckpt.checkpoint.control.deletion_log import Deletion, _Decision
from dagster_ckpt.checkpoint.control.driver_messages import _Chunk
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim, End, Settled
from dagster_ckpt.checkpoint.control.failures import Failure
from dagster_ckpt.checkpoint.control.heartbeat import FailedCheckpoints, Heartbeat
from dagster_ckpt.checkpoint.control.job_records import _Owner
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    CancelRequest,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
    _Begun,
    _Bell,
)
from dagster_ckpt.checkpoint.control.taken_savepoints import NamedSavepoint, RecordedSavepoint
from dagster_ckpt.checkpoint.format import records
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion, Upgrade
from dagster_ckpt.checkpoint.format.records import Moved, encode_record, read_record
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.start_traces import StartTrace, Step
from dagster_ckpt.checkpoint.submissions import Submission, _Outcome
from dagster_ckpt.checkpoint.taking.savepoint_files import _Claimed, _Disposal
from dagster_ckpt.errors import CorruptRecord, InvalidConfiguration
from dagster_ckpt.stored_json import seal
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import as_version_1, fields_of, resealed
from tests.helpers.checkpoint.record_types import record_types

LINEAGE = "0123456789abcdef" * 2
PLACE = "flights/control/some/record"
RECORDS: list[Any] = [
    Claim(3, "token", 2, "run-1", "host/boot", 17, "2026-11-23T10:00:00.000+00:00"),
    Choice(
        LINEAGE,
        f"{LINEAGE}/chk-7",
        8,
        7,
        "/live",
        "host/boot",
        "/sink",
        "the newest",
        accepted_loss=("one row",),
        complete=(5, 7),
        sink_position='{"kind": "delta"}',
        elsewhere="the file sink /before",
        moved=Moved("{}", f"{LINEAGE}/chk-7"),
        code=CodeVersion("2", Upgrade("1", f"{LINEAGE}/chk-7", 3, "2026-11-23T10:00:00.000+00:00")),
    ),
    End("FAILED", "version 2 failed", False, "2026-11-23T10:00:00.000+00:00", taken_back="2", returns_to="1"),
    Settled({LINEAGE: [1, 2]}),
    Failure("run-1", 1, 1.5, 4, "it broke", kind="QueryFailed", plan="0a"),
    Pin(f"{LINEAGE}/chk-7", "audit", "2026-11-23T10:00:00.000+00:00", LINEAGE),
    Quarantined(f"{LINEAGE}/chk-7", "a bit", 3, "run-1", "host", "2026-11-23T10:00:00.000+00:00"),
    Deletion(3, LINEAGE, (1, 2), ("000001-0123456789ab-x",), "subsumed", LINEAGE),
    SavepointRequest(LINEAGE, "/savepoints", stop=True, asked_at=1.0, until=2.0),
    Answer(1.0, TakenSavepoint("/savepoints/savepoint-012345-0123456789ab", 3, 4, 5, 6, 0.5)),
    RecordedSavepoint(LINEAGE, 3, 8, None, "/savepoints/savepoint-012345-0123456789ab"),
    Heartbeat(
        3,
        "run-1",
        (ProcessIdentity("host/boot", 17, 1.0),),
        5,
        2.0,
        uptime=9.0,
        failed_checkpoints=FailedCheckpoints(2, "the storage is full", 8.5, 4),
        due_since=7.0,
    ),
    StartTrace(3, "run-1", "2026-11-23T10:00:00.000+00:00", True, (Step("session", 0.5, 4.0, "monotonic"),)),
    _Owner("dagster"),
    _Disposal(("a", "b")),
    _Claimed("flights", LINEAGE),
    CancelRequest("run-1", 1.0),
    Submission("run-1", 2, 1, '{"restore_from": "latest"}', 1.0, 4),
    _Outcome(3),
    _Chunk(('{"method": "opened", "params": {}}',)),
    _Begun(3, 1.0),
    _Bell(LINEAGE),
    NamedSavepoint("before-upgrade", "/savepoints/savepoint-012345-0123456789ab", "a note", None, LINEAGE, 3, 8, "now"),
    _Decision((2,)),
]
IDS = [type(record).__name__ for record in RECORDS]

HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**15, 10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "../x", "/etc/passwd", "a\0b", "x" * 9000, "0" * 32, f"{LINEAGE}/chk-0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def read(record: Any, data: bytes, place: str = PLACE) -> Any:
    memory = MemoryFileSystem()
    memory.files[place] = data
    return read_record(memory, place, type(record))


def test_every_kind_of_record_is_among_these() -> None:
    assert {type(record) for record in RECORDS} == record_types()


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_what_is_written_is_read(record: Any) -> None:
    data = encode_record(record, PLACE)
    assert read(record, data) == record
    json.loads(data)  # people and other programs read it, too


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_of_an_earlier_release_is_read(record: Any) -> None:
    assert read(record, as_version_1(encode_record(record, PLACE))) == record


def test_what_an_older_release_must_not_overlook_has_a_version_that_it_refuses() -> None:
    memory = MemoryFileSystem()
    requests = SavepointRequests(memory, "flights")
    says_more = [{"name": "nightly-1"}, {"note": "before 2.0"}, {"series": "nightly"}, {"checkpoint": True}]
    for number, more in enumerate([{}, *says_more]):
        request = SavepointRequest(f"{number:032x}", None, False, float(number), 9.0, **more)  # type: ignore[arg-type]
        requests.ask(request)
        data = memory.files[f"flights/control/requests/r-{request.token}"]
        assert json.loads(data)["version"] == (3 if more else 2)
    assert [asked.request.kind for asked in requests.unread()] == ["savepoint"] * 4 + ["checkpoint"]


def test_a_request_of_the_release_before_names_asks_for_a_savepoint() -> None:
    """As that release wrote it, byte for byte."""
    place = f"flights/control/requests/r-{LINEAGE}"
    body = (
        f'{{\n "version": 2,\n "place": "{place}",\n "token": "{LINEAGE}",\n "target": "/savepoints",\n'
        ' "stop": true,\n "asked_at": 1.0,\n "until": 2.0'
    )
    memory = MemoryFileSystem()
    memory.files[place] = seal(body.encode())
    (request,) = SavepointRequests(memory, "flights").open()
    assert request == SavepointRequest(LINEAGE, "/savepoints", stop=True, asked_at=1.0, until=2.0)
    assert not request.checkpoint


def test_an_answer_of_the_release_before_names_has_no_name() -> None:
    """As that release wrote it, byte for byte."""
    place = f"flights/control/requests/r-{LINEAGE}.answer"
    body = (
        f'{{\n "version": 2,\n "place": "{place}",\n "answered_at": 1.0,\n "savepoint": {{\n  "pointer": "/s/x",\n'
        '  "checkpoint_id": 8,\n  "batch": 7,\n  "files": 2,\n  "size": 100,\n  "seconds": 0.5\n },\n "error": "",\n'
        ' "hint": "",\n "withdrawn": false'
    )
    memory = MemoryFileSystem()
    memory.files[place] = seal(body.encode())
    assert SavepointRequests(memory, "flights").answer_to(LINEAGE) == Answer(
        1.0, TakenSavepoint("/s/x", 8, 7, 2, 100, 0.5)
    )


#: By record, the members that records of earlier releases lack, and what that means.
UNSAID: dict[type, dict[str, object]] = {
    Claim: {"lease": Lease(2.0, 30.0)},
    End: {"taken_back": None, "returns_to": None, "savepoint": None},
    NamedSavepoint: {"generation": 1, "request": None},
    Submission: {"number": 0},
    Failure: {"recoverable": True, "kind": "", "plan": None},
    SavepointRequest: {"name": None, "note": "", "series": None, "checkpoint": False},
    Answer: {"savepoint": None, "error": "", "hint": "", "withdrawn": False},
    Choice: {
        **dict.fromkeys(
            ("claimed", "sink_kind", "fallback", "forked_from", "complete", "spark_version", "moved", "is_bounded")
        ),
        "accepted_loss": (),
        "fell_back": "",
        "marks": False,
        "others_delete": False,
        "sink_position": None,
        "elsewhere": "",
        "query": "",
        "code": CodeVersion(),
    },
    Heartbeat: {
        **dict.fromkeys(("worker", "uptime", "completed", "failed_checkpoints", "due_since")),
        "stopped": False,
        "interrupted": False,
        "lease": Lease(2.0, 30.0),
    },
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_a_record_does_not_say(record: Any) -> None:
    optional = {member.name for member in fields(record) if member.default is not MISSING}
    said = {name: value for name, value in fields_of(encode_record(record, PLACE)).items() if name not in optional}
    older = seal(json.dumps({"version": 2, "place": PLACE, **said}, indent=1).removesuffix("\n}").encode())
    found = read(record, older)
    assert {name: getattr(found, name) for name in optional} == UNSAID.get(type(record), {})


class TestTheLeaseOfAHeartbeat:
    BEAT = Heartbeat(3, "run-1", (ProcessIdentity("host/boot", 17, 1.0),), 5, 2.0, uptime=9.0)

    def test_one_that_announces_none_has_the_default(self) -> None:
        """As the releases wrote it that had one lease only."""
        data = encode_record(self.BEAT, PLACE)
        fields = fields_of(data)
        del fields["lease"]
        old = seal(json.dumps({"version": 2, "place": PLACE, **fields}, indent=1).removesuffix("\n}").encode())
        assert read(self.BEAT, old).lease == Lease(2.0, 30.0)

    def test_only_another_lease_than_the_default_is_of_a_version_that_older_releases_refuse(self) -> None:
        assert json.loads(encode_record(self.BEAT, PLACE))["version"] == 2
        short = replace(self.BEAT, lease=Lease(1.0, 5.0))
        data = encode_record(short, PLACE)
        assert json.loads(data)["version"] == 3
        assert read(short, data) == short

    def test_a_version_of_a_later_release_is_refused_by_name(self) -> None:
        with pytest.raises(CorruptRecord, match="is of version 4, and this release reads versions 1, 2 and 3"):
            read(self.BEAT, resealed(encode_record(self.BEAT, PLACE), version=4))

    @pytest.mark.parametrize(
        "lease",
        [
            {"interval": 0.0, "timeout": 30.0},
            {"interval": 2.0, "timeout": 5.0},
            {"interval": 2.0, "timeout": 1e9},
            {"interval": 2.0, "timeout": -1.0},
            {"interval": "2", "timeout": 30.0},
            30.0,
        ],
    )
    def test_what_cannot_be_a_lease_is_not_believed(self, lease: object) -> None:
        with pytest.raises(CorruptRecord, match="lease"):
            read(self.BEAT, resealed(encode_record(self.BEAT, PLACE), lease=lease))


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_member_of_a_later_release_is_ignored(record: Any) -> None:
    assert read(record, resealed(encode_record(record, PLACE), later={"more": [1]})) == record


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_holds_at_its_own_place_only(record: Any) -> None:
    data = encode_record(record, PLACE)
    with pytest.raises(CorruptRecord, match="was written for 'flights/control/some/record'"):
        read(record, data, "flights/control/some/other")
    with pytest.raises(CorruptRecord, match="was written for"):
        read(record, data, "delays/control/some/record")


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_every_bit_and_every_truncation_is_found_or_changes_nothing(record: Any) -> None:
    data = encode_record(record, PLACE)
    changed = [data[:end] for end in range(len(data))]
    changed += [
        data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)
    ]
    for other in changed:
        with pytest.raises(CorruptRecord, match=PLACE):
            read(record, other)


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(CorruptRecord, match="is of version 3, and this release reads versions 1 and 2"):
        read(RECORDS[0], resealed(encode_record(RECORDS[0], PLACE), version=3))


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_every_refusal_names_the_next_step(record: Any) -> None:
    with pytest.raises(CorruptRecord) as refusal:
        read(record, b"{")
    assert "put the file back from a backup" in refusal.value.hint


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"null", b"1", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"{" + b'"x":1,' * 100 + b"}"],
    ids=["empty", "bytes", "list", "null", "number", "nothing", "deep list", "deep object", "comma"],
)
@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_what_is_no_record_is_refused(record: Any, data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        read(record, data)


def the_same(one: object, other: object) -> bool:
    return one == other or (
        isinstance(one, float) and isinstance(other, float) and math.isnan(one) == math.isnan(other)
    )


def a_hostile_record(draw: st.DrawFn) -> tuple[Any, bytes]:
    record = draw(st.sampled_from(RECORDS))
    said = fields_of(encode_record(record, PLACE))
    for name in draw(st.lists(st.sampled_from(sorted(said)), min_size=1, max_size=3)):
        if draw(st.booleans()):
            said[name] = draw(HOSTILE)
        else:
            said.pop(name, None)
    text = json.dumps(said, indent=1)
    if draw(st.booleans()):
        return record, (text + "\n").encode()
    return record, resealed(encode_record(record, PLACE), **said)


def check_hostile(record: Any, data: bytes) -> None:
    """Whatever a record says, it is believed as what its type says, or refused."""
    try:
        found = read(record, data)
    except CorruptRecord:
        return
    said = json.loads(data)
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, float):
            assert math.isfinite(value)
        if (
            field.name in said
            and not isinstance(value, (tuple, list, dict))
            and not hasattr(value, "__dataclass_fields__")
        ):
            assert type(value) is type(said[field.name]) or (type(value), type(said[field.name])) == (float, int)
            assert the_same(value, said[field.name])


@settings(max_examples=300)
@given(st.composite(a_hostile_record)())
@example((RECORDS[11], as_version_1(encode_record(RECORDS[11], PLACE)).replace(b'"created": 1.0', b'"created": NaN')))
@example((RECORDS[8], as_version_1(encode_record(RECORDS[8], PLACE)).replace(b'"until": 2.0', b'"until": null')))
def test_a_hostile_record_is_refused_or_is_what_its_type_says(case: tuple[Any, bytes]) -> None:
    check_hostile(*case)


@pytest.mark.exhaustive
@settings(max_examples=20_000)
@given(st.composite(a_hostile_record)())
def test_many_hostile_records(case: tuple[Any, bytes]) -> None:
    check_hostile(*case)


@pytest.mark.parametrize("run_id", ["", "a/b", "a\nb", "x" * 200])
def test_what_nobody_could_read_back_is_not_written(run_id: str) -> None:
    with pytest.raises(InvalidConfiguration, match="run_id"):
        encode_record(Failure(run_id, 1, 1.0, 4, "it broke"), PLACE)


def test_an_error_may_quote_a_name_that_is_not_utf_8() -> None:
    failure = Failure("run-1", 1, 1.5, 4, "no such file: caf\udce9 \u2028 \x1b")
    assert read(failure, encode_record(failure, PLACE)).reason == "no such file: caf? \u2028 \x1b"


def test_a_heartbeat_without_a_finite_start_is_refused() -> None:
    """Such a heartbeat had any process killed that it named."""
    beat = as_version_1(encode_record(RECORDS[11], PLACE)).replace(b'"created": 1.0', b'"created": NaN')
    assert b"NaN" in beat
    with pytest.raises(CorruptRecord):
        read(RECORDS[11], beat)


def test_a_deletion_names_files_of_its_directory_only() -> None:
    with pytest.raises(CorruptRecord, match=r"shared\.0"):
        read(RECORDS[7], resealed(encode_record(RECORDS[7], PLACE), shared=["../../../home/.ssh/authorized_keys"]))


def test_a_member_that_the_name_tells_must_agree() -> None:
    memory = MemoryFileSystem()
    memory.files[PLACE] = as_version_1(encode_record(RECORDS[0], PLACE))
    assert read_record(memory, PLACE, Claim, epoch=3) == RECORDS[0]
    with pytest.raises(CorruptRecord, match="epoch is 3, but its file name says 4"):
        read_record(memory, PLACE, Claim, epoch=4)


@dataclass(frozen=True, slots=True)
class _Number:
    number: int


@pytest.mark.parametrize("value", ["3", 3.0, True, None, [3]])
def test_types_are_strict(value: object) -> None:
    memory = MemoryFileSystem()
    memory.files[PLACE] = json.dumps({"number": value}).encode()
    with pytest.raises(CorruptRecord, match="number"):
        read_record(memory, PLACE, _Number)


@pytest.mark.parametrize(
    ("kind", "lowest", "highest"),
    [
        (records.Epoch, 1, 10**10 - 1),
        (records.CheckpointId, 0, 10**15 - 1),
        (records.Batch, -1, 2**63 - 1),
        (records.Count, 0, 2**63 - 1),
        (records.Seconds, -1e12, 1e12),
    ],
    ids=["epoch", "checkpoint id", "batch", "count", "seconds"],
)
def test_a_number_is_within_its_bounds(kind: Any, lowest: float, highest: float) -> None:
    """A wider bound would let in what no reader of another language holds; a narrower one refuses what was written."""
    check = TypeAdapter(kind).validate_python
    assert (check(lowest), check(highest)) == (lowest, highest)
    for beyond in (lowest - 1, highest + 1):
        with pytest.raises(ValidationError):
            check(beyond)


@pytest.mark.parametrize(
    ("kind", "longest"),
    [
        (records.Text, "e" * 1_000_000),
        (records.Line, "/" * 8192),
        (records.RunId, "r" * 128),
        (records.JobId, "0f" * 16),
        (records.SavepointName, "s" * 100),
        (records.CheckpointName, f"{LINEAGE}/chk-{'9' * 15}"),
    ],
    ids=["text", "line", "run id", "job id", "savepoint name", "checkpoint name"],
)
def test_a_text_is_as_long_as_it_may_be(kind: Any, longest: str) -> None:
    check = TypeAdapter(kind).validate_python
    assert check(longest) == longest
    with pytest.raises(ValidationError):
        check(longest + longest[-1])
