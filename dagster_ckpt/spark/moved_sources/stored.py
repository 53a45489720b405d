"""What a move of sources loses or reads twice, as far as checkpoints tell without the query and its brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dagster_ckpt.checkpoint import CheckpointMetadata, Source, Topic
from dagster_ckpt.config import EARLIEST, LATEST, StartSources
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.moved_sources.places import (
    MOVE_CHECK,
    Found,
    Partition,
    check_start,
    find_sources,
    jump_finding,
    refused,
)
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["moved_partitions", "stored_move_findings"]

_UNASKED = "Only the start asks the brokers whether they have these offsets."


def moved_partitions(asked: StartSources | None, restored: CheckpointMetadata) -> Collection[Partition]:
    """The partitions that are to start elsewhere; none where that is refused."""
    try:
        return {
            (source.id, topic, number)
            for source, topic, place in find_sources(asked or {}, _known(restored), restored)
            for number in (place if isinstance(place, Mapping) else (source.offsets or {})[topic])
        }
    except RestoreRefused:  # the verdict on the move tells it
        return ()


def stored_move_findings(
    asked: StartSources,
    restored: CheckpointMetadata,
    sink: Sink | None,
    later: Sequence[int],
    newest: CheckpointMetadata | None = None,
) -> list[Finding]:
    """The verdict on each topic that is to start elsewhere; a place that only the brokers know counts as a loss.

    Args:
        asked: the places.
        restored: the checkpoint.
        sink: the checkpoint's sink, ``None`` if it is not known or checkpoints do not cover it.
        later: the batches that are known to have been planned after the checkpoint.
        newest: the job's newest checkpoint, which has the last answer of the brokers; ``None`` if it is not known.
    """
    try:
        check_start(sink, later)
        named = find_sources(asked, _known(restored), restored)
        return [_finding(each, restored, newest) for each in named]
    except RestoreRefused as error:
        return [Finding.of_error(MOVE_CHECK, error)]


def _known(restored: CheckpointMetadata) -> list[Source]:
    return [source for source in restored.facts.sources if source.offsets]


def _finding(found: Found, restored: CheckpointMetadata, newest: CheckpointMetadata | None) -> Finding:
    source, name, place = found
    at = (source.offsets or {})[name]
    told = {} if newest is None else {each.id: each.topics.get(name) for each in newest.facts.sources}
    topic = told.get(source.id)
    if newest is not None and topic is not None and isinstance(place, Mapping):
        _check_kept(source.id, name, place, topic, newest)
    ends = {} if topic is None else {EARLIEST: topic.earliest, LATEST: topic.latest}
    to = place if isinstance(place, Mapping) else ends.get(place, {})
    if to and to.keys() <= at.keys():
        jumps = {number: offset - at[number] for number, offset in to.items()}
        item = jump_finding(source, name, to, jumps, restored.facts)
        if to is place or newest is None:
            return replace(item, reason=f"{item.reason} {_UNASKED}")
        # Whether nothing is lost or doubled is known only when the start asks.
        reason = f"{item.reason} So {newest.name} tells; the start asks the brokers again."
        return replace(item, verdict=Verdict.WITH_LOSS, reason=reason)
    reason = (
        f"topic {name} of source {source.id} starts at {place}: only its brokers know how many records are skipped or "
        "read twice, and the start asks them."
    )
    hint = "A launch of the job without allow_loss counts them, and changes nothing if there are any."
    return Finding(MOVE_CHECK, Verdict.WITH_LOSS, reason, hint)


def _check_kept(source: str, name: str, place: Mapping[str, int], topic: Topic, newest: CheckpointMetadata) -> None:
    """Refuse an offset whose record was gone at the newest checkpoint: the first record of a partition only rises.

    Raises:
        RestoreRefused: there is such an offset.
    """
    for number, offset in place.items():
        first = topic.earliest.get(number, 0)
        if offset < first:
            raise refused(
                f"partition {number} of topic {name} of source {source} has no offset {offset}",
                f"At {newest.name} it began with {first}.",
            )
