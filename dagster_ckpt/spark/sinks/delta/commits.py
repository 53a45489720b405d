"""What the commits of a Delta table did, and which files a rollback changes: pure decisions over Delta's own JSON.

A rollback *inverts* commits: those of our application, and where needed those that changed no row (OPTIMIZE, for
example). What other writers changed stays. So a rollback is refused where another writer has changed a file that must
be taken back. Another job of this library is such a writer, too: its rollback has taken back its own files only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.stored_json import believed

__all__ = [
    "Commit",
    "FileKey",
    "Rollback",
    "claim_of",
    "held_of",
    "mark_of",
    "marked_batch",
    "marked_epoch",
    "parse_commit",
    "plan_rollback",
    "refuse_replaced",
    "was_reset",
]

#: A data file: its path in the table, and the deletion vector that hides rows of the file.
FileKey: TypeAlias = "tuple[str, str]"

_BATCHES = 2**32
#: How the applications of the jobs of this library begin.
_JOBS = "dagster_ckpt:"
#: Operations of others that change rows one by one. Others that remove rows replace the table as a whole or in part.
_EDITS = frozenset({"DELETE", "UPDATE", "MERGE"})
#: Operations that bring files of earlier versions, or of another table, into the table. The marks stay.
_BRINGS_BACK = frozenset({"RESTORE", "CLONE"})
_NEW_CONSTRAINT = "ADD CONSTRAINT"
_CONSTRAINTS = (_NEW_CONSTRAINT, "DROP CONSTRAINT")
#: A commit, and those before it that count.
_Line: TypeAlias = "tuple[Commit, _Line] | None"
#: What an ``add`` has in common with the ``remove`` of the same file.
_OF_FILE = (
    *("path", "partitionValues", "size", "stats", "tags"),
    *("deletionVector", "baseRowId", "defaultRowCommitVersion"),
)


def mark_of(epoch: int, batch: int) -> int:
    """The transaction version of a batch. A newer epoch is above every batch of an older one.

    Args:
        epoch: the epoch of the start that writes.
        batch: the batch; -1 for the claim of a start that begins with batch 0.
    """
    return epoch * _BATCHES + batch + 1


def marked_batch(mark: int) -> int:
    """The batch of a mark, -1 for none."""
    return mark % _BATCHES - 1


def marked_epoch(mark: int) -> int:
    """The epoch of a mark."""
    return mark // _BATCHES


def claim_of(application: str) -> str:
    """The application beside a job's whose version is the mark of the newest claim of the job."""
    return application.replace(_JOBS, "dagster_ckpt.claim:", 1)


def held_of(application: str) -> str:
    """The application beside a job's whose version is the mark of the newest batch at the newest claim of the job.

    The version is 0 if the job had written nothing. If the claim does not go back to a checkpoint, or to one of a
    release that did not record the mark, the version is the mark of the claim.
    """
    return application.replace(_JOBS, "dagster_ckpt.held:", 1)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table.

    Attributes:
        version: the version.
        operation: what Delta calls the operation, such as ``WRITE``; empty when the commit does not tell.
        marks: the transaction versions of the commit, by application.
        added: the files that the commit added, each with its JSON.
        removed: the files that the commit removed, each with its JSON.
        changes_rows: whether the commit changed what readers see.
        removes_rows: whether the commit took rows away.
        restored: the version that the commit made the table equal to, ``None`` when it does not name one.
        transaction: Delta's id of the transaction that made the commit; empty when the commit does not tell.
        table: the id of the table, where the commit describes the table.
        constraint: the name, in lower case, of the constraint that the commit added or dropped, ``None`` for none.
    """

    version: int
    operation: str
    marks: Mapping[str, int]
    added: Mapping[FileKey, Mapping[str, Any]]
    removed: Mapping[FileKey, Mapping[str, Any]]
    changes_rows: bool
    removes_rows: bool
    restored: int | None = None
    transaction: str = ""
    table: str | None = None
    constraint: str | None = None

    @property
    def files(self) -> set[FileKey]:
        """The files that the commit added or removed."""
        return {*self.added, *self.removed}

    @property
    def only_describes(self) -> bool:
        """Whether the commit tells more of files that were there, as when somebody enables row tracking."""
        return bool(self.added) and not self.removed and not self.changes_rows and not self.of_job

    @property
    def rewrites_schema(self) -> bool:
        """Whether the commit has put the same rows into files of another schema, as when column mapping goes."""
        return self.table is not None and bool(self.removed) and not self.changes_rows

    @property
    def of_job(self) -> bool:
        """Whether a job of this library made the commit."""
        return any(application.startswith(_JOBS) for application in self.marks)

    @property
    def is_reset(self) -> bool:
        """Whether somebody has brought rows back by hand; the marks do not tell then what the table holds.

        The rollback of a job is called RESTORE, too. It brings back what its marks tell.
        """
        return self.operation in _BRINGS_BACK and self.changes_rows and not self.of_job

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation or 'an operation without a name'})"


@dataclass(frozen=True, slots=True)
class Rollback:
    """The files that a rollback changes.

    Attributes:
        removed: Delta's JSON of each file that leaves the table.
        added: Delta's JSON of each file that comes back.
        paths: the paths of the files that come back.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    paths: tuple[str, ...]


