"""Whether the tables that a query reads still have what comes after the checkpoint.

Both formats forget: Delta deletes old versions of its log, VACUUM deletes files that later versions have removed, and
Iceberg's snapshots expire. The query would tell of that only when Spark has started it, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import Facts
from dagster_ckpt.errors import CheckpointError, RestoreRefused
from dagster_ckpt.spark.query import QuerySource, WriterPlan, listed_sources
from dagster_ckpt.spark.sinks import Commit, DeltaTable, FileKey, IcebergTable
from dagster_ckpt.spark.verdict import Finding, Verdict
from dagster_ckpt.stored_json import believed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["table_findings"]

CHECK = "source tables"
_FORMATS = ("delta", "iceberg")
#: What Iceberg calls the snapshot before a table's first.
_BEFORE_THE_FIRST = -1
_LENIENT = "spark.sql.files.ignoreMissingFiles"
#: Options of Delta under which a query reads what versions changed, and not what they added.
_CHANGES = ("readChangeFeed", "readChangeData")
_ACCEPT = "To go on without these rows, launch with allow_loss: true."
_NEWER = "Restore a newer checkpoint, if there is one, or start over by restore_from: none. "


def table_findings(
    facts: Facts, writer: DataStreamWriter, plan: WriterPlan, location: Path
) -> tuple[list[Finding], Collection[str]]:
    """Compare the checkpoint's offsets with each Delta and Iceberg table.

    Args:
        facts: the checkpoint's facts.
        writer: the query.
        plan: the plan of the writer.
        location: the directory of the unpacked checkpointLocation.

    Returns:
        The findings, and the ids of the sources that they are about.
    """
    offsets = {source.id: source.offset for source in facts.sources if isinstance(source.offset, dict)}
    session = writer._spark  # noqa: SLF001 - PySpark's writer has no getter for it
    tables = [source for source in listed_sources(writer) if source.format in _FORMATS and source.id in offsets]
    begins = location / "sources" if plan.available_now else None
    found = [_finding(session, source, offsets[source.id], begins) for source in tables]
    return found, [source.id for source in tables]


def _finding(session: SparkSession, source: QuerySource, offset: Mapping[str, Any], begins: Path | None) -> Finding:
    name = f"the {source.format.title()} table {source.table} of source {source.id}"
    try:
        if source.format == "delta":
            return _delta(session, source, offset, name)
        return _iceberg(session, source, offset, name, begins)
    except CheckpointError as error:
        return Finding.fine(CHECK, f"not checked: {error.message} The query itself reads the table.")


def _delta(session: SparkSession, source: QuerySource, offset: Mapping[str, Any], name: str) -> Finding:
    with believed(f"The offset of {name}", "Restore another checkpoint."):
        at = _DeltaOffset(
            table=str(offset["reservoirId"]),
            version=int(offset["reservoirVersion"]),
            read=max(int(offset["index"]) + 1, 0),  # below zero where none was read, whatever the number
            is_first=bool(offset.get("isStartingVersion", offset.get("isInitialSnapshot", False))),
        )
    table = DeltaTable(session, source.table)
    newest = table.version
    if table.identifier != at.table:
        return _replaced(name, at.table, table.identifier)
    if at.version > newest + 1:
        return _lossy(f"{name} ends at version {newest}, and the checkpoint had read all before version {at.version}.")
    if at.version <= newest and not at.is_first and table.commit_of(at.version) is None:
        told = f"the log of {name} has no version {at.version} any more, with which the next batch begins."
        kept = "The table property delta.logRetentionDuration says how long versions are kept."
        return _refused(told, f"{_NEWER}{kept}")
    if any(_is_on(source, option) for option in _CHANGES):
        return Finding.fine(CHECK, f"{name} is there; whether its changes are, Delta looks itself.")
    commits = table.commits(at.version if at.is_first else at.version - 1, newest)
    lost = [file for file in at.removed_later(commits, source) if not table.has_file(file["path"])]
    of_first = [file for file in at.removed_of_first(commits) if not table.has_file(file["path"])]
    besides = ""
    if len(of_first) > at.read:  # Delta's log does not tell in what order they are read
        lost += of_first
        besides = f", except {at.read} at most" if at.read else ""
    if lost:
        told = (
            f"VACUUM has deleted {_files(lost)} of {name}, {lost[0]['path']} for one, and the next batches read "
            f"these{besides}"
        )
        kept = "The table property delta.deletedFileRetentionDuration says how long VACUUM keeps files. "
        if session.conf.get(_LENIENT) == "true":
            return _lossy(f"{told}; Spark would read nothing in their place.", kept)
        lenient = f"To go on without these rows, set {_LENIENT} to true, and launch with allow_loss: true. "
        return _refused(f"{told}.", f"{_NEWER}{lenient}{kept}")
    behind = newest - at.version + 1
    return Finding.fine(
        CHECK, f"{name} has all {behind} versions from {at.version} on." if behind else f"{name} is read."
    )


@dataclass(frozen=True, slots=True)
class _DeltaOffset:
    """Where the next batch of a Delta source begins.

    Attributes:
        table: the id of the table.
        version: the version.
        read: how many of the files that the version adds have been read.
        is_first: whether the query began with this version, and so reads the whole table as it was then.
    """

    table: str
    version: int
    read: int
    is_first: bool

    def removed_later(self, commits: Sequence[Commit], source: QuerySource) -> list[Mapping[str, Any]]:
        """The files that commits add, that are yet to be read, and that later commits remove from the table."""
        only_appends = _is_on(source, "skipChangeCommits")
        added: dict[FileKey, Mapping[str, Any]] = {}
        for commit in commits:
            if not (only_appends and commit.removes_rows):
                new = [(key, file) for key, file in commit.added.items() if file["dataChange"]]
                added.update(new[self.read :] if commit.version == self.version else new)
        removed = {key for commit in commits for key in commit.removed}
        return [file for key, file in added.items() if key in removed]

    def removed_of_first(self, commits: Sequence[Commit]) -> list[Mapping[str, Any]]:
        """The files of the version that the query began with that commits after it remove from the table."""
        if not self.is_first:
            return []
        added = {key for commit in commits for key in commit.added}
        return [file for commit in commits for key, file in commit.removed.items() if key not in added]


def _is_on(source: QuerySource, option: str) -> bool:
    return (source.option(option) or "").lower() == "true"


def _iceberg(
    session: SparkSession, source: QuerySource, offset: Mapping[str, Any], name: str, begins: Path | None
) -> Finding:
    """Look at an Iceberg table.

    Args:
        session: of the query.
        source: the source.
        offset: where the next batch begins.
        name: of the table, for people.
        begins: the directory where Iceberg keeps with what each source began, if the query's trigger makes it ask.
    """
    with believed(f"The offset of {name}", "Restore another checkpoint."):
        snapshot = int(offset["snapshot_id"])
    history = IcebergTable(session, source.table).history()
    if snapshot == _BEFORE_THE_FIRST or any(each.identifier == snapshot for each in history.back(history.head)):
        first = None if begins is None else _first_snapshot(begins / source.id / "offsets" / "0")
        if first in (None, _BEFORE_THE_FIRST) or history.find(first) is not None:
            return Finding.fine(CHECK, f"{name} has every snapshot from {snapshot} on.")
        told = (
            f"{name} has no snapshot {first} any more, with which the query once began, and under the trigger "
            "availableNow Iceberg counts from there: Spark would stop there."
        )
        return _refused(told, "Give the query another trigger, or start over by restore_from: none.")
    if history.find(snapshot) is None:
        told = f"{name} has no snapshot {snapshot} any more, with which the next batch begins"
    else:
        told = (
            f"the current snapshot of {name} does not come from snapshot {snapshot}, with which the next batch begins"
        )
    kept = "The table property history.expire.max-snapshot-age-ms says how long snapshots are kept. "
    return _refused(f"{told}: Spark would stop there.", f"{_NEWER}{kept}")


def _first_snapshot(file: Path) -> int | None:
    """The snapshot that a query began with, ``None`` where the file is not on a disk."""
    if not file.is_file():
        return None
    with believed(f"What Iceberg keeps in {file}", "Restore another checkpoint."):
        return int(json.loads(file.read_text(encoding="utf-8"))["snapshot_id"])


def _replaced(name: str, was: str, now: str) -> Finding:
    told = f"{name} is another table than the checkpoint's: its id was {was} and is {now} now. Spark would stop there."
    return _refused(told, "Put the table back, or start over by restore_from: none.")


def _lossy(told: str, hint: str = "") -> Finding:
    return Finding(CHECK, Verdict.WITH_LOSS, told, f"{hint}{_ACCEPT}")


def _refused(told: str, hint: str) -> Finding:
    return Finding.of_error(CHECK, RestoreRefused(told, hint=hint.strip()))


def _files(files: Sequence[Mapping[str, Any]]) -> str:
    told = "1 file" if len(files) == 1 else f"{len(files)} files"
    with suppress(KeyError, TypeError, ValueError):  # statistics are optional
        return f"{told} with {sum(int(json.loads(file['stats'])['numRecords']) for file in files)} rows"
    return told
