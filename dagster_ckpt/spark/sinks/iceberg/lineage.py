"""What the snapshots of an Iceberg table did, and how a rollback takes a job's back: pure decisions.

A rollback makes the snapshot of the checkpoint current again if the job alone has changed rows since. If others have
appended rows since, or another job has rolled back, the rollback deletes the files of the job's own snapshots instead.
A compaction since does not matter then, unless the compaction has rewritten one of these files. In every other case the
rollback would lose what another writer did, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.stored_json import whole

__all__ = [
    "History",
    "Mark",
    "Rollback",
    "Snapshot",
    "files_to_delete",
    "name_of_newest",
    "newest_property",
    "plan_rollback",
    "plan_rollback_to_nothing",
    "recorded_newest",
]

_JOB, _LINEAGE, _START, _EPOCH, _BATCH = (
    f"dagster_ckpt.{name}" for name in ("job", "lineage", "start", "epoch", "batch")
)
_FIRST, _HELD = "dagster_ckpt.first", "dagster_ckpt.held"
_SNAPSHOT = "snapshot"
#: Operations that change no row, such as a compaction.
_UNCHANGING = frozenset({"replace"})
_APPEND = "append"

_File = TypeVar("_File")


@dataclass(frozen=True, slots=True)
class Mark:
    """Who made a snapshot, in the snapshot's summary.

    Attributes:
        start: a token of the start that wrote.
        epoch: the epoch of the start.
        batch: the batch; for a claim the batch before the start's first, -1 for none.
        lineage: the lineage of the start; empty in a mark of a release that did not write the lineage.
        held: of a claim, the snapshot that the start went back to: then the table has the rows of the job that it had
            there. ``None`` for the table before its first, and in a mark of a release that did not write this.
    """

    start: str
    epoch: int
    batch: int
    lineage: str = ""
    held: int | None = None

    def summary(self, job: str, *, is_first: bool = False) -> dict[str, str]:
        """The properties of the snapshot, which may be the first of the job in the table."""
        told = {_LINEAGE: self.lineage} if self.lineage else {}
        told |= {_FIRST: "true"} if is_first else {}
        told |= {} if self.held is None else {_HELD: str(self.held)}
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
            held = int(self.summary[_HELD]) if _HELD in self.summary else None
            return Mark(start, epoch, batch, self.summary.get(_LINEAGE, ""), held)
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


@dataclass(frozen=True, slots=True)
class Rollback:
    """How a rollback changes a table.

    Attributes:
        to: the snapshot that becomes current, ``None`` where the current one stays.
        undone: the job's snapshots whose files are deleted, the oldest first.
        kept: snapshots of others that may have removed such a file, the oldest first.
    """

    to: int | None = None
    undone: tuple[Snapshot, ...] = ()
    kept: tuple[Snapshot, ...] = ()


def newest_property(summary: Mapping[str, str], snapshot: int) -> tuple[str, str]:
    """The name and value of the table property that records a job's newest snapshot, with the snapshot's mark.

    ``expire_snapshots`` deletes the snapshots of a job that writes seldom. The property stays.
    """
    mark = {name: summary[name] for name in (_JOB, _LINEAGE, _HELD, _START, _EPOCH, _BATCH) if name in summary}
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


def plan_rollback(history: History, target: int | None, job: str) -> Rollback:
    """How to take back what a job wrote after a snapshot.

    Args:
        history: the table now.
        target: the snapshot to go back to; ``None`` for the table before its first.
        job: the name of the job.

    Raises:
        SinkMismatch: a snapshot that is needed has expired, or the rollback would lose what another writer did.
    """
    since = list(history.back(history.head, target))
    end = since[-1].parent if since else history.head
    newest, mark = history.newest_of(job)
    # Start after start may have claimed the table and written nothing, while the snapshots between have expired.
    if target is not None and target in {newest, None if mark is None else mark.held}:
        return Rollback()
    if end != target:
        return _to_another_line(history, since, target, end, job)
    own = [snapshot for snapshot in reversed(since) if snapshot.mark(job) is not None and snapshot.changes_files]
    if not own:
        return Rollback()
    others = _changes_of_others(since, job)
    if not others and target is not None and history.find(target) is not None:
        return Rollback(to=target)
    kept = [each for each in reversed(since) if each.mark(job) is None and each.operation != _APPEND]
    for snapshot in kept:
        # What another job deletes in its rollback are its own files.
        if snapshot.operation not in _UNCHANGING and snapshot.job in {None, job}:
            raise _refused(snapshot)
    return Rollback(undone=tuple(own), kept=tuple(kept))


def plan_rollback_to_nothing(history: History, job: str, lineage: str) -> Rollback:
    """How to take back what a lineage without a checkpoint wrote.

    A start that dies before its claim leaves a table where the job's newest snapshot is one of an earlier lineage.

    Args:
        history: the table now.
        job: the name of the job.
        lineage: the lineage.

    Raises:
        SinkMismatch: as :func:`plan_rollback`.
    """
    _, newest = history.newest_of(job)
    if newest is None or newest.lineage not in {"", lineage}:
        return Rollback()
    for snapshot in history.back(history.head):
        mark = snapshot.mark(job)
        if mark is not None and mark.batch < 0:
            return plan_rollback(history, snapshot.identifier, job)
    return plan_rollback(history, None, job)


def files_to_delete(
    rollback: Rollback, changed: Callable[[Snapshot], tuple[Mapping[str, _File], Collection[str]]]
) -> list[_File]:
    """The files that are there because of the snapshots that a rollback undoes.

    Args:
        rollback: the rollback.
        changed: the files that a snapshot added, by their locations; and the locations of those that it removed.

    Raises:
        SinkMismatch: another writer has rewritten such a file, or a file would have to come back.
    """
    files: dict[str, _File] = {}
    for snapshot in rollback.undone:
        added, removed = changed(snapshot)
        files.update(added)
        for location in removed:
            if files.pop(location, None) is None:
                raise SinkMismatch(
                    f"An earlier rollback has removed {location} in {snapshot}, and another writer has changed the "
                    "table since, so the file cannot come back alone.",
                    hint="Nothing was touched. Restore a checkpoint that was taken after that rollback.",
                )
    for snapshot in rollback.kept:
        _, removed = changed(snapshot)
        rewritten = sorted(files.keys() & set(removed))
        if rewritten:
            raise SinkMismatch(
                f"Another writer rewrote files in {snapshot}, after the checkpoint, and among these files are "
                f"{len(rewritten)} that the job wrote since the checkpoint, such as {rewritten[0]}. So what the job "
                "wrote since cannot be taken back alone.",
                hint=_after(snapshot),
            )
    return list(files.values())


def _to_another_line(
    history: History, since: list[Snapshot], target: int | None, end: int | None, job: str
) -> Rollback:
    """Back to a snapshot that the current one does not come from: an earlier rollback has abandoned it."""
    if target is None or history.find(target) is None:
        raise _expired(end if target is None else target)
    ancestors = {snapshot.identifier for snapshot in history.back(target)}
    fork = next((at for at, snapshot in enumerate(since) if snapshot.identifier in ancestors), None)
    if fork is None and end is not None:
        raise _expired(end)
    others = _changes_of_others(since[:fork], job)
    if others:
        raise _refused(others[-1])
    return Rollback(to=target)


def _changes_of_others(snapshots: list[Snapshot], job: str) -> list[Snapshot]:
    return [each for each in snapshots if each.mark(job) is None and each.operation not in _UNCHANGING]


def _refused(snapshot: Snapshot) -> SinkMismatch:
    return SinkMismatch(
        f"Another writer changed the table after the checkpoint, in {snapshot}, so what the job wrote since cannot be "
        "taken back alone: the rollback would lose that change.",
        hint=_after(snapshot),
    )


def _after(snapshot: Snapshot) -> str:
    """How to go on after a refusal because of a snapshot. To undo a snapshot of another job would stop that job."""
    undo = (
        ""
        if snapshot.parent is None or snapshot.job is not None
        else f"; or undo it, and all that came after it, by CALL ... set_current_snapshot to {snapshot.parent}"
    )
    return f"Nothing was touched. Restore a checkpoint that was taken after that snapshot{undo} and launch again."


def _expired(identifier: int | None) -> SinkMismatch:
    return SinkMismatch(
        f"The table does not have snapshot {identifier} any more, which the rollback needs.",
        hint="Nothing was touched. Restore a newer checkpoint; `dagster-ckpt list` shows them. The table property "
        "history.expire.max-snapshot-age-ms says how long expire_snapshots keeps snapshots.",
    )