def parse_commit(version: int, text: str) -> Commit:
    """The commit of a version, from the JSON lines of Delta's log.

    Raises:
        SinkMismatch: the text is not what Delta writes.
    """
    operation, transaction, restored, table, constraint, marks = "", "", None, None, None, {}
    added: dict[FileKey, Mapping[str, Any]] = {}
    removed: dict[FileKey, Mapping[str, Any]] = {}
    with believed(f"Version {version} of the Delta table", "Restore the table from a backup.", SinkMismatch):
        for line in filter(str.strip, text.split("\n")):
            for kind, action in json.loads(line).items():
                if kind == "commitInfo":
                    operation, transaction = str(action.get("operation", "")), str(action.get("txnId", ""))
                    parameters = action.get("operationParameters", {})
                    target = parameters.get("version")
                    restored = int(target) if operation == "RESTORE" and target is not None else None
                    constraint = str(parameters.get("name")).casefold() if operation in _CONSTRAINTS else None
                elif kind == "metaData":
                    table = str(action["id"])
                elif kind == "txn":
                    marks[str(action["appId"])] = int(action["version"])
                elif kind in ("add", "remove"):
                    (added if kind == "add" else removed)[_key(action)] = action
        removes_rows = any(action["dataChange"] for action in removed.values())
        changes_rows = removes_rows or any(action["dataChange"] for action in added.values())
    facts = (changes_rows, removes_rows, restored, transaction, table, constraint)
    return Commit(version, operation, marks, added, removed, *facts)


def plan_rollback(commits: Sequence[Commit], application: str, now: int) -> Rollback:
    """How to take back what our application changed in ``commits``.

    Args:
        commits: every commit after the version to go back to, in order.
        application: our application.
        now: milliseconds since the epoch, for the removed files.

    Raises:
        SinkMismatch: another writer has replaced rows, or changed a file that must be taken back.
    """
    counting = _with_undone_compactions(_without_undone(commits))
    ours = {key for commit in counting if application in commit.marks for key in commit.files}
    # A compaction stays, too, unless it has put rows of ours into a file with others.
    others = [commit for commit in counting if application not in commit.marks]
    compacted = any(not commit.changes_rows and not commit.only_describes and commit.files & ours for commit in others)
    inverted: list[Commit] = []
    changing: list[Commit] = []
    for commit in counting:
        if commit.only_describes:
            changing.append(commit)
        elif application in commit.marks or (compacted and not commit.changes_rows):
            if commit.rewrites_schema and application not in commit.marks:
                raise _rewritten(commit)
            inverted.append(commit)
            changing.append(commit)
        else:
            _refuse(commit, any(commit.files & earlier.files for earlier in inverted))
    gone, come = _net(changing)
    _refuse_unchecked(gone, inverted, others)
    return Rollback(
        tuple(json.dumps({"remove": _removal(action, now)}) for action in come.values()),
        tuple(json.dumps({"add": _addition(action)}) for action in gone.values()),
        tuple(str(action["path"]) for action in gone.values()),
    )


def _refuse_unchecked(gone: Collection[FileKey], inverted: Sequence[Commit], others: Sequence[Commit]) -> None:
    """Refuse to bring rows back that were not in the table when somebody gave the table a constraint."""
    added = {commit.constraint: commit for commit in others if commit.constraint is not None}
    constrained = [commit for commit in added.values() if commit.operation == _NEW_CONSTRAINT]
    went = {key: commit for commit in inverted if commit.changes_rows for key in commit.removed.keys() & gone}
    for commit in went.values():
        for each in others:
            if each.rewrites_schema and each.version > commit.version:
                raise _rewritten(each)
        later = [each for each in constrained if each.version > commit.version]
        if later:
            raise SinkMismatch(
                "Rows that must come back into the table were not there when the table got a constraint, in "
                f"{later[0]}, so nobody has looked whether they satisfy it.",
                hint="Nothing was touched. Drop the constraint, launch again, and add the constraint anew: Delta looks "
                "at all rows then. Or restore another checkpoint.",
            )


def _rewritten(commit: Commit) -> SinkMismatch:
    return SinkMismatch(
        f"Files that must come back into the table are of the schema before {commit}, which has rewritten the others: "
        "their columns would read as NULL.",
        hint="Nothing was touched. Restore a checkpoint that was taken after that; or undo it, and all that came after "
        f"it, by RESTORE TABLE ... TO VERSION AS OF {commit.version - 1} and launch again.",
    )


