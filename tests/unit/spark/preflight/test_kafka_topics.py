"""What the offsets of a checkpoint and of a topic tell about a restore."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import Facts, Source, Topic
from dagster_ckpt.spark.kafka import TopicState
from dagster_ckpt.spark.preflight.kafka_topics import _Compared, kafka_findings, kafka_findings_as_told
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.manifests import MANIFEST

_OFFSETS = st.dictionaries(st.integers(0, 3).map(str), st.integers(0, 20), min_size=1)
_IDS = st.none() | st.sampled_from("xy")


@given(at=_OFFSETS, kept=_OFFSETS, ends=_OFFSETS, then=_IDS, now=_IDS, strict=st.booleans())
def test_a_restore_is_exact_only_if_every_record_after_the_checkpoint_is_kept(
    at: dict[str, int],
    kept: dict[str, int],
    ends: dict[str, int],
    then: str | None,
    now: str | None,
    strict: bool,
) -> None:
    """Brokers of before Kafka 2.8 give no ids, and then only the offsets count."""
    latest = {number: max(end, kept.get(number, 0)) for number, end in ends.items()}
    earliest = {number: kept.get(number, 0) for number in latest}
    topic = _Compared("topic rows", at, at, Topic(id=then), TopicState(now, earliest, latest))
    finding = topic.finding(strict=strict, pattern=False)
    is_new = None not in (then, now) and then != now
    assert ("was deleted and created again" in finding.reason) == is_new
    is_exact = not is_new and all(
        number in latest and earliest[number] <= offset <= latest[number] for number, offset in at.items()
    )
    added = latest.keys() - at.keys()
    assert (finding.verdict is Verdict.RESTORABLE) == (is_exact and not any(earliest[number] for number in added))
    if finding.verdict is Verdict.RESTORABLE:
        left = sum(end - at.get(number, 0) for number, end in latest.items())
        assert f"has all {left} offset" in finding.reason
    elif not strict:
        assert finding.verdict is Verdict.WITH_LOSS


@pytest.mark.parametrize(
    ("compacted", "covered", "verdict", "told"),
    [
        ({}, 9, Verdict.RESTORABLE, "has all 5 offsets after the checkpoint."),
        (None, 9, Verdict.RESTORABLE, "It was not told whether the topic is compacted"),
        ({"0": 12}, 7, Verdict.RESTORABLE, "Up to 4 records that were read and that no newer checkpoint covers may"),
        (
            {"0": 12},
            9,
            Verdict.WITH_LOSS,
            "up to 2 records that a newer checkpoint covers may be gone (partition 0: 2)",
        ),
        ({"0": 8}, 9, Verdict.WITH_LOSS, "up to 1 record that a newer checkpoint covers may be gone (partition 0: 1)"),
        ({"0": 7}, 9, Verdict.RESTORABLE, "has all 5 offsets after the checkpoint."),
    ],
)
def test_compaction_loses_what_was_read_and_would_be_read_again(
    compacted: dict[str, int] | None, covered: int, verdict: Verdict, told: str
) -> None:
    """Spark goes over the gaps. What is old enough to be removed ends at 12, or earlier by min.compaction.lag.ms."""
    now = TopicState("x", {"0": 0}, {"0": 12}, compacted)
    topic = _Compared("topic rows", {"0": 7}, {"0": 11}, Topic(id="x"), now, {"0": covered})
    finding = topic.finding(strict=True, pattern=False)
    assert (finding.verdict, told in finding.reason) == (verdict, True), finding.reason
    assert ("allow_loss: true" in finding.hint) == (verdict is Verdict.WITH_LOSS)
    assert "failOnDataLoss" not in finding.hint


@pytest.mark.parametrize(
    ("topic", "verdict", "told"),
    [
        (Topic(id="x", latest={"0": 9}, earliest={"0": 3}), Verdict.RESTORABLE, "has all 2 offsets after"),
        (
            Topic(id="x", latest={"0": 9}, earliest={"0": 8}),
            Verdict.WITH_LOSS,
            "1 record after the checkpoint are gone",
        ),
        (Topic(id="y", latest={"0": 9}, earliest={"0": 0}), Verdict.WITH_LOSS, "was deleted and created again"),
        (Topic(id="y"), Verdict.RESTORABLE, "not checked"),  # the brokers were away
        (None, Verdict.RESTORABLE, "not checked"),
    ],
)
def test_the_newest_checkpoint_has_the_last_answer_of_the_brokers(
    topic: Topic | None, verdict: Verdict, told: str
) -> None:
    at = Source(id="0", offset={"rows": {"0": 7}}, topics={"rows": Topic(id="x")})
    restored = replace(MANIFEST, facts=Facts(sources=[at]))
    topics = {} if topic is None else {"rows": topic}
    newest = replace(MANIFEST, facts=Facts(sources=[at.model_copy(update={"topics": topics})]))
    (found,) = kafka_findings_as_told(restored, newest)
    assert (found.verdict, told in found.reason) == (verdict, True)
    assert "the start asks" in found.reason
    (unknown,) = kafka_findings_as_told(restored, None)
    assert "not checked" in unknown.reason


def test_a_topic_that_starts_elsewhere_is_told_with_its_place_and_the_others_as_ever() -> None:
    names = ("rows", "users")
    topics = {name: Topic(id=f"0-{name}", latest={"0": 9}, earliest={"0": 8}) for name in names}
    at = Source(id="0", offset={name: {"0": 7} for name in names}, topics=topics)
    metadata = replace(MANIFEST, facts=Facts(sources=[at]))
    (found,) = kafka_findings_as_told(metadata, metadata, {("0", "rows", "0"), ("1", "users", "0")})
    assert found.reason.startswith("topic users of source 0: 1 record after the checkpoint are gone")

    later = at.model_copy(update={"offset": {name: {"0": 9} for name in names}})
    newest = replace(MANIFEST, facts=Facts(sources=[later]))
    moved = {("0", "rows", "0"), ("0", "users", "1")}
    rows, users = kafka_findings(metadata.facts, _Inputs(), (), lambda: newest, moved)  # type: ignore[arg-type]
    assert (rows.verdict, users.verdict) == (Verdict.RESTORABLE, Verdict.WITH_LOSS)
    assert "up to 2 records that a newer checkpoint covers may be gone" in users.reason


def test_the_partitions_of_a_topic_that_stay_are_told_of() -> None:
    at = {"0": 7, "1": 7}
    topic = Topic(id="x", latest=dict.fromkeys(at, 9), earliest=dict.fromkeys(at, 8))
    metadata = replace(MANIFEST, facts=Facts(sources=[Source(id="0", offset={"rows": at}, topics={"rows": topic})]))
    (found,) = kafka_findings_as_told(metadata, metadata, {("0", "rows", "0")})
    assert "1 record after the checkpoint are gone (partition 1: 1)" in found.reason


class _Inputs:
    """The sources of a query, one of which reads Kafka, from topics that are compacted."""

    ids = ("0",)

    def look(self, source: str, topics: Collection[str]) -> dict[str, TopicState]:
        return {topic: TopicState(f"{source}-{topic}", {"0": 0}, {"0": 9}, {"0": 9}) for topic in topics}

    def subscribed(self, source: str) -> set[str]:
        del source
        return {"rows", "users"}

    def begin_with(self, *_: object) -> None: ...

    def option(self, *_: object) -> None: ...

    def reads(self, *_: object) -> bool:
        return True


def test_a_source_without_offsets_of_kafka_is_refused() -> None:
    """Nothing could be compared, and Spark would take what it can read."""
    offset = {"rows": {"01": 7, "1": 3}}
    (found,) = kafka_findings(Facts(sources=[Source(id="0", offset=offset)]), _Inputs(), ())  # type: ignore[arg-type]
    assert found.verdict is Verdict.NOT_RESTORABLE
    assert "source 0 reads Kafka, and the checkpoint has no offsets of Kafka for it: {'rows': {'01': 7" in found.reason
    others = [Source(id="0", offset=None), Source(id="1", offset=offset)]
    assert kafka_findings(Facts(sources=others), _Inputs(), ()) == []  # type: ignore[arg-type]
