"""What went wrong with a job, each thing in words and with the next step; and how often the same thing is told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import dagster as dg

from dagster_ckpt.checkpoint import symptom
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["CALM", "EVENT", "EVENT_ID", "Happened", "Occurrence", "is_due", "to_tell", "told_ids"]

#: The tag and the metadata key of an observation that tells of an event, and the key of the event's own name.
EVENT = "dagster_ckpt/event"
EVENT_ID = "event_id"
#: Seconds after which the same thing is told as if it were new.
CALM = 3600.0
#: When the 100th time is past and no earlier telling is known, every 100th is told: nobody reads back further.
_MANY = 100
#: Observations of an asset that are looked at for what was told. A start adds two or three.
_LOOK_BACK = 400


class Happened(StrEnum):
    """What went wrong: the values of the tag ``dagster_ckpt/event``."""

    FAILED_CHECKPOINT = "failed_checkpoint"
    RESTART = "restart"
    FALLBACK = "fallback"
    REFUSED_START = "refused_start"
    FAILED = "failed"


_TITLES: Mapping[Happened, str] = {
    Happened.FAILED_CHECKPOINT: "Checkpoint failed",
    Happened.RESTART: "Restart",
    Happened.FALLBACK: "Fallback to an older checkpoint",
    Happened.REFUSED_START: "Start refused",
    Happened.FAILED: "The job ended FAILED",
}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One thing that went wrong.

    Attributes:
        event: what kind of thing.
        id: its own name, the same wherever and whenever it is found on record.
        at: when it happened, seconds since 1970.
        reason: why, for people.
        next_step: what a person does now, for people.
        times: how often the same thing has happened up to now.
    """

    event: Happened
    id: str
    at: float
    reason: str
    next_step: str
    times: int = 1

    def observation(self, asset_key: dg.AssetKey) -> dg.AssetObservation:
        """The occurrence as Dagster shows it."""
        reason, step = (in_one_line(redacted(text)).strip() for text in (self.reason, self.next_step))
        often = f" ({self.times} times with the same reason)" if self.times > 1 else ""
        return dg.AssetObservation(
            asset_key,
            description=f"{_TITLES[self.event]}{often}: {reason.removesuffix('.')}. {step}",
            metadata={
                "event": self.event.value,
                "reason": reason,
                "next_step": step,
                "times": self.times,
                "happened_at": dg.MetadataValue.timestamp(self.at),
                EVENT_ID: self.id,
            },
            tags={EVENT: self.event.value},
        )


def to_tell(occurrences: Iterable[Occurrence], told: Collection[str]) -> Iterator[Occurrence]:
    """What is to be told of all that happened, the oldest first, without a flood.

    The same thing (the same kind and the same reason, but for ids and numbers) is told when it first happens, and then
    when it has happened twice as often as when it was told last; after an hour without it, it counts as new.

    Args:
        occurrences: all that is known to have happened.
        told: the ids of those that were told, as far back as is known.
    """
    groups: dict[tuple[Happened, str], list[list[Occurrence]]] = {}
    for item in sorted(occurrences, key=lambda item: item.at):
        runs = groups.setdefault((item.event, symptom(item.reason)), [])
        if not runs or item.at - runs[-1][-1].at > CALM:
            runs.append([])
        runs[-1].append(item)
    found = []
    for same in (run for runs in groups.values() for run in runs):
        before = max((number for number, item in enumerate(same, 1) if item.id in told), default=0)
        if is_due(len(same), before):
            found.append(replace(same[-1], times=len(same)))
    yield from sorted(found, key=lambda item: item.at)


def is_due(times: int, told: int) -> bool:
    """Whether to tell of what happened so many times, when it was told last at ``told`` times; 0 for never."""
    if told:
        return times >= 2 * told
    return times <= _MANY or times % _MANY == 0


def told_ids(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> set[str]:
    """The ids of the events that Dagster has as observations of an asset."""
    found = set()
    for record in instance.fetch_observations(asset_key, limit=_LOOK_BACK).records:
        observation = record.asset_observation
        if observation is not None and (name := observation.metadata.get(EVENT_ID)) is not None:
            found.add(str(name.value))
    return found
