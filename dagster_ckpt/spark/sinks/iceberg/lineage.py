"""The snapshots of an Iceberg table, and the marks by which they tell who made them: pure values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dagster_ckpt.stored_json import whole

__all__ = [
    "NOTHING",
    "History",
    "Mark",
    "Snapshot",
    "name_of_newest",
    "newest_property",
    "recorded_newest",
]

_JOB, _LINEAGE, _START, _EPOCH, _BATCH = (
    f"dagster_ckpt.{name}" for name in ("job", "lineage", "start", "epoch", "batch")
)
_FIRST, _HELD, _BEFORE = "dagster_ckpt.first", "dagster_ckpt.held", "dagster_ckpt.before"
#: In a mark, the table before the first rows of the job. Iceberg itself means no snapshot by this id.
NOTHING = -1
_SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Mark:
    """Who made a snapshot, in the snapshot's summary.

    Attributes:
        start: a token of the start that wrote.
        epoch: the epoch of the start.
        batch: the batch; for a claim the batch before the start's first, -1 for none.
        lineage: the lineage of the start; empty in a mark of a release that did not write the lineage.
        held: of a claim, the snapshot that the start went back to, or :data:`NOTHING`: then the table has the rows of
            the job that it had there. ``None`` in a mark of a build that did not write this.
        before: of a batch, the same for the table before the batch. A batch that is written again is the same batch.
    """

    start: str
    epoch: int
    batch: int
    lineage: str = ""
    held: int | None = None
    before: int | None = field(default=None, compare=False)

    def summary(self, job: str, *, is_first: bool = False) -> dict[str, str]:
        """The properties of the snapshot, which may be the first of the job in the table."""
        told = {_LINEAGE: self.lineage} if self.lineage else {}
        told |= {_FIRST: "true"} if is_first else {}
        told |= {} if self.held is None else {_HELD: str(self.held)}
        told |= {} if self.before is None else {_BEFORE: str(self.before)}
        return {_JOB: job, **told, _START: self.start, _EPOCH: str(self.epoch), _BATCH: str(self.batch)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a table.

    Attributes:
        identifier: the snapshot's id.
        parent: the id of the snapshot before, ``None`` for the first one.
        operation: what Iceberg calls the operation: ``append``, ``replace``, ``overwrite`` or ``delete``.
        summary: the other properties.
        sequence: rises by one with each snapshot of the table; in a table of format 1 the time, in milliseconds.
    """

    identifier: int
    parent: int | None
    operation: str
    summary: Mapping[str, str]
    sequence: int = 0

    def mark(self, job: str) -> Mark | None:
        """The mark of a job; ``None`` when another writer made the snapshot."""
        if self.summary.get(_JOB) != job:
            return None
        try:
            start, epoch, batch = self.summary[_START], int(self.summary[_EPOCH]), int(self.summary[_BATCH])
            held, before = (int(self.summary[name]) if name in self.summary else None for name in (_HELD, _BEFORE))
            return Mark(start, epoch, batch, self.summary.get(_LINEAGE, ""), held, before)
        except (KeyError, ValueError):
            return None

    @property
    def is_first_claim(self) -> bool:
        """Whether the table had no snapshot of the job before."""
        return _FIRST in self.summary

    @property
    def job(self) -> str | None:
        """The job that made the snapshot; ``None`` for any other writer."""
        return self.summary.get(_JOB)

    @property
    def changes_files(self) -> bool:
        """Whether the snapshot, if a job of ours made it, added or removed a data file."""
        return any(self.summary.get(f"{what}-data-files", "0") != "0" for what in ("added", "deleted"))

    def __str__(self) -> str:
        return f"snapshot {self.identifier} ({self.operation})"


class History:
    """The snapshots of a table as its current metadata has them.

    Args:
        head: the current snapshot, ``None`` for a table without one.
        find: the snapshot with an id, ``None`` when it has expired.
        recorded: what :func:`newest_property` has recorded of a job; it outlives the snapshot.
        sequences: of all snapshots that the table has, on whatever line.
    """

    def __init__(
        self,
        head: int | None,
        find: Callable[[int], Snapshot | None],
        recorded: Callable[[str], Snapshot | None] = lambda _: None,
        sequences: Callable[[], Iterable[int]] = lambda: (),
    ) -> None:
        self.head = head
        self.find = find
        self._recorded = recorded
        self._sequences = sequences

    def back(self, start: int | None, until: int | None = None) -> Iterator[Snapshot]:
        """The snapshots from ``start`` back to ``until`` (not included), to the first, or to one that has expired."""
        at = start
        while at is not None and at != until and (snapshot := self.find(at)) is not None:
            yield snapshot
            at = snapshot.parent

    def newest_of(self, job: str) -> tuple[int | None, Mark | None]:
        """The newest snapshot of a job that the current one comes from, with its mark.

        Where the line of the current one ends at an expired snapshot, the table's property knows both. Both are
        ``None`` when the job has no snapshot. A snapshot without a mark has expired on a line that is not the job's
        newest: somebody has set the table back.
        """
        oldest = None
        for snapshot in self.back(self.head):
            if (mark := snapshot.mark(job)) is not None:
                return snapshot.identifier, mark
            oldest = snapshot
        recorded = None if oldest is None or oldest.parent is None else self._recorded(job)
        if oldest is None or recorded is None:
            return None, None
        kept = self.find(recorded.identifier)
        if kept is None or self._has_lost_one_between(kept, oldest):
            return recorded.identifier, recorded.mark(job)
        return oldest.parent, None

    def may_hold_rows_of(self, job: str) -> bool:
        """Whether a job may have rows in the table: not if all that the job did since its first claim is to claim."""
        for snapshot in self.back(self.head):
            if snapshot.mark(job) is not None and (snapshot.changes_files or snapshot.is_first_claim):
                return snapshot.changes_files
        return self.newest_of(job)[0] is not None

    def _has_lost_one_between(self, earlier: Snapshot, later: Snapshot) -> bool:
        """Whether a snapshot that was made between two others has expired: the later may come from the earlier by it.

        A branch or a tag may keep a snapshot while those that were made after it expire.
        """
        between = sum(earlier.sequence < sequence < later.sequence for sequence in self._sequences())
        return between < later.sequence - earlier.sequence - 1


def newest_property(summary: Mapping[str, str], snapshot: int) -> tuple[str, str]:
    """The name and value of the table property that records a job's newest snapshot, with the snapshot's mark.

    ``expire_snapshots`` deletes the snapshots of a job that writes seldom. The property stays.
    """
    mark = {name: summary[name] for name in (_JOB, _LINEAGE, _HELD, _BEFORE, _START, _EPOCH, _BATCH) if name in summary}
    return name_of_newest(summary[_JOB]), json.dumps({_SNAPSHOT: snapshot, **mark})


def name_of_newest(job: str) -> str:
    """The name of the table property that records the newest snapshot of a job."""
    return f"dagster_ckpt.newest.{job}"


def recorded_newest(value: str) -> Snapshot:
    """The snapshot in the value of :func:`newest_property`.

    Raises:
        KeyError, TypeError, ValueError: the value is of no such property.
    """
    mark = dict(json.loads(value))
    return Snapshot(whole(mark.pop(_SNAPSHOT), "a snapshot"), None, "", mark)
