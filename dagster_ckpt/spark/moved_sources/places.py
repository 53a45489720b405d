"""Where topics of Kafka are to be read from, as offsets that the brokers have, and what that loses or reads twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from dagster_ckpt.checkpoint import CheckpointMetadata, Facts, Source
from dagster_ckpt.config import EARLIEST, LATEST, StartSources
from dagster_ckpt.errors import CheckpointError, CheckpointFailure, RestoreRefused
from dagster_ckpt.spark.kafka import BrokersAway, KafkaInputs, TopicState, by_partition, records
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = [
    "MOVE_CHECK",
    "Offsets",
    "Partition",
    "Places",
    "check_start",
    "find_sources",
    "jump_finding",
    "places_of",
    "refused",
]

MOVE_CHECK = "start sources"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITHOUT = "Or launch without start_sources."

#: By topic and partition, the offset of the next record.
Offsets: TypeAlias = "dict[str, dict[str, int]]"
#: A source, by Spark's id, one of its topics, and a partition.
Partition: TypeAlias = "tuple[str, str, str]"
#: A source, one of its topics, and where that topic is to start.
Found: TypeAlias = "tuple[Source, str, Mapping[str, int] | str]"


@dataclass(frozen=True, slots=True)
class Places:
    """Where sources start elsewhere than the checkpoint has them.

    Attributes:
        offsets: all offsets of each such source, by Spark's id of the source.
        findings: what that loses and reads twice, or why it is refused.
        partitions: those that start elsewhere.
    """

    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    partitions: Collection[Partition] = ()

    def moved(self, facts: Facts) -> Facts:
        """The facts of the checkpoint, with its sources where they start."""
        sources = [
            source.model_copy(update={"offset": self.offsets[source.id]}) if source.id in self.offsets else source
            for source in facts.sources
        ]
        return facts.model_copy(update={"sources": sources})


def places_of(
    asked: StartSources,
    restored: CheckpointMetadata | None,
    inputs: KafkaInputs,
    sink: Sink | None,
    later: Sequence[int],
) -> Places:
    """Ask the brokers for the places that a start was asked to read from.

    Args:
        asked: the places.
        restored: the checkpoint.
        inputs: the Kafka sources of the query.
        sink: the query's sink, ``None`` if checkpoints do not cover it.
        later: the batches that are known to have been planned after the checkpoint.
    """
    offsets: dict[str, Offsets] = {}
    found: list[Finding] = []
    partitions: set[Partition] = set()
    try:
        if restored is None:
            raise refused(
                "there is no checkpoint whose sources could start elsewhere",
                "Launch without start_sources: a query that starts from nothing begins where startingOffsets says.",
            )
        check_start(sink, later)
        known = [source for source in restored.facts.sources if source.offsets and source.id in inputs.ids]
        for source, topic, place in _with_alike(find_sources(asked, known, restored), known, inputs):
            at = (source.offsets or {})[topic]
            moved = offsets.setdefault(source.id, {each: dict(parts) for each, parts in (source.offsets or {}).items()})
            state = _look(inputs, source.id, topic)
            to = _offsets(inputs, source.id, topic, state, place)
            moved[topic] |= to
            partitions |= {(source.id, topic, number) for number in to}
            then = source.topics.get(topic)
            is_new = then is not None and bool(then.id and state.id) and then.id != state.id
            # A partition that is new since would be read from its first record, which may be gone.
            jumps = {} if is_new else {number: to[number] - at.get(number, 0) for number in to}
            found.append(jump_finding(source, topic, to, jumps, restored.facts))
    except CheckpointError as error:
        return Places({}, [*found, Finding.of_error(MOVE_CHECK, error)])
    return Places(offsets, found, partitions)


def refused(why: str, hint: str) -> RestoreRefused:
    """The error for a source that cannot start elsewhere."""
    return RestoreRefused(f"The sources cannot start elsewhere: {why}.", hint=f"Nothing was touched. {hint}")


def find_sources(asked: StartSources, known: Sequence[Source], restored: CheckpointMetadata) -> list[Found]:
    """The source and the topic that each key of ``start_sources`` names, with the place.

    Args:
        asked: the places.
        known: the sources of the checkpoint that read Kafka.
        restored: the checkpoint.

    Raises:
        RestoreRefused: a key names nothing, or several sources, or the same as another key.
    """
    found: dict[tuple[str, str], Found] = {}
    for name, place in asked.items():
        source, topic = _find_source(name, known, restored)
        if (source.id, topic) in found:
            raise refused(f"topic {topic} of source {source.id} is named twice", "Name it once.")
        found[source.id, topic] = source, topic, place
    return list(found.values())


def _find_source(name: str, known: Sequence[Source], restored: CheckpointMetadata) -> tuple[Source, str]:
    id_, _, topic = name.rpartition("/")
    if not known:
        raise refused(
            f"no source of {restored.name} has offsets of Kafka, and only topics of Kafka can start elsewhere",
            "To read files again, restore an earlier checkpoint, or start over with restore_from: none.",
        )
    reading = [source for source in known if topic in (source.offsets or {}) and id_ in {"", source.id}]
    if not reading:
        topics = ", ".join(f"{source.id}/{each}" for source in known for each in sorted(source.offsets or {}))
        raise refused(f"no source of {restored.name} reads {name}", f"Name one of these: {topics}. {_WITHOUT}")
    if len(reading) > 1:
        ways = " or ".join(f"{source.id}/{topic}" for source in reading)
        raise refused(f"{len(reading)} sources of {restored.name} read {topic}", f"Name one: {ways}.")
    return reading[0], topic


def _with_alike(found: Sequence[Found], known: Sequence[Source], inputs: KafkaInputs) -> list[Found]:
    """The same with the other sources that Spark may run as one with those found: it keeps the place of the last.

    Raises:
        RestoreRefused: two equal sources are to start at two places.
    """
    every = {source.id: source for source in known}
    there: dict[tuple[str, str], Found] = {}
    for source, topic, place in found:
        for id_ in inputs.alike(source.id):
            if id_ in every and there.setdefault((id_, topic), (every[id_], topic, place))[2] != place:
                raise refused(
                    f"sources {' and '.join(inputs.alike(source.id))} are one stream of the query, with two places for "
                    f"topic {topic}",
                    "Name the topic once.",
                )
    return list(there.values())


def jump_finding(source: Source, topic: str, to: Mapping[str, int], jumps: Mapping[str, int], facts: Facts) -> Finding:
    """What is lost and read twice where a topic starts elsewhere.

    Args:
        source: that reads the topic.
        topic: its name.
        to: the offsets that it starts at, by partition.
        jumps: how many records each partition goes forward, or back where it is negative.
        facts: of the checkpoint, with the state of the query.
    """
    lost = {number: jump for number, jump in jumps.items() if jump > 0}
    twice = {number: -jump for number, jump in jumps.items() if jump < 0}
    told = f"topic {topic} of source {source.id} starts at offset{by_partition(to)}"
    parts = []
    if lost:
        parts.append(f"it skips {records(sum(lost.values()))} after the checkpoint{by_partition(lost)}")
    if twice:
        parts.append(f"it reads {records(sum(twice.values()))} before the checkpoint twice{by_partition(twice)}")
        if facts.operators:
            parts.append("the state of the query has those already, and an aggregation counts them again")
        if facts.operators and facts.watermark_ms:
            parts.append("but drops what is older than its watermark")
    if not parts:
        return Finding.fine(MOVE_CHECK, f"{told}: nothing is skipped or read twice.")
    return Finding(MOVE_CHECK, Verdict.WITH_LOSS, f"{told}: {'; '.join(parts)}.", _WITHOUT, only_doubles=not lost)


def check_start(sink: Sink | None, later: Sequence[int]) -> None:
    """Refuse a start after which a batch would come again with other rows.

    Raises:
        RestoreRefused: sources cannot start elsewhere.
    """
    if sink is not None and not sink.can_roll_back and later:
        raise refused(
            f"batch {later[0]} may have been written to {sink.path}, which cannot go back, and would come again with "
            "other rows",
            "End the job with `dagster-ckpt stop`, whose savepoint covers every batch; then launch with start_sources. "
            "Or give the sink a rollback_to.",
        )


def _look(inputs: KafkaInputs, source: str, topic: str) -> TopicState:
    try:
        state = inputs.look(source, [topic])[topic]
    except BrokersAway as error:
        raise _away(source, error) from error
    if state is None:
        raise refused(f"topic {topic} of source {source} is gone", "Create it again, or leave it out.")
    return state


def _away(source: str, error: BrokersAway) -> CheckpointFailure:
    return CheckpointFailure(
        f"Where source {source} can start is not known, because its brokers did not tell: {error}",
        hint="Nothing was touched. The restart strategy tries again; without start_sources the job goes on where the "
        "checkpoint is.",
    )


def _offsets(
    inputs: KafkaInputs, source: str, topic: str, state: TopicState, place: Mapping[str, int] | str
) -> dict[str, int]:
    """The offsets of the partitions that start elsewhere."""
    if place == EARLIEST:
        return dict(state.earliest)
    if place == LATEST:
        return dict(state.latest)
    if isinstance(place, str):
        since_epoch = datetime.fromisoformat(place) - _EPOCH
        milliseconds = -(-since_epoch // timedelta(milliseconds=1))
        try:
            since = inputs.at(source, topic, list(state.latest), milliseconds)
        except BrokersAway as error:
            raise _away(source, error) from error
        ends = {number: since.get(number) for number in state.latest}
        return {number: state.latest[number] if offset is None else offset for number, offset in ends.items()}
    for number, offset in place.items():
        if number not in state.latest:
            there = ", ".join(sorted(state.latest, key=int))
            raise refused(f"topic {topic} of source {source} has no partition {number}", f"It has {there}. {_WITHOUT}")
        if not state.earliest[number] <= offset <= state.latest[number]:
            raise refused(
                f"partition {number} of topic {topic} of source {source} has no offset {offset}",
                f"It has {state.earliest[number]} to {state.latest[number]}; the last one is of the next record. "
                f"{_WITHOUT}",
            )
    return dict(place)
