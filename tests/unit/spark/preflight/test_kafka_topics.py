"""What the offsets of a checkpoint and of a topic tell about a restore."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import Topic
from dagster_ckpt.spark.kafka import TopicState
from dagster_ckpt.spark.preflight.kafka_topics import _Compared
from dagster_ckpt.spark.verdict import Verdict

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
        assert f"has all {left} record" in finding.reason
    elif not strict:
        assert finding.verdict is Verdict.WITH_LOSS
