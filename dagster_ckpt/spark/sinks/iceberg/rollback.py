"""What the snapshots of an Iceberg table did, and how a rollback takes a job's back: pure decisions.

The first snapshot of the job after the checkpoint says by its mark that it is the first; what others did before it is
never touched. A rollback makes the snapshot before that one current again if the job alone has changed rows since. If
others have appended rows since, or another job has rolled back, the rollback deletes the files of the job's own
snapshots instead. A compaction since does not matter then, unless the compaction has rewritten one of these files. In
every other case the rollback would lose what another writer did, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.iceberg.lineage import NOTHING, History, Snapshot

__all__ = ["Needed", "Rollback", "files_to_delete", "plan_rollback", "plan_rollback_to_nothing"]

#: Operations that change no row, such as a compaction.
_UNCHANGING = frozenset({"replace"})
_APPEND = "append"

_File = TypeVar("_File")


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


class _Since(NamedTuple):
    """What was done to a table since a job had the rows there that it had at some snapshot.

    Attributes:
        snapshots: the newest first.
        before: the snapshot before the oldest of these, ``None`` for the table before its first. It may have expired.
        is_whole: whether the job wrote all that it wrote since in one of these.
    """

    snapshots: list[Snapshot]
    before: int | None
    is_whole: bool


def _written_since(history: History, target: int | None, job: str) -> _Since:
    """What was done since a job had the rows that it had at a snapshot, ``None`` for the table before its first.

    By the marks, where they tell: the snapshots between the target and the job's next batch may have expired.
    """
    wanted = NOTHING if target is None else target
    since: list[Snapshot] = []
    for snapshot in history.back(history.head, target):
        mark = snapshot.mark(job)
        if mark is not None and mark.held == wanted:
            return _Since(since, snapshot.identifier, is_whole=True)
        since.append(snapshot)
        if mark is not None and mark.before == wanted:
            return _Since(since, snapshot.parent, is_whole=True)
    end = since[-1].parent if since else history.head
    # The job may have written none of these, while its newest snapshot has expired.
    newest, mark = history.newest_of(job)
    return _Since(since, end, is_whole=end == target or wanted in {newest, None if mark is None else mark.held})


class Needed:
    """The snapshots that rollbacks of a job need, as the line of the current snapshot comes to have them.

    Args:
        job: the name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        #: By a target that the current snapshot does not come from any more. To look for it reads the whole line.
        self._instead: dict[int | None, int | None] = {}

    def of(self, targets: Iterable[int | None], history: History) -> Iterator[int]:
        """Each target, and then what is needed without it. Who finds one in the line has no need of those after it."""
        for target in targets:
            if target is not None:
                yield target
            if target not in self._instead:
                self._instead[target] = self._oldest(history, target)
            oldest = self._instead[target]
            if oldest is not None:
                yield oldest

    def written_after(self, target: int | None) -> None:
        """Look again for a target: there is a batch that was the first after it."""
        self._instead.pop(target, None)

    def _oldest(self, history: History, target: int | None) -> int | None:
        since, before, is_whole = _written_since(history, target, self._job)
        if not is_whole:
            return None
        if before is not None and history.find(before) is not None:
            return before
        return since[-1].identifier if since else None


def plan_rollback(history: History, target: int | None, job: str) -> Rollback:
    """How to take back what a job wrote after a snapshot.

    Args:
        history: the table now.
        target: the snapshot to go back to; ``None`` for the table before its first.
        job: the name of the job.

    Raises:
        SinkMismatch: a snapshot that is needed has expired, or the rollback would lose what another writer did.
    """
    since, before, is_whole = _written_since(history, target, job)
    if not is_whole:
        return _to_another_line(history, since, target, before, job)
    own = [snapshot for snapshot in reversed(since) if snapshot.mark(job) is not None and snapshot.changes_files]
    if not own:
        return Rollback()
    others = _changes_of_others(since, job)
    if not others and before is not None and history.find(before) is not None:
        return Rollback(to=before)
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
        raise _expired(end, f" Or undo all that came after the checkpoint, {_set_to(target)}.")
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
        else f"; or undo it, and all that came after it, {_set_to(snapshot.parent)}"
    )
    return f"Nothing was touched. Restore a checkpoint that was taken after that snapshot{undo} and launch again."


def _set_to(snapshot: int) -> str:
    return f"by CALL ... set_current_snapshot to {snapshot}"


def _expired(identifier: int | None, or_else: str = "") -> SinkMismatch:
    return SinkMismatch(
        f"The table does not have snapshot {identifier} any more, which the rollback needs.",
        hint=f"Nothing was touched. Restore a newer checkpoint; `dagster-ckpt list` shows them.{or_else} Or launch a "
        "job of another name with fork_from and a table of its own. The table property "
        "history.expire.max-snapshot-age-ms says how long expire_snapshots keeps snapshots.",
    )
