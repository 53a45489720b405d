"""A Delta table through Delta's own transactions, in the JVM of the session.

Nothing here reads a cached version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidConfiguration, SinkMismatch
from dagster_ckpt.spark.sinks.delta.commits import (
    Commit,
    Rollback,
    claim_of,
    held_of,
    marked_epoch,
    parse_commit,
    plan_rollback,
    refuse_replaced,
    was_reset,
)
from dagster_ckpt.spark.sinks.delta.releases import DELTA, more_parameters
from dagster_ckpt.spark.sinks.table_sink import Overtaken, explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaTable"]

#: Its writers check that a version is not there and then write it, under a lock of the process. Delta's default on S3.
_OF_ONE_DRIVER = "S3SingleDriverLogStore"
#: How often a transaction is begun again because another writer was faster.
_TRIES = 20


class DeltaTable:
    """One table, by its path.

    Args:
        session: a session with Delta's classes.
        path: the directory or URL of the table.

    Raises:
        CheckpointFailure: Delta does not open the table, such as one whose commits a catalog coordinates.
        InvalidConfiguration: the session has no Delta.
    """

    format = "Delta"

    @explained
    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        jvm: Any = session._jvm  # noqa: SLF001 - Delta has no Python interface to its transactions
        self._jvm = jvm
        java_session: Any = session._jsparkSession  # noqa: SLF001
        try:
            classes = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            classes.loadClass(f"{DELTA}.DeltaLog")
        except Exception as error:
            raise InvalidConfiguration(
                f"Spark has no Delta, and the job writes to the Delta table {path}.",
                hint="Start Spark with spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0 (for Spark 4.2), "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
                f"spark.sql.catalog.spark_catalog={DELTA}.catalog.DeltaCatalog; docs/how-to/sink-delta.md shows it.",
            ) from error
        self._more_of_writer, self._more_of_operation = more_parameters(classes)
        self._delta = jvm.org.apache.spark.sql.delta
        # Once: the JVM looks for a class by its name in all jars.
        self._names = self._delta.util.FileNames
        self._session, self._where = java_session, jvm.org.apache.hadoop.fs.Path(path)
        self._delta.DeltaLog.invalidateCache(java_session, self._where)
        self._log: Any = self._delta.DeltaLog.forTable(java_session, self._where)
        self._conf: Any = self._log.newDeltaHadoopConf()

    def check_log_store(self) -> None:
        """Make sure that no driver can put its commit in the place of another driver's.

        Raises:
            InvalidConfiguration: Delta writes the log of the table with its log store for a single driver.
        """
        where = self._log.logPath()
        if self.written_by_one_driver(where.toString()):
            raise InvalidConfiguration(
                f"Delta writes the log of {self.path} with its {_OF_ONE_DRIVER}, under which a commit of one driver "
                "can take the place of another driver's: a run that was declared dead could undo what the run that "
                "took over has written.",
                hint=f"Start Spark with spark.delta.logStore.{where.toUri().getScheme()}.impl="
                "io.delta.storage.S3DynamoDBLogStore and without spark.delta.logStore.class, as every writer of the "
                "table must; or give the DeltaSink single_driver=True if you make sure that two drivers never write at "
                "the same time. docs/how-to/sink-delta.md tells more.",
            )

    @explained
    def written_by_one_driver(self, log: str) -> bool:
        """Whether Delta writes a log there with a log store that knows the writers of its own process only."""
        store = self._log.store()
        if store.getClass().getSimpleName() == "DelegatingLogStore":
            store = store.getDelegate(self._jvm.org.apache.hadoop.fs.Path(log))
        if store.getClass().getSimpleName() == "LogStoreAdaptor":
            store = store.logStoreImpl()
        kind = store.getClass()
        while kind is not None and kind.getSimpleName() != _OF_ONE_DRIVER:
            kind = kind.getSuperclass()
        return kind is not None

    @property
    @explained
    def version(self) -> int:
        """The newest version, -1 where there is no table."""
        return int(self._snapshot().version())

    @property
    @explained
    def identifier(self) -> str:
        """The id that the table got when it was created."""
        return str(self._snapshot().metadata().id())

    @property
    @explained
    def has_data(self) -> bool:
        """Whether the table has a data file."""
        return self.version >= 0 and int(self._snapshot().numOfFiles()) > 0

    @explained
    def setting(self, name: str) -> str | None:
        """A property of the table, ``None`` where the table does not set it."""
        found = self._snapshot().metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    @explained
    def mark(self, application: str) -> int | None:
        """The newest mark of an application, ``None`` when it has written nothing."""
        return self._marks(application)[0]

    @explained
    def held(self, application: str) -> int:
        """The mark of the newest batch of an application that the table holds, 0 for none.

        A claim is no batch: after a claim the table holds what it held at the checkpoint that the claim went back to.
        """
        mark, claimed, held = self._marks(application, claim_of(application), held_of(application))
        return (held if mark == claimed else mark) or 0

    @explained
    def commit_of(self, version: int) -> Commit | None:
        """What a version changed; ``None`` when Delta's log does not have the version."""
        file = self._names.unsafeDeltaFile(self._log.logPath(), version)
        try:
            text = self._log.store().read(file, self._conf).mkString("\n")
        except Exception:
            if file.getFileSystem(self._conf).exists(file):
                raise
            return None
        return parse_commit(version, str(text))

    def commits(self, after: int, newest: int, *, if_there: bool = False) -> list[Commit]:
        """What the versions from ``after + 1`` to ``newest`` changed.

        Args:
            after: the version before the first.
            newest: the last version.
            if_there: whether those will do that the log still has. Delta removes the oldest versions first.

        Raises:
            SinkMismatch: the log does not have all of them any more.
        """
        found: list[Commit] = []
        for version in range(newest, after, -1):
            commit = self.commit_of(version)
            if commit is not None:
                found.append(commit)
            elif if_there:
                break
            else:
                raise SinkMismatch(
                    f"The log of the Delta table {self.path} has no version {version} any more, so what was written "
                    f"after version {after} cannot be taken back.",
                    hint="Nothing was touched. Restore a newer checkpoint. The table property "
                    "delta.logRetentionDuration says how long versions are kept.",
                )
        return found[::-1]

    @explained
    def rollback_plan(self, after: int, newest: int, application: str, held: int | None = None) -> Rollback:
        """What takes back all that our application wrote after version ``after``.

        Args:
            after: the version to go back to.
            newest: the newest version.
            application: our application.
            held: what :meth:`held` was at the version to go back to, ``None`` if that is not known. If the table holds
                that, and no RESTORE by hand may have changed that since, nothing is to be taken back, and the log
                need not go back so far.

        Raises:
            SinkMismatch: that is not possible without a loss, or a file that must come back is gone.
        """
        if held is not None and self.held(application) == held:
            left = self.commits(after, newest, if_there=True)
            if not was_reset(left, application):
                refuse_replaced(left, application)
                return Rollback((), (), ())
        plan = plan_rollback(self.commits(after, newest), application, int(time.time() * 1000))
        gone = [path for path in plan.paths if not self.has_file(path)]
        if gone:
            raise SinkMismatch(
                f"The Delta table {self.path} cannot go back to version {after}: VACUUM has deleted {gone[0]}"
                f"{f' and {len(gone) - 1} more files' if len(gone) > 1 else ''}, which the version needs.",
                hint="Nothing was touched. Restore a newer checkpoint. The table property "
                "delta.deletedFileRetentionDuration says how long VACUUM keeps files.",
            )
        return plan

    @explained
    def commit(
        self, application: str, mark: int, held: int, target: int, plan: Callable[[int], Rollback]
    ) -> tuple[int, Rollback]:
        """Claim the table and change files in one commit, unless a newer mark is there.

        Delta refuses the commit if the mark of the application has changed since the transaction was begun.

        Args:
            application: our application.
            mark: the new mark.
            held: what :meth:`held` is from this commit on.
            target: the version that the table goes back to, for the table's history.
            plan: given the newest version, tells the files that change.

        Returns:
            The new version, and what was changed.

        Raises:
            Overtaken: the table has this mark of another start, or a newer one.
        """
        marks = {application: mark, claim_of(application): mark, held_of(application): held}
        # By Delta's id of the transaction, because a commit that fails may be in the table all the same.
        tried: dict[str, Rollback] = {}
        for left in reversed(range(_TRIES)):
            transaction = self._transaction()
            newest = int(transaction.snapshot().version())
            seen = int(transaction.txnVersion(application))
            if seen == mark and (made := self._made(tried, application, newest)) is not None:
                return made.version, tried[made.transaction]
            if seen >= mark:
                raise Overtaken(marked_epoch(seen))
            transaction.readWholeTable()
            tried[str(transaction.txnId())] = rollback = plan(newest)
            stamps = [self._delta.actions.SetTransaction(name, value, self._none()) for name, value in marks.items()]
            actions = [*stamps, *map(self._action, (*rollback.removed, *rollback.added))]
            operation = self._operation(target if rollback.removed or rollback.added else None)
            try:
                return self._committed(transaction, self._seq(actions), operation), rollback
            except Exception:
                if not left or self.version == newest:
                    raise
        raise AssertionError("not reached")

    def append(
        self,
        rows: DataFrame,
        stamp: tuple[str, int],
        options: Mapping[str, str],
        partition_by: Sequence[str],
        look: Callable[[int, str, Callable[[], int]], None],
    ) -> int:
        """Add rows in one commit that carries a mark.

        Delta refuses the commit if the application gets another mark meanwhile. For the mark before, Delta's own writer
        puts the whole log together anew in a job of Spark's, which takes several times as long as to write a short
        batch. Here ``look`` tells by the few commits since one whose mark is known.

        Args:
            rows: the rows.
            stamp: our application and the mark.
            options: options of Delta's writer.
            partition_by: the columns that the table is partitioned by; none leaves that to the table.
            look: given the newest version, the id of the table, and what has Spark find the newest mark after all,
                raises if the rows must not be added.

        Returns:
            The version that has the rows.
        """
        transaction = self._transaction()
        # As Delta's own look at the newest mark does: a commit with another mark of the application is a conflict now.
        transaction.readTxn().addOne(stamp[0])
        snapshot = transaction.snapshot()
        look(int(snapshot.version()), str(snapshot.metadata().id()), lambda: int(transaction.txnVersion(stamp[0])))
        # Of the query, whose settings count; that of the table is the job's.
        java_session: Any = rows.sparkSession._jsparkSession  # noqa: SLF001
        none = self._none()
        given = self._map({**options, "path": self.path})
        table_options = self._map({name: value for name, value in options.items() if name.startswith("delta.")})
        append, columns = self._jvm.org.apache.spark.sql.SaveMode.Append, self._seq(partition_by)
        writer = self._delta.commands.WriteIntoDelta(
            self._log,
            append,
            self._delta.DeltaOptions(given, java_session.sessionState().conf()),
            columns,
            self._delta.DeltaConfigs.validateConfigurations(table_options),
            rows._jdf,  # noqa: SLF001
            none,
            none,
            *[False] * self._more_of_writer,
        )
        actions = writer.write(transaction, java_session, none, False)
        metadata = options.get("userMetadata")
        told = none if metadata is None else self._jvm.scala.Some(metadata)
        partitioned = self._jvm.scala.Some(columns)
        more = [none] * self._more_of_operation
        operation = getattr(self._delta, "DeltaOperations$Write")(append, partitioned, none, told, *more)
        mark = self._delta.actions.SetTransaction(*stamp, none)
        return self._committed(transaction, actions.appended(mark), operation)

    @explained
    def has_file(self, path: str) -> bool:
        """Whether a data file is there, by its path in Delta's log."""
        where = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(path))
        if not where.isAbsolute():
            where = self._jvm.org.apache.hadoop.fs.Path(self._log.dataPath(), where)
        return bool(where.getFileSystem(self._conf).exists(where))

    def _made(self, tried: Collection[str], application: str, newest: int) -> Commit | None:
        """The newest commit of our application, if one of these transactions has made it."""
        for version in range(newest, -1, -1):
            commit = self.commit_of(version)
            if commit is None or application in commit.marks:
                return commit if commit is not None and commit.transaction in tried else None
        return None

    def _committed(self, transaction: Any, actions: Any, operation: Any) -> int:
        """The version that a transaction has become: the step that Delta refuses if another commit has overtaken it."""
        return int(transaction.commit(actions, operation))

    def _transaction(self) -> Any:
        # Delta's own object of the table, which may be another by now: by its lock writers of this process take turns.
        self._log = self._delta.DeltaLog.forTable(self._session, self._where)
        return self._log.startTransaction()

    def _snapshot(self) -> Any:
        log = self._log
        return log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())

    def _marks(self, *applications: str) -> list[int | None]:
        """The newest marks of applications, all of one version."""
        snapshot = self._snapshot()
        if int(snapshot.version()) < 0:
            return [None for _ in applications]
        found = [snapshot.transactions().get(application) for application in applications]
        return [int(mark.get()) if mark.isDefined() else None for mark in found]

    def _action(self, text: str) -> Any:
        return self._delta.actions.Action.fromJson(text)

    def _operation(self, version: int | None) -> Any:
        """How the table's history calls a commit: a RESTORE to ``version``, or a manual update."""
        if version is None:
            return getattr(getattr(self._delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        some = self._jvm.scala.Some(self._jvm.java.lang.Long(max(version, 0)))
        return getattr(self._delta, "DeltaOperations$Restore")(some, self._none())

    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def _map(self, items: Mapping[str, str]) -> Any:
        collected = self._jvm.java.util.HashMap()
        for name, value in items.items():
            collected.put(name, value)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(collected)

    def _seq(self, items: Sequence[Any]) -> Any:
        collected = self._jvm.java.util.ArrayList()
        for item in items:
            collected.add(item)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(collected)
