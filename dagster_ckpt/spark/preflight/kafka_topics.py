"""Whether the topics that a query reads again still hold what comes after the checkpoint's offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Facts,
    PlannedBatch,
    Source,
    Topic,
    find_newest,
)
from dagster_ckpt.errors import CheckpointError, RestoreRefused
from dagster_ckpt.spark.batches import planned_offsets
from dagster_ckpt.spark.kafka import BrokersAway, KafkaInputs, TopicState, by_partition, records
from dagster_ckpt.spark.moved_sources import Partition
from dagster_ckpt.spark.query import WriterPlan
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["kafka_findings", "kafka_findings_as_told", "kafka_sink_findings", "newest_of"]

CHECK = "Kafka topics"
_LONGEST = 500
_WITHOUT = "To go on without these records, "
_LENIENT = "let the query read with failOnDataLoss=false, and "
_ACCEPT = "launch with allow_loss: true."


def newest_of(catalog: CheckpointCatalog) -> CheckpointMetadata | None:
    """The job's newest checkpoint, ``None`` if it is not known."""
    try:
        return find_newest(catalog).metadata
    except CheckpointError:  # what is wrong with it is no fault of the checkpoint that is asked for
        return None


def kafka_findings(
    facts: Facts,
    inputs: KafkaInputs,
    plans: Sequence[PlannedBatch],
    newest: Callable[[], CheckpointMetadata | None] = lambda: None,
    moved: Collection[Partition] = (),
) -> list[Finding]:
    """Compare the checkpoint's offsets with each topic, and remember the topics' ids for the start.

    Args:
        facts: the checkpoint's facts.
        inputs: the Kafka sources of the query.
        plans: the plans of all batches that run again, as they were or with new boundaries.
        newest: reads the job's newest checkpoint.
        moved: the partitions that start elsewhere; what that reads again is told with the places.
    """
    found: list[Finding] = []
    for source in facts.sources:
        if source.id in inputs.ids and source.offset and not source.offsets:
            told = f"source {source.id} reads Kafka, and the checkpoint has no offsets of Kafka for it: {source.offset}"
            hint = "Run the query that the checkpoint is of, restore another checkpoint, or start over."
            found.append(Finding.of_error(CHECK, RestoreRefused(f"{told[:_LONGEST]}.", hint=hint)))
        elif source.id in inputs.ids and source.offsets:
            entries = [planned_offsets(plan) for plan in plans]
            planned = [Source(id=source.id, offset=entry.offset(source.id)) for entry in entries]
            found += _of_source(source, inputs, planned, newest, moved)
    return found


def kafka_findings_as_told(
    restored: CheckpointMetadata, newest: CheckpointMetadata | None, moved: Collection[Partition] = ()
) -> list[Finding]:
    """Compare the checkpoint's offsets with each topic as the brokers told it to the job's newest checkpoint.

    So a restore that starts no query is refused before it ends a running job. The start asks the brokers again.

    Args:
        restored: the checkpoint.
        newest: the job's newest checkpoint, ``None`` if it is not known.
        moved: the partitions that start elsewhere, which are told with the places.
    """
    told = {} if newest is None else {source.id: source.topics for source in newest.facts.sources}
    found = []
    for source in restored.facts.sources:
        for name, every in (source.offsets or {}).items():
            at = _unmoved(source.id, name, every, moved)
            if every and not at:
                continue
            shown, topic = f"topic {name} of source {source.id}", told.get(source.id, {}).get(name)
            if newest is None or topic is None or not topic.earliest:
                reason = f"not checked: only the brokers know {shown}, and the start asks them."
                found.append(Finding.fine(CHECK, reason))
                continue
            now = TopicState(topic.id, topic.earliest, topic.latest, compacted=None)
            item = _Compared(shown, at, at, source.topics.get(name), now).finding(strict=False, pattern=False)
            reason = f"{item.reason} So {newest.name} tells; the start asks the brokers again."
            found.append(replace(item, reason=reason))
    return found


def kafka_sink_findings(plan: WriterPlan) -> list[Finding]:
    """What a query that writes by Kafka's own writer does not promise."""
    if plan.format != "kafka":
        return []
    reason = (
        "at least once: after a crash or a restore, records since the checkpoint are written again, and readers see "
        "both. docs/how-to/kafka.md shows headers by which a consumer drops the repeats."
    )
    return [Finding.fine("Kafka sink", reason)]


