"""Moves of sources, as far as they are decided without brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.facts import Facts, Operator, Source, Topic
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.records import Moved
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.spark.files import parse_offsets
from dagster_ckpt.spark.moved_sources.move import check_facts, with_offsets
from dagster_ckpt.spark.moved_sources.repeated import last_move
from dagster_ckpt.spark.moved_sources.stored import stored_move_findings
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST

_HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
_SOURCES = [
    Source(id="0", offset={"logOffset": 3}),
    Source(id="1", offset={"orders": {"0": 10, "1": 20}}),
    Source(id="2", offset={"orders": {"0": 5}, "returns": {"0": 7}}),
]
_RESTORED = replace(MANIFEST, facts=Facts(sources=_SOURCES))
_CHOICE = Choice(JOB_ID, None, 1, 0, "/live", "host", None, "", moved=Moved("asked", f"{JOB_ID}/chk-5"))


@pytest.mark.parametrize("named", [False, True], ids=["by ordinal", "by name"])
def test_only_what_is_moved_is_written_anew(named: bool) -> None:
    lines = ['{"logOffset":3}', '{"orders":{"0":10}}', "-"]
    names = ["files", "orders", "none"] if named else ["0", "1", "2"]
    written = [f"{name}:{line}" for name, line in zip(names, lines, strict=True)] if named else lines
    text = "\n".join(["v2" if named else "v1", _HEAD, *written])
    moved = with_offsets(text, {names[1]: {"orders": {"0": 4, "1": 6}}})
    assert moved == text.replace(lines[1], '{"orders":{"0":4,"1":6}}')
    before, after = (parse_offsets(each, "offsets/7") for each in (text, moved))
    assert after.offset(names[1]) == {"orders": {"0": 4, "1": 6}}
    assert [after.offset(name) for name in names[::2]] == [before.offset(name) for name in names[::2]]


@pytest.mark.parametrize(
    ("name", "place", "verdict", "told"),
    [
        ("returns", {"0": 7}, Verdict.RESTORABLE, "nothing is skipped or read twice"),
        (
            "1/orders",
            {"0": 12, "1": 19},
            Verdict.WITH_LOSS,
            "it skips 2 records after the checkpoint (partition 0: 2)",
        ),
        (
            "1/orders",
            {"0": 12, "1": 19},
            Verdict.WITH_LOSS,
            "it reads 1 record before the checkpoint twice (partition 1: 1)",
        ),
        ("2/orders", {"1": 0}, Verdict.WITH_LOSS, "only its brokers know"),  # a partition that is new since
        ("returns", "latest", Verdict.WITH_LOSS, "only its brokers know"),
        ("orders", "latest", Verdict.NOT_RESTORABLE, "2 sources of chk-1 read orders"),
        ("0/orders", "latest", Verdict.NOT_RESTORABLE, "reads 0/orders"),
    ],
)
def test_what_a_checkpoint_tells_of_a_place(
    name: str, place: dict[str, int] | str, verdict: Verdict, told: str
) -> None:
    (found,) = stored_move_findings({name: place}, _RESTORED, None, ())
    assert found.verdict is verdict
    assert told in found.reason
    assert "again" not in found.reason
    assert (found.verdict is Verdict.NOT_RESTORABLE) is not ("the start asks" in found.reason)


@pytest.mark.parametrize(
    ("place", "verdict", "told"),
    [
        ("earliest", Verdict.WITH_LOSS, "it reads 3 records before the checkpoint twice"),
        ("latest", Verdict.WITH_LOSS, "it skips 2 records after the checkpoint"),
        ({"0": 4}, Verdict.WITH_LOSS, "it reads 3 records before the checkpoint twice"),
        ({"0": 3}, Verdict.NOT_RESTORABLE, "partition 0 of topic returns of source 2 has no offset 3"),
        ({"0": 12}, Verdict.WITH_LOSS, "it skips 5 records"),  # the topic may have grown since
        ("2026-01-01T00:00:00+00:00", Verdict.WITH_LOSS, "only its brokers know"),
    ],
)
def test_what_the_newest_checkpoint_tells_of_a_place(place: dict[str, int] | str, verdict: Verdict, told: str) -> None:
    topic = Topic(id="t", latest={"0": 9}, earliest={"0": 4})
    newest = replace(_RESTORED, facts=Facts(sources=[_SOURCES[2].model_copy(update={"topics": {"returns": topic}})]))
    (found,) = stored_move_findings({"returns": place}, _RESTORED, None, (), newest)
    assert (found.verdict, told in found.reason) == (verdict, True)


def test_a_sink_that_cannot_go_back_is_told_of_before_the_job_is_stopped() -> None:
    sink = ForeachBatchSink("rows", lambda *_: None)
    (found,) = stored_move_findings({"returns": {"0": 7}}, _RESTORED, sink, [4])
    assert found.verdict is Verdict.NOT_RESTORABLE
    assert "batch 4 may have been written to rows, which cannot go back" in found.reason
    (found,) = stored_move_findings({"returns": {"0": 7}}, _RESTORED, sink, [])
    assert found.verdict is Verdict.RESTORABLE


def test_what_was_counted_is_what_is_done() -> None:
    """The manifest tells the offsets by which losses are counted, and Spark goes by its own file."""
    entry = parse_offsets(f'v1\n{_HEAD}\n{{"logOffset":3}}\n{{"orders":{{"0":10,"1":20}}}}\n-', "offsets/7")
    check_facts(_RESTORED, entry, ["0", "1"])
    with pytest.raises(CorruptCheckpoint, match="another offset of source 2"):
        check_facts(_RESTORED, entry, ["2"])


def test_state_and_files_are_told_of() -> None:
    operators = [Operator(id="0", name="stateStoreSave", partitions=4, stores=["default"])]
    stateful = replace(_RESTORED, facts=Facts(sources=_SOURCES, operators=operators))
    (found,) = stored_move_findings({"returns": {"0": 0}}, stateful, None, ())
    assert (found.only_doubles, "an aggregation counts them again" in found.reason) == (True, True)
    assert "watermark" not in found.reason
    late = replace(stateful, facts=stateful.facts.model_copy(update={"watermark_ms": 7}))
    (found,) = stored_move_findings({"returns": {"0": 0}}, late, None, ())
    assert "drops what is older than its watermark" in found.reason
    files = replace(MANIFEST, facts=Facts(sources=_SOURCES[:1]))
    (found,) = stored_move_findings({"orders": "latest"}, files, None, ())
    assert "only topics of Kafka can start elsewhere" in found.reason


@pytest.mark.parametrize(
    ("restored", "is_of"),
    [
        (replace(MANIFEST, checkpoint_id=6), True),
        (replace(MANIFEST, checkpoint_id=4), False),  # a rollback to before it
        (replace(MANIFEST, checkpoint_id=5), False),  # the moved one has its own kind
        (replace(MANIFEST, checkpoint_id=6, job_id="b" * 32), False),
        (None, False),
    ],
)
def test_a_line_comes_of_its_last_move(restored: CheckpointMetadata | None, is_of: bool) -> None:
    assert (last_move(restored, _CHOICE) == _CHOICE.moved) is is_of
    assert last_move(restored, None) is None


def test_a_moved_copy_tells_its_own_move() -> None:
    copy = replace(MANIFEST, kind="moved", facts=Facts(start_sources="another"))
    assert last_move(copy, _CHOICE) == Moved("another", copy.reference)
