"""An Iceberg table through Iceberg's own classes, in the JVM of the session. Nothing here reads a cached table.

Spark's own append would begin again on top of whatever another writer has committed meanwhile, a newer start of the job
included. So Spark writes the files of a batch without a commit, as for a compaction, and the commit is made here: look
at the table's metadata, and have the catalog replace exactly that metadata.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import CheckpointFailure, InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.iceberg.change import Branch, Change, Committed
from dagster_ckpt.spark.sinks.iceberg.lineage import (
    History,
    Snapshot,
    name_of_newest,
    newest_property,
    recorded_newest,
)
from dagster_ckpt.spark.sinks.iceberg.rollback import Rollback, files_to_delete
from dagster_ckpt.spark.sinks.iceberg.staging import STAGED_TABLES, Staging
from dagster_ckpt.spark.sinks.table_sink import explained
from dagster_ckpt.stored_json import believed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergTable"]

_CATALOGS = "org.apache.iceberg.spark.BaseCatalog"
#: Staged for a newer format, rows need ids there that only rows of a compaction have.
_NEWEST_WITH_SPARK_40 = 2
#: A property of a table, and settings of a session, by which Spark's own writers do not publish what they write.
_WAP = "write.wap.enabled"
_TO_PUBLISH = ("spark.wap.branch", "spark.wap.id")
#: From how many manifests on Iceberg merges them; to look for what to merge takes a tenth of a short batch.
_MERGED_FROM, _MERGED_BY_DEFAULT = "commit.manifest.min-count-to-merge", 100
#: How often a commit is begun again because another writer was faster, and the seconds before it is.
_TRIES = 20
_PAUSE = 0.1
#: The age in milliseconds at which a branch expires, whatever the table says.
_FOR_GOOD = 2**63 - 1
#: The catalog has refused the commit, or it is unknown whether the catalog has taken the commit: the table tells.
_BEGUN_AGAIN = frozenset(
    f"org.apache.iceberg.exceptions.{name}Exception" for name in ("CommitFailed", "CommitStateUnknown")
)


class IcebergTable:
    """One table, by its name.

    Args:
        session: a session with Iceberg's classes and the table's catalog.
        name: the name of the table, with that of its catalog.

    Raises:
        InvalidConfiguration: the session has no Iceberg, or the table's catalog is not one of Iceberg.
    """

    format = "Iceberg"

    def __init__(self, session: SparkSession, name: str) -> None:
        self.path = name
        self._session = session
        jvm: Any = session._jvm  # noqa: SLF001 - Iceberg has no Python interface to its commits
        iceberg = jvm.org.apache.iceberg
        try:
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            loader.loadClass(STAGED_TABLES)
        except Exception as error:
            raise InvalidConfiguration(
                f"Spark has no Iceberg, and the job writes to the Iceberg table {name}.",
                hint="Start Spark with spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 "
                "(for Spark 4.1) and a catalog; docs/how-to/sink-iceberg.md shows it.",
            ) from error
        # Once: the JVM looks for a class by its name in all jars, and is asked for a static method before each call.
        self._spark = iceberg.spark.Spark3Util
        lines: Any = iceberg.util.SnapshotUtil
        self._is_ancestor, self._between = lines.isAncestorOf, lines.snapshotIdsBetween
        self._json_of = iceberg.SnapshotParser.toJson
        self._opened: Any = None
        self._staging = Staging(session)
        catalog = self._catalog()
        if not loader.loadClass(_CATALOGS).isInstance(catalog):
            raise InvalidConfiguration(
                f"{name} is in the catalog {catalog.name()}, which is not one of Iceberg.",
                hint="Name the table with its catalog, and set spark.sql.catalog.NAME to "
                "org.apache.iceberg.spark.SparkCatalog; docs/how-to/sink-iceberg.md shows it.",
            )

    # --- what there is -----------------------------------------------------------------------------------------------

    @property
    @explained
    def exists(self) -> bool:
        """Whether the catalog has the table."""
        return self._opened is not None or bool(self._catalog().tableExists(self._name()))

    @property
    @explained
    def identifier(self) -> str | None:
        """The id that the table got when it was created, ``None`` where there is no table."""
        return str(self._metadata().uuid()) if self.exists else None

    @property
    @explained
    def has_data(self) -> bool:
        """Whether the table has a data file."""
        current = self._metadata().currentSnapshot() if self.exists else None
        return current is not None and current.summary().get("total-data-files") != "0"

    @explained
    def history(self) -> History:
        """The snapshots of the table now, none where there is no table."""
        return self._history(self._metadata()) if self.exists else History(None, lambda _: None)

    @explained
    def check_format(self) -> None:
        """Make sure that Spark can stage files for the table.

        Raises:
            InvalidConfiguration: the table has a format that this release of Spark does not stage files for.
        """
        version = int(self._metadata().formatVersion())
        if version > _NEWEST_WITH_SPARK_40 and self._session.version.startswith("4.0."):
            raise InvalidConfiguration(
                f"The Iceberg table {self.path} has format version {version}, which the sink does not write with "
                f"Spark {self._session.version}.",
                hint=f"Use Spark 4.1, or a table with format version {_NEWEST_WITH_SPARK_40}.",
            )

    @explained
    def check_unpublished(self) -> None:
        """Make sure that the session does not ask for commits that readers of ``main`` do not see.

        Raises:
            InvalidConfiguration: the session names a branch or an id for the writes to this table, as in
                write-audit-publish, and the commit of a batch would be published at once.
        """
        wanted = next((name for name in _TO_PUBLISH if self._session.conf.get(name, None)), None)
        if wanted is not None and self._metadata().properties().get(_WAP) == "true":
            raise InvalidConfiguration(
                f"The Iceberg table {self.path} has the property {_WAP}, and the session has {wanted}: batches would "
                "be published to the branch main nevertheless.",
                hint=f"Unset {wanted} in the session of the job if readers of main may see each batch; else write to "
                "a table of its own, and publish from there.",
            )

    # --- changes -----------------------------------------------------------------------------------------------------

    @explained
    def create(self, rows: DataFrame, partition_by: Sequence[str]) -> None:
        """Create the table with the columns of ``rows``, if it is not there."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is loaded where it runs

        writer = self._session.createDataFrame([], rows.schema).writeTo(self.path).using("iceberg")
        if partition_by:
            first, *others = map(f.col, partition_by)
            writer = writer.partitionedBy(first, *others)
        try:
            writer.create()
        except Exception:
            if not self._catalog().tableExists(self._name()):
                raise

    def stage(self, rows: DataFrame, options: Mapping[str, str]) -> Sequence[Any]:
        """Have Spark write the data files of ``rows``, which no reader sees before a commit."""
        return self._staging.files(self._table(), rows, options)

    @explained
    def commit(self, plan: Callable[[History], Change | int]) -> Committed:
        """Change the table as ``plan`` says of its newest metadata, and only of that metadata.

        Args:
            plan: tells the change; or the snapshot that has the change already.

        Raises:
            CheckpointFailure: other writers were faster, again and again.
        """
        for _ in range(_TRIES):
            transaction = self._table().newTransaction()
            base = transaction.startMetadata()
            change = plan(self._history(base))
            if isinstance(change, int):
                return Committed(change, str(base.uuid()))
            made = self._change(transaction, change)
            updated = transaction.currentMetadata()
            if self._replaced(base, updated):
                return Committed(made, str(updated.uuid()))
            time.sleep(_PAUSE)
        raise CheckpointFailure(
            f"Other writers have committed to the Iceberg table {self.path} {_TRIES} times while this run tried to.",
            hint="The job's restart strategy tries again. Let the other writers commit less often.",
        )

    @explained
    def check(self, rollback: Rollback) -> None:
        """Make sure that what a rollback deletes can be deleted alone.

        Raises:
            SinkMismatch: another writer has rewritten one of these files, or files would have to come back beside what
                another writer has appended since.
        """
        if rollback.undone:  # else the table may not be there yet
            self._files_to_delete(rollback)

    def _change(self, transaction: Any, change: Change) -> int:
        """Do all of a change in a transaction; the snapshot that this makes."""
        rollback = change.rollback
        if rollback.to is not None:
            transaction.manageSnapshots().setCurrentSnapshot(rollback.to).commit()
        # A batch undoes nothing, and the catalog is not asked again.
        undone = self._files_to_delete(rollback) if rollback.undone else ()
        if undone:
            update = transaction.newDelete().validateFilesExist()
            for file in undone:
                update.deleteFile(file)
        else:
            update = self._append(transaction)
            for file in change.files:
                update.appendFile(file)
        for name, value in change.summary.items():
            update.set(name, value)
        update.commit()
        made = int(transaction.currentMetadata().currentSnapshot().snapshotId())
        transaction.updateProperties().set(*newest_property(change.summary, made)).commit()
        if change.branch is not None:
            self._move(transaction, change.branch, made)
        return made

    def _append(self, transaction: Any) -> Any:
        """An append as a streaming query of Iceberg's makes it, until there are manifests enough to merge."""
        metadata = transaction.currentMetadata()
        current = metadata.currentSnapshot()
        # The append reads the same list of manifests, and the snapshot keeps it.
        count = 0 if current is None else int(current.dataManifests(self._table().io()).size())
        enough = metadata.propertyAsInt(_MERGED_FROM, _MERGED_BY_DEFAULT)
        return transaction.newFastAppend() if count < enough else transaction.newAppend()

    def _move(self, transaction: Any, branch: Branch, made: int) -> None:
        table = transaction.table()
        there, update = table.refs().containsKey(branch.name), transaction.manageSnapshots()
        if branch.since is None:
            if there:
                update.removeBranch(branch.name).commit()
            return
        oldest = next((each for each in branch.since if self._is_ancestor(table, made, each)), made)
        count = 1 + int(self._between(table, oldest, made).size())  # without the older end
        (update.replaceBranch if there else update.createBranch)(branch.name, made)
        update.setMinSnapshotsToKeep(branch.name, count).setMaxRefAgeMs(branch.name, _FOR_GOOD).commit()

    def _replaced(self, base: Any, updated: Any) -> bool:
        """Have the catalog replace ``base``; whether it surely did."""
        try:
            self._table().operations().commit(base, updated)
        except Exception as error:
            java: Any = getattr(error, "java_exception", None)
            if java is None or java.getClass().getName() not in _BEGUN_AGAIN:
                raise
            return False
        return True

    def _files_to_delete(self, rollback: Rollback) -> Sequence[Any]:
        metadata, files = self._metadata(), self._table().io()

        def changed(each: Snapshot) -> tuple[Mapping[str, Any], Collection[str]]:
            snapshot = metadata.snapshot(each.identifier)
            added = {str(file.location()): file for file in snapshot.addedDataFiles(files)}
            return added, [str(file.location()) for file in snapshot.removedDataFiles(files)]

        return files_to_delete(rollback, changed)

    # --- Iceberg's objects -------------------------------------------------------------------------------------------

    def _table(self) -> Any:
        if self._opened is None:
            self._catalog().invalidateTable(self._name())
            self._opened = self._spark.loadIcebergTable(self._java_session, self.path)
        return self._opened

    def _metadata(self) -> Any:
        return self._table().operations().refresh()

    def _history(self, metadata: Any) -> History:
        current = metadata.currentSnapshot()

        def find(identifier: int) -> Snapshot | None:
            found = metadata.snapshot(identifier)
            return None if found is None else self._snapshot(str(self._json_of(found)))

        def recorded(job: str) -> Snapshot | None:
            value = metadata.properties().get(name_of_newest(job))
            if value is None:
                return None
            what = f"The property {name_of_newest(job)} of the Iceberg table {self.path}"
            with believed(what, "Set the property again, from a backup of the table's metadata.", SinkMismatch):
                return recorded_newest(str(value))

        def sequences() -> Iterator[int]:
            return (int(each.sequenceNumber() or each.timestampMillis()) for each in metadata.snapshots())

        return History(None if current is None else int(current.snapshotId()), find, recorded, sequences)

    def _snapshot(self, text: str) -> Snapshot:
        with believed(f"A snapshot of the Iceberg table {self.path}", "Restore the table from a backup.", SinkMismatch):
            stored = json.loads(text)
            summary = dict(stored["summary"])
            operation = str(summary.pop("operation"))
            sequence = int(stored.get("sequence-number") or stored["timestamp-ms"])
            return Snapshot(int(stored["snapshot-id"]), stored.get("parent-snapshot-id"), operation, summary, sequence)

    @property
    def _java_session(self) -> Any:
        return self._session._jsparkSession  # noqa: SLF001

    def _identified(self) -> Any:
        return self._spark.catalogAndIdentifier(self._java_session, self.path)

    def _catalog(self) -> Any:
        return self._identified().catalog()

    def _name(self) -> Any:
        return self._identified().identifier()