def _net(commits: Sequence[Commit]) -> tuple[dict[FileKey, Mapping[str, Any]], dict[FileKey, Mapping[str, Any]]]:
    """The files that are gone after ``commits``, and those that have come, each with its newest JSON."""
    was: dict[FileKey, bool] = {}
    last: dict[FileKey, tuple[bool, Mapping[str, Any]]] = {}
    for commit in commits:
        for files, is_there in ((commit.removed, False), (commit.added, True)):
            for key, action in files.items():
                was.setdefault(key, commit.only_describes or not is_there)
                last[key] = (is_there, action)
    gone = {key: action for key, (is_there, action) in last.items() if was[key] and not is_there}
    come = {key: action for key, (is_there, action) in last.items() if is_there and not was[key]}
    return gone, come


def was_reset(commits: Sequence[Commit], application: str) -> bool:
    """Whether rows of our application may have come back, or may be away, against what the marks tell.

    Args:
        commits: the newest commits, in order.
        application: our application.
    """
    ours = any(application in commit.marks and commit.changes_rows for commit in commits)
    return ours and any(commit.is_reset for commit in commits)


def refuse_replaced(commits: Sequence[Commit], application: str) -> None:
    """Make sure that the rows of a checkpoint are still there, where nothing of our application is to be taken back.

    Args:
        commits: the commits after the checkpoint that the log still has, in order.
        application: our application.

    Raises:
        SinkMismatch: another writer has replaced rows.
    """
    for commit in _without_undone(commits):
        if application not in commit.marks:
            _refuse(commit, touches_ours=False)


def _without_undone(commits: Sequence[Commit]) -> list[Commit]:
    """``commits`` without those that a RESTORE by hand has undone, and without that RESTORE.

    A RESTORE to before the first of them stays, because it has undone more. The rollback of a job is called RESTORE,
    too. The rollback has undone commits of that job only.
    """
    if not commits:
        return []
    newest: _Line = None
    #: By version: the newest commit that counts there, before it the others.
    lines: dict[int, _Line] = {commits[0].version - 1: None}
    for commit in commits:
        undone = commit.restored is not None and commit.restored in lines and not commit.of_job
        newest = lines[commit.restored or 0] if undone else (commit, newest)
        lines[commit.version] = newest
    counting = []
    while newest is not None:
        commit, newest = newest
        counting.append(commit)
    return counting[::-1]


def _with_undone_compactions(commits: Sequence[Commit]) -> list[Commit]:
    """``commits``, where the rollback of a job and the compactions that the rollback has undone are one commit.

    Such a rollback brings the files of every writer back that were compacted. Together with the compactions it has
    changed the files of its own job only, so two jobs can roll back over one compaction.
    """
    found: list[Commit] = []
    for each in commits:
        commit = each
        if commit.of_job:
            for at in reversed(range(len(found))):
                earlier = found[at]
                is_undone = earlier.added and earlier.added.keys() <= commit.removed.keys()
                if is_undone and not earlier.changes_rows and not earlier.only_describes:
                    gone, come = _net((earlier, commit))
                    commit = replace(commit, removed=gone, added=come)
                    del found[at]
        found.append(commit)
    return found


def _refuse(commit: Commit, touches_ours: bool) -> None:
    replaces = commit.removes_rows and commit.operation not in _EDITS and not commit.of_job
    if replaces or commit.is_reset:
        raise SinkMismatch(
            f"Another writer replaced rows of the table after the checkpoint, in {commit}, so the table does not hold "
            "what the checkpoint covers.",
            hint="Nothing was touched. Restore a checkpoint that was taken after that; or undo it, and all that came "
            f"after it, by RESTORE TABLE ... TO VERSION AS OF {commit.version - 1} and launch again.",
        )
    if touches_ours:
        raise SinkMismatch(
            f"Another writer changed rows that batches after the checkpoint had written, in {commit}, so these batches "
            "cannot be taken back alone: the rollback would lose that change.",
            hint="Nothing was touched. Restore a checkpoint that was taken after that change.",
        )


def _key(action: Mapping[str, Any]) -> FileKey:
    vector = action.get("deletionVector")
    named = "" if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
    return (str(action["path"]), named)


def _removal(action: Mapping[str, Any], now: int) -> Mapping[str, Any]:
    same = {name: action[name] for name in _OF_FILE if name in action}
    return {**same, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _addition(action: Mapping[str, Any]) -> Mapping[str, Any]:
    if "size" not in action or "partitionValues" not in action:
        raise SinkMismatch(
            f"{action['path']} must come back into the table, and the commit that removed it does not describe it.",
            hint="Nothing was touched. Restore a newer checkpoint.",
        )
    same = {name: action[name] for name in _OF_FILE if name in action}
    return {**same, "modificationTime": action.get("deletionTimestamp", 0), "dataChange": True}
