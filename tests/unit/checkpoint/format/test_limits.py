"""A value at its limit is read, and the next one is refused: by records and manifests alike."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from dagster_ckpt.checkpoint.control import plan_archive
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat
from dagster_ckpt.checkpoint.control.pins import Pin
from dagster_ckpt.checkpoint.control.savepoint_requests import SavepointRequest
from dagster_ckpt.checkpoint.format import facts, manifest, manifest_schema, records
from dagster_ckpt.checkpoint.format.kinds import MOVED, RESCALE
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.errors import CorruptRecord
from tests.helpers.checkpoint.manifests import MANIFEST
from tests.helpers.checkpoint.memory import MemoryFileSystem

GREATEST = 9_223_372_036_854_775_807
#: What is accepted at the limits of a member, and what is refused beside them.
LIMITS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "epoch": (records.Epoch, [1, 9_999_999_999], [0, 10_000_000_000]),
    "checkpoint id": (records.CheckpointId, [0, 999_999_999_999_999], [-1, 1_000_000_000_000_000]),
    "batch": (records.Batch, [-1, GREATEST], [-2, GREATEST + 1]),
    "count": (records.Count, [0, GREATEST], [-1, GREATEST + 1]),
    "seconds": (records.Seconds, [-1e12, 1e12], [-1e12 - 1, 1e12 + 1, float("inf"), float("nan")]),
    "moment in a record": (
        records.Moment,
        [-62_135_510_400.0, 253_402_214_400.0],
        [-62_135_510_401.0, 253_402_214_401.0, float("inf"), float("nan")],
    ),
    "text": (records.Text, ["x" * 1_000_000], ["x" * 1_000_001]),
    "line": (records.Line, ["x" * 8192], ["x" * 8193, "\0"]),
    "number of 64 bits": (facts.Signed, [-GREATEST - 1, GREATEST], [-GREATEST - 2, GREATEST + 1]),
    "figure": (facts.Number, [-1e18, 1e18, 1e17], [-1e19, 1e19, float("nan")]),
    "number in a manifest": (manifest_schema._Whole, [0, GREATEST], [-1, GREATEST + 1]),
    "moment": (manifest_schema._Moment, ["2026-11-23T10:00:00.000+00:00"], ["2026-11-23T10:00:00.000" + "0" * 64]),
    "lease": (
        Lease,
        [{"interval": 1.0, "timeout": 3.0}],
        [{"interval": 0.0, "timeout": 3.0}, {"interval": 1.0, "timeout": 2.9}],
    ),
}


@pytest.mark.parametrize(("kind", "accepted", "refused"), LIMITS.values(), ids=LIMITS)
def test_values_up_to_the_limit(kind: Any, accepted: list[Any], refused: list[Any]) -> None:
    adapter = TypeAdapter(kind)
    for value in accepted:
        adapter.validate_python(value)
    for value in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize("pid", [1, 2**31 - 1])
def test_a_process_id_may_be(pid: int) -> None:
    assert ProcessIdentity("host", pid, 0, 0).pid == pid


@pytest.mark.parametrize("pid", [0, 2**31])
def test_a_process_id_may_not_be(pid: int) -> None:
    with pytest.raises(ValueError, match="no process id"):
        ProcessIdentity("host", pid, 0, 0)


def test_a_record_of_the_greatest_length_is_read(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = Pin(f"{'0' * 32}/chk-1", "audit", "2026-11-23T10:00:00.000+00:00", "0" * 32)
    data = records.encode_record(pin, "p")
    memory.files["p"] = data
    assert records._LARGEST == 268_435_456
    monkeypatch.setattr(records, "_LARGEST", len(data))
    assert records.read_record(memory, "p", Pin) == pin
    monkeypatch.setattr(records, "_LARGEST", len(data) - 1)
    with pytest.raises(CorruptRecord, match="no record is that long"):
        records.read_record(memory, "p", Pin)


def test_what_is_written_has_the_version_that_other_releases_know() -> None:
    """A release reads the versions that it knows, and refuses the others."""
    beat = Heartbeat(1, "run", (ProcessIdentity("host", 1, 0.0),), 1, 0.0)
    asked = SavepointRequest("0" * 32, None, stop=False, asked_at=1.0, until=2.0)
    pin = Pin(f"{'0' * 32}/chk-1", "audit", "2026-11-23T10:00:00.000+00:00", "0" * 32)
    written: dict[str, Any] = {
        "pin": pin,
        "beat": beat,
        "beat with a lease": replace(beat, lease=Lease(7.0, 70.0)),
        "savepoint": asked,
        "checkpoint": replace(asked, checkpoint=True),
    }
    told = {name: json.loads(records.encode_record(record, "p"))["version"] for name, record in written.items()}
    assert told == {"pin": 2, "beat": 2, "beat with a lease": 3, "savepoint": 2, "checkpoint": 3}
    manifests = [
        MANIFEST,
        replace(MANIFEST, given_name="name"),
        *(replace(MANIFEST, kind=kind) for kind in (RESCALE, MOVED)),
    ]
    assert [json.loads(each.encode())["version"] for each in manifests] == [1, 3, 4, 4]


def test_a_release_writes_no_more_than_another_one_reads() -> None:
    assert (manifest.LONGEST, manifest.MOST_FILES, plan_archive._MOST_BATCHES) == (2**30, 4_000_000, 10_000_000)
