"""What a cut tells of Kafka: offsets, and how far they are behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dagster_ckpt.checkpoint.format.facts import Facts, Source, Topic

_PARTITIONS = st.dictionaries(st.integers(0, 99).map(str), st.integers(0, 2**40), min_size=1)
_OFFSETS = st.dictionaries(st.sampled_from("abc"), _PARTITIONS, min_size=1)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(offset=_OFFSETS, latest=_OFFSETS)
def test_a_partition_is_behind_by_what_was_not_read(
    offset: dict[str, dict[str, int]], latest: dict[str, dict[str, int]]
) -> None:
    topics = {name: {"id": "x", "latest": ends} for name, ends in latest.items()}
    facts = Facts.model_validate({"sources": [{"id": "0", "offset": offset, "topics": topics}]})
    (source,) = Facts.model_validate(facts.to_json()).sources
    assert source.offsets == offset
    for topic, partitions in source.lag.items():
        for partition, lag in partitions.items():
            read = offset[topic].get(partition, 0)
            assert lag == 0 or read + lag == latest[topic][partition]
            assert lag > 0 or read >= latest[topic][partition]
    assert source.lag.keys() == offset.keys() & latest.keys()


@given(offset=_JSON)
def test_an_offset_of_another_system_is_not_taken_for_kafkas(offset: Any) -> None:
    source = Source(id="0", offset=offset)
    if source.offsets is None:
        assert source.lag == {}
    else:
        assert all(type(at) is int for partitions in offset.values() for at in partitions.values())


def test_a_manifest_of_before_tells_no_topics() -> None:
    old = Facts.model_validate({"sources": [{"id": "0", "offset": {"rows": {"0": 3}}}]})
    assert old.sources[0].topics == {}
    assert old.sources[0].lag == {}
    assert old.to_json() == {"sources": [{"id": "0", "offset": {"rows": {"0": 3}}}]}


@pytest.mark.parametrize("partition", ["", "-1", "x", "1" * 10])
def test_a_partition_that_is_no_number_is_refused(partition: str) -> None:
    topics = {"rows": {"id": "x", "latest": {partition: 3}}}
    with pytest.raises(ValidationError):
        Source.model_validate({"id": "0", "offset": {}, "topics": topics})


@pytest.mark.parametrize("partition", ["01", "1_0", "-1", "1.0", "", "1000000000", "\u0661"])
def test_a_partition_has_one_spelling(partition: str) -> None:
    """Spark reads 01 and 1 as one partition, so one of the two offsets would be lost."""
    assert Source(id="0", offset={"rows": {"1": 4, partition: 3}}).offsets is None
    with pytest.raises(ValidationError):
        Topic(id=None, latest={partition: 3})
    assert Source(id="0", offset={"rows": {"1": 4, "0": 3}}).offsets == {"rows": {"1": 4, "0": 3}}
