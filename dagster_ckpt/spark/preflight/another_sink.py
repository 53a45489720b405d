"""A job that has moved to another sink since a checkpoint was taken: what it left, and what a restore would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Choice
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import CheckpointError, CorruptRecord, SinkMismatch
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark.sinks import Sink, recorded_sink
from dagster_ckpt.spark.verdict import Finding, Verdict
from dagster_ckpt.stored_json import Json

__all__ = [
    "SinkName",
    "another_sink",
    "elsewhere_finding",
    "goes_on",
    "is_empty",
    "left_elsewhere",
    "moved_finding",
    "moved_since",
]


@dataclass(frozen=True, slots=True)
class SinkName:
    """What tells one sink from another; both members are ``None`` for a sink that checkpoints do not cover."""

    kind: str | None
    path: str | None

    @classmethod
    def of(cls, sink: Sink | None) -> SinkName:
        """The name of the sink of a query."""
        return cls(None, None) if sink is None else cls(sink.kind, sink.path)

    @classmethod
    def of_position(cls, position: Mapping[str, Json] | None) -> SinkName:
        """The name in a recorded position."""
        return cls(None, None) if position is None else cls(str(position.get("kind")), str(position.get("path")))

    @classmethod
    def of_choice(cls, choice: Choice) -> SinkName:
        """The name of the sink that a recorded start wrote to."""
        return cls(choice.sink_kind, choice.sink)

    def is_same(self, other: SinkName) -> bool:
        """Whether both are one sink."""
        if self.kind != other.kind or self.path is None or other.path is None:
            return self == other
        return is_same_place(self.path, other.path)

    def recorded(self) -> Sink | None:
        """The sink; ``None`` if checkpoints do not cover it, or only its query can make it."""
        return None if self.kind is None else recorded_sink({"kind": self.kind, "path": self.path})

    def __str__(self) -> str:
        return "a sink that checkpoints do not cover" if self.kind is None else f"the {self.kind} sink {self.path}"


def is_empty(sink: Sink) -> bool:
    """Whether the sink is known to be empty."""
    return sink.tells_data and sink.first_data() is None


def goes_on(before: Choice | None, job_id: str | None, restored: CheckpointMetadata, now: SinkName) -> bool:
    """Whether the start before has begun with the same checkpoint and this sink, to which the job had moved."""
    same = before is not None and (before.job_id, before.restored) == (job_id, restored.reference)
    return before is not None and same and SinkName.of_choice(before).is_same(now)


def left_elsewhere(before: Choice | None, job_id: str | None, restored: CheckpointMetadata, now: SinkName) -> str:
    """Where the rows up to a checkpoint are, and rows of later batches that other sinks have.

    The start before keeps its text: what that start left may change meanwhile, and a user has accepted that text.

    Args:
        before: the choice of the start before.
        job_id: the lineage.
        restored: the checkpoint.
        now: the sink that the query writes to.
    """
    was, last = SinkName.of_position(restored.sink), None if before is None else SinkName.of_choice(before)
    first = "the sink before, which checkpoints do not cover" if was.kind is None else _told(was, restored.batch)
    is_of_it = before is not None and (before.job_id, before.restored) == (job_id, restored.reference)
    if before is None or last is None or not is_of_it or last.is_same(was):
        return first
    told = before.elsewhere or first
    return told if last.is_same(now) else f"{told}; since then the job has written to {_told(last, restored.batch)}"


def _told(name: SinkName, batch: int) -> str:
    """A sink for people, and which batches after ``batch`` it has."""
    try:
        if (sink := name.recorded()) is None:
            return f"{name}; if it has batches after {batch}, these are written a second time"
        newest = sink.newest_batch()
    except (CheckpointError, OSError):
        return f"{name}, which cannot be read"
    if newest is None or newest <= batch:
        return str(name)
    return f"{name}, which has batches up to {newest}: the later ones are written a second time"


def elsewhere_finding(restored: CheckpointMetadata, now: str, elsewhere: str) -> Finding:
    """That the rows up to the checkpoint are not in the query's sink.

    Args:
        restored: the checkpoint.
        now: the query's sink.
        elsewhere: where these rows are.
    """
    return Finding(
        "another sink",
        Verdict.WITH_LOSS,
        f"the query now writes to {now}, which gets the rows of batches after {restored.batch} only; those before stay "
        f"in {elsewhere}.",
        "Write to the sink before again.",
    )


def another_sink(restored: CheckpointMetadata, now: str, present: str | None) -> SinkMismatch:
    """The error for a sink that the job may not move to.

    Args:
        restored: the checkpoint.
        now: the query's sink.
        present: what that sink has, ``None`` if it is not known to be empty.
    """
    at = "the same place" if restored.sink is None else restored.sink.get("path")
    before = "another kind of sink" if restored.sink is None else SinkName.of_position(restored.sink)
    why = f", which has {present}." if present else ", which is not known to be empty."
    move = (
        "go on in a sink that is empty (one of your own tells so by its newest_batch), or in a table without rows "
        "of this job, with allow_loss: true; or restore a checkpoint that was taken with the sink of now"
    )
    return SinkMismatch(
        f"{restored.name} was taken with {before}, and the query now writes to {now}{why}",
        hint=f"Write to {at} again; or {move}.",
    )


def moved_since(catalog: CheckpointCatalog, restored: CheckpointMetadata) -> Choice | None:
    """The choice of the job's last start, if that start wrote to another sink than a checkpoint was taken with."""
    try:
        chosen = catalog.choice()
    except CorruptRecord:  # a start that names a checkpoint does without it
        return None
    if chosen is None or SinkName.of_choice(chosen[1]).is_same(SinkName.of_position(restored.sink)):
        return None
    return chosen[1]


def moved_finding(last: Choice, restored: CheckpointMetadata, asked: str) -> Finding:
    """What a start whose query writes to the sink of the last start would find about that sink.

    Args:
        last: the choice of the job's last start, of :func:`moved_since`.
        restored: the checkpoint.
        asked: the ``restore_from`` of the start.
    """
    now, latest = SinkName.of_choice(last), asked == LATEST
    job_id = last.job_id if latest else restored.job_id if restored.location is None else None
    is_known = goes_on(last, job_id, restored, now)
    if latest and is_known:
        return Finding.fine("another sink", f"the job has moved to {now} with this checkpoint, as was accepted.")
    elsewhere = left_elsewhere(last, job_id, restored, now)
    found = elsewhere_finding(restored, str(now), elsewhere)
    if is_known or now.kind is None:
        return found
    try:
        present = None if (sink := now.recorded()) is None else sink.first_data()
    except CheckpointError as error:
        return Finding.of_error(found.check, error)
    if present is not None:
        return Finding.of_error(found.check, another_sink(restored, str(now), present))
    unknown = "" if sink is not None else " If the sink of now has data of this job, the start is refused."
    return replace(found, hint=f"{found.hint}{unknown}")