def _of_source(
    source: Source,
    inputs: KafkaInputs,
    planned: Sequence[Source],
    newest: Callable[[], CheckpointMetadata | None],
    moved: Collection[Partition],
) -> list[Finding]:
    offsets = source.offsets or {}
    try:
        now = inputs.look(source.id, offsets)
        new = inputs.look(source.id, inputs.subscribed(source.id) - offsets.keys())
    except BrokersAway as error:
        inputs.begin_with(source.id, source.topics)
        reason = f"not checked: the brokers of source {source.id} did not tell ({error}). The query itself asks again."
        return [Finding.fine(CHECK, reason)]
    inputs.begin_with(source.id, {**now, **new})
    strict = (inputs.option(source.id, "failOnDataLoss") or "true").strip().lower() != "false"
    pattern = inputs.option(source.id, "subscribePattern") is not None
    found = []
    is_compacted = any(state is not None and state.compacted for state in now.values())
    covered = _covered(source.id, newest() if is_compacted else None)
    for name, at in offsets.items():
        topic = _Compared(
            name=f"topic {name} of source {source.id}",
            at=at,
            upto=_furthest([at, *((plan.offsets or {}).get(name, {}) for plan in planned)]),
            then=source.topics.get(name),
            now=now[name],
            covered=_unmoved(source.id, name, covered.get(name, {}), moved),
        )
        is_read = inputs.reads(source.id, name)
        found.append(topic.finding(strict=strict, pattern=pattern) if is_read else topic.left_out(strict=strict))
    for name, topic_now in new.items():
        if topic_now is not None:
            added = _Compared(f"the new topic {name} of source {source.id}", {}, {}, None, topic_now)
            found.append(added.finding(strict=strict, pattern=pattern))
    return found


def _unmoved(source: str, topic: str, offsets: Mapping[str, int], moved: Collection[Partition]) -> Mapping[str, int]:
    return {number: offset for number, offset in offsets.items() if (source, topic, number) not in moved}


def _covered(source: str, newest: CheckpointMetadata | None) -> Mapping[str, Mapping[str, int]]:
    sources = () if newest is None else newest.facts.sources
    return next((each.offsets or {} for each in sources if each.id == source), {})


def _furthest(offsets: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The greatest offset of each partition of the checkpoint."""
    return {partition: max(each.get(partition, 0) for each in offsets) for partition in offsets[0]}


@dataclass(frozen=True, slots=True)
class _Compared:
    """A topic at the checkpoint and now.

    Attributes:
        name: of the topic, for people.
        at: where the checkpoint ends, by partition.
        upto: where the last planned batch ends, by partition.
        then: what the checkpoint tells of the topic, ``None`` if nothing.
        now: the topic now, ``None`` if it is gone.
        covered: where the job's newest checkpoint ends, by partition, if it is known.
    """

    name: str
    at: Mapping[str, int]
    upto: Mapping[str, int]
    then: Topic | None
    now: TopicState | None
    covered: Mapping[str, int] = field(default_factory=dict)

    def finding(self, *, strict: bool, pattern: bool) -> Finding:
        """The verdict.

        Args:
            strict: whether Spark fails where it notices a loss.
            pattern: whether the query reads whatever topics there are.
        """
        if self.now is None:
            told = f"{self.name} is gone{self._unread()}."
            if pattern and not strict:
                return Finding(CHECK, Verdict.WITH_LOSS, told, f"{_WITHOUT}{_ACCEPT}")
            hint = (
                "Create the topic again with its records, if they are kept elsewhere. Without them start over, by "
                "restore_from: none; docs/how-to/kafka.md says more."
            )
            return Finding.of_error(CHECK, RestoreRefused(told, hint=hint))
        if self.then is not None and self.then.id and self.now.id and self.then.id != self.now.id:
            return self._recreated(self.then, self.now, strict=strict)
        return self._same(self.now, strict=strict)

    def left_out(self, *, strict: bool) -> Finding:
        """The verdict on a topic that the query does not name."""
        told, left_out = f"the query does not read {self.name} any more{by_partition(self.at)}", ""
        if self.now is not None:
            left = sum(max(end - self.at.get(number, 0), 0) for number, end in self.now.latest.items())
            left_out = f": {records(left)} after the checkpoint are left out, and all later ones"
        return _lossy(f"{told}{left_out}.", "Name the topic in the query again. ", stops=strict, stays=(told,))

    def _recreated(self, then: Topic, now: TopicState, *, strict: bool) -> Finding:
        gone = sorted(self.at.keys() - now.latest.keys(), key=int)
        short = {number for number, upto in self.upto.items() if now.latest.get(number, upto) < upto}
        skipped = {
            number: min(at, now.latest[number]) - now.earliest[number]
            for number, at in self.at.items()
            if number in now.latest and min(at, now.latest[number]) > now.earliest[number]
        }
        fewer = f" Partition{'s' * (len(gone) > 1)} {', '.join(gone)} is not there any more." if gone else ""
        recreated = f"{self.name} was deleted and created again: its id was {then.id} and is {now.id} now"
        told = (
            f"{recreated}{self._unread()}. Of the new topic, {records(sum(skipped.values()))} below the checkpoint's "
            f"offsets would be skipped{by_partition(skipped)}.{fewer}"
        )
        over = "To read the new topic from its beginning, start over by restore_from: none. "
        # More is skipped as the new topic grows, up to the checkpoint's offsets.
        return _lossy(told, over, stops=strict and bool(gone or short), stays=(recreated, fewer))

    def _same(self, now: TopicState, *, strict: bool) -> Finding:
        gone = {number: at for number, at in self.at.items() if number not in now.latest}
        expired = {
            number: now.earliest[number] - at
            for number, at in self.at.items()
            if number in now.earliest and now.earliest[number] > at
        }
        short = {
            number: upto - now.latest[number]
            for number, upto in self.upto.items()
            if number in now.latest and now.latest[number] < upto
        }
        added = {number: now.earliest[number] for number in now.latest if number not in self.at}
        missed = {number: first for number, first in added.items() if first > 0}
        told = []
        if expired:
            told.append(
                f"{records(sum(expired.values()))} after the checkpoint are gone{by_partition(expired)}: retention"
            )
        if short:
            told.append(f"it ends {records(sum(short.values()))} before what was read or planned{by_partition(short)}")
        if gone:
            told.append(f"it has no partition {', '.join(sorted(gone, key=int))} any more{self._unread(gone)}")
        if missed:
            told.append(f"{records(sum(missed.values()))} of new partitions are gone{by_partition(missed)}")
        cleaned = self._compacted(now, self.covered)
        stops = strict and bool(told)
        if cleaned:
            told.append(
                f"up to {records(sum(cleaned.values()))} that a newer checkpoint covers may be "
                f"gone{by_partition(cleaned)}: the topic is compacted"
            )
        if told:
            older = "Restore a newer checkpoint, if there is one. " if expired or cleaned else ""
            return _lossy(f"{self.name}: {'; '.join(told)}.", older, stops=stops)
        return Finding.fine(CHECK, f"{self.name} {self._complete(now, sorted(added, key=int))}")

    def _complete(self, now: TopicState, added: Sequence[str]) -> str:
        left = sum(now.latest[number] - self.at.get(number, first) for number, first in now.earliest.items())
        told = f"has all {left} offset{'s' * (left != 1)} after the checkpoint."
        if now.compacted is None:
            told += " It was not told whether the topic is compacted, so records there may have been removed."
        elif again := self._compacted(now, self.upto):
            told += (
                f" Up to {records(sum(again.values()))} that were read and that no newer checkpoint covers may be "
                "gone: the topic is compacted."
            )
        new = f" Partitions that are new since are read from their beginning: {', '.join(added)}." if added else ""
        return told + new

    def _compacted(self, now: TopicState, upto: Mapping[str, int]) -> Mapping[str, int]:
        """How many records from the checkpoint up to an offset compaction may have removed, by partition."""
        ends = {number: min(upto.get(number, 0), end) for number, end in (now.compacted or {}).items()}
        return {number: ends[number] - at for number, at in self.at.items() if ends.get(number, at) > at}

    def _unread(self, partitions: Mapping[str, int] | None = None) -> str:
        """How many records are surely lost with a topic or its partitions, as far as the checkpoint tells."""
        latest = {} if self.then is None else self.then.latest
        at = self.at if partitions is None else partitions
        left = sum(max(end - at[number], 0) for number, end in latest.items() if number in at)
        if not latest:
            return ""
        return f", and with it {records(left)} that were yet to be read at the checkpoint, and all later ones"


def _lossy(told: str, instead: str, *, stops: bool, stays: tuple[str, ...] = ()) -> Finding:
    """Rows would be lost; where Spark ``stops`` because of that, the query has to allow the loss, too."""
    if stops:
        hint = f"{instead}{_WITHOUT}{_LENIENT}{_ACCEPT}"
        return Finding.of_error(CHECK, RestoreRefused(f"{told} Spark would stop there.", hint=hint))
    return Finding(CHECK, Verdict.WITH_LOSS, told, f"{instead}{_WITHOUT}{_ACCEPT}", stays=stays)
