"""Everything this package raises, in one tree.

Each error says what happened, to which path or job, and tells in :attr:`CheckpointError.hint` what to do
next; ``str(error)`` has both. The docstrings are the reference of errors in the documentation.

::

    CheckpointError
    ├── InvalidConfiguration (ValueError)      a value the user chose cannot be used
    │   └── JavaNotFound                       no usable Java for PySpark
    ├── StorageError (OSError)                 the storage did not do what was asked
    │   ├── StorageUnusable                    the storage cannot hold checkpoints at all (probe failed, read-only)
    │   ├── WorkingDirectoryFailed             a disk of this machine refused a file of the working directory
    │   ├── PublishConflict (FileExistsError)  the name is taken, by bytes that are not ours
    │   └── PublishUnknown                     nobody can tell whether the write happened
    ├── CheckpointNotFound (FileNotFoundError) the pointer names nothing
    ├── ForeignCheckpoint                      the pointer or directory belongs to another job or deployment
    ├── CorruptCheckpoint                      what is stored is not what was written
    │   ├── CorruptMetadata                    `_metadata` is truncated, changed or not ours
    │   ├── UnknownMetadataVersion             `_metadata` is of a version this release cannot read
    │   ├── CorruptRecord                      a record in `control/` is not what was written
    │   ├── CheckpointFileMissing              a file named by `_metadata` is gone
    │   └── CheckpointFileChanged              a file named by `_metadata` has another size or checksum
    ├── CaptureIncomplete                      the live location did not hold a whole batch (taken again)
    ├── CheckpointFailure                      a checkpoint attempt failed; counted against the tolerance
    │   └── CheckpointExpired                  the checkpoint attempt took longer than its timeout
    ├── SavepointFailed                        a requested savepoint was not taken
    ├── ToleranceExceeded                      more consecutive failed checkpoints than tolerated
    ├── MustStop                               whatever this run did next would be wrong
    │   ├── Fenced                             a newer run has taken this job over
    │   └── SinkOverlap                        another query writes to the same sink
    ├── JobAlreadyRunning                      another run of the same job is alive
    ├── RestoreRefused                         a restore would lose or double data, so nothing was touched
    │   ├── CheckpointsLost                    the checkpoints were in the memory of a driver that is gone
    │   ├── QueryMismatch                      the checkpoint was taken of another query
    │   ├── RestoreWithLoss                    the restore would work, but lose or double rows
    │   ├── SinkNotEmpty                       start from nothing, but the sink has data
    │   ├── SinkMismatch                       the sink does not hold what the checkpoint says it holds
    │   └── StateBackendMismatch               the state backend cannot read the checkpoint's state
    ├── QueryFailed                            the streaming query ended with an error
    │   ├── QueryNotBuilt                      the job's function failed, or Spark could not plan the query
    │   └── PoisonBatch                        the same batch failed with the same error each time it was tried
    ├── SparkNotStarted                        Spark's JVM, or Spark in it, did not start
    └── DriverLost                             the JVM of the Spark driver is gone
"""

from __future__ import annotations

from dagster_ckpt.shown_text import printable, redacted

__all__ = [
    "CaptureIncomplete",
    "CheckpointError",
    "CheckpointExpired",
    "CheckpointFailure",
    "CheckpointFileChanged",
    "CheckpointFileMissing",
    "CheckpointNotFound",
    "CheckpointsLost",
    "CorruptCheckpoint",
    "CorruptMetadata",
    "CorruptRecord",
    "DriverLost",
    "Fenced",
    "ForeignCheckpoint",
    "InvalidConfiguration",
    "JavaNotFound",
    "JobAlreadyRunning",
    "MustStop",
    "PoisonBatch",
    "PublishConflict",
    "PublishUnknown",
    "QueryFailed",
    "QueryMismatch",
    "QueryNotBuilt",
    "RestoreRefused",
    "RestoreWithLoss",
    "SavepointFailed",
    "SinkMismatch",
    "SinkNotEmpty",
    "SinkOverlap",
    "SparkNotStarted",
    "StateBackendMismatch",
    "StorageError",
    "StorageUnusable",
    "ToleranceExceeded",
    "UnknownMetadataVersion",
    "WorkingDirectoryFailed",
]


class CheckpointError(Exception):
    """Base of every error of this package.

    Args:
        message: what happened, naming the path, job or checkpoint concerned.
        hint: what to do next, as a sentence or a command to copy.

    Message and hint may quote text from elsewhere. So credentials are removed from both and control characters are
    escaped, wherever the error is shown (a terminal, a log, Dagster's events).

    Attributes:
        recoverable: whether starting the job again can help, so that the restart strategy decides. ``False`` only for
            errors after which a person has to do something first.
    """

    recoverable: bool = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(redacted(message))
        self.hint = printable(redacted(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InvalidConfiguration(CheckpointError, ValueError):
    """A value the user chose cannot be used.

    Such as: no directory for a savepoint; ``--stop`` of a job that does not run; ``dispose`` of a checkpoint that is
    not broken; ``pin`` of a savepoint; a key of Flink's that is unknown, cannot be honoured or belongs elsewhere; an
    interval under 10 ms; a checkpoint path of a kind that is not supported; a query that sets ``checkpointLocation`` or
    has a continuous trigger; a writer of Delta, Iceberg or Hudi, or a ``CustomSink`` around Spark's file sink; a
    function that returns something else than an unstarted ``DataStreamWriter``; a Spark Connect session.

    Way on:
        The message names the value, the hint the remedy.
    """

    recoverable = False


class JavaNotFound(InvalidConfiguration):
    """No Java that PySpark can run on was found.

    There is none, or one older than 17, or a trimmed one without ``jdk.incubator.vector``. A Java that is there and
    does not run is :class:`SparkNotStarted`.

    Way on:
        Install a full Java 17 or newer; put it on the ``PATH`` or in ``JAVA_HOME``.
    """


class StorageError(CheckpointError, OSError):
    """The storage did not do what was asked; the cause is in ``__cause__``.

    While checkpointing it counts against the tolerance; otherwise the job is restarted.

    Way on:
        Mend the storage.
    """


class StorageUnusable(StorageError):
    """The storage cannot hold checkpoints at all, for example because it cannot be written.

    It is not writable, full, without hard links, a bucket that does not exist or is zonal, or it let a file be created
    twice. Found before a query is started. A run that the sensor launched counts it as a failed start: the sensor
    launches the next one after the delay of the restart strategy. A run that a person launched fails at once.

    Way on:
        Make the directory writable, free space, create the bucket, or use a file system with hard links; launch again.
    """


class WorkingDirectoryFailed(StorageError):
    """A disk of this machine did not take, or give back, a file that a start needs in the working directory.

    The disk is full, over a quota, read-only or broken, or the process has too many files open. The message names the
    directory and what its disk has left. Restarted.

    Way on:
        Free space, raise ``ulimit -n``, or set ``working_directory`` to a directory on another disk.
    """


class PublishConflict(StorageError, FileExistsError):
    """An exclusive create found the name taken by bytes that are not ours.

    Two writers tried for one name and this one lost; the protocol handles that itself wherever it can happen in order.

    Way on:
        If it reaches you, something else writes into the job's directory: find it.
    """


class PublishUnknown(StorageError):
    """A create failed and could not be read back: the file may or may not exist.

    Data that the file refers to must not be deleted on a guess.

    It is read back before anything is decided on it.

    Way on:
        Mend the storage.
    """


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """The pointer does not name a completed checkpoint.

    ``restore_from`` or the command line names nothing that is complete. Or what is recorded as the newest is gone, such
    as a savepoint that a new lineage began with. Or a checkpoint to be pinned is being deleted, or one to be unpinned
    is not pinned.

    Way on:
        ``dagster-ckpt list JOB``; name one of those. Put a savepoint back where it was.
    """

    recoverable = False


class ForeignCheckpoint(CheckpointError):
    """The checkpoint or directory belongs to another job or another deployment.

    Way on:
        Name a checkpoint of this job. Give the deployment its own path or job name, or, if it is meant to take over,
        the owner's ``deployment``.
    """

    recoverable = False


class CorruptCheckpoint(CheckpointError):
    """What is stored is not what was written.

    A record in ``control/``, or the state's own metadata, is not what was written; or every checkpoint there is is in
    quarantine.

    Way on:
        Put the file back from a backup, or restore another checkpoint: the guide "Go past a broken checkpoint".

    Attributes:
        checkpoint: the broken checkpoint, ``{job id}/chk-N`` or the directory of a savepoint; ``None`` if unknown.
    """

    recoverable = False
    checkpoint: str | None = None


class CorruptMetadata(CorruptCheckpoint):
    """A ``_metadata`` file is truncated, was changed, or was never ours.

    Or it was moved.

    Way on:
        Put the file back, or go past the checkpoint.
    """


class UnknownMetadataVersion(CorruptCheckpoint):
    """A ``_metadata`` file is of a version that this release cannot read.

    A newer release wrote it.

    Way on:
        Use that release.
    """


class CorruptRecord(CorruptCheckpoint):
    """A record in ``control/`` is truncated, was changed, is in another record's place, or has an impossible value.

    Way on:
        The hint names the next step for this record.
    """


class CheckpointFileMissing(CorruptCheckpoint):
    """A file that ``_metadata`` names is gone.

    Way on:
        Put the file back, or go past the checkpoint.
    """


class CheckpointFileChanged(CorruptCheckpoint):
    """A file that ``_metadata`` names has another size or another checksum.

    Way on:
        Put the file back, or go past the checkpoint.
    """


class CaptureIncomplete(CheckpointError):
    """The live location did not hold all files of a batch; a later batch may be whole.

    Spark was faster. Taken again with the next batch; five in a row count as one failed checkpoint.

    Way on:
        None, unless it repeats: keep more batches (``spark.sql.streaming.minBatchesToRetain``, 100 by default).
    """


class CheckpointFailure(CheckpointError):
    """One checkpoint attempt failed; the failure counts against the tolerance.

    The query goes on.

    Way on:
        See the warning in the run's log for the cause.
    """


class CheckpointExpired(CheckpointFailure):
    """A checkpoint attempt took longer than its timeout and was discarded.

    Way on:
        A slow storage: raise ``timeout``, or mend the storage.
    """


class SavepointFailed(CheckpointError):
    """A requested savepoint was not taken. It never counts against the tolerance.

    The reason is the driver's, or nobody answered in time. If the job was to be stopped with it, the job is restarted
    from its newest checkpoint.

    Way on:
        Mend what it names, and ask again.
    """


class ToleranceExceeded(CheckpointError):
    """More consecutive checkpoint failures than ``tolerable_failed_checkpoints``.

    The job fails over; restarted.

    Way on:
        Mend the storage, or raise the tolerance.
    """


class MustStop(CheckpointError):
    """Whatever this run did next would be wrong, so it stops: the error is never counted, tolerated or retried."""

    recoverable = False


class Fenced(MustStop):
    """A newer run has taken the job over. The fenced writer must stop; it can change nothing any more.

    This run was held for dead in the meantime.

    Way on:
        None. If it repeats, the run's host pauses, or its storage is unreachable for longer than 30 s.
    """


class SinkOverlap(MustStop):
    """Another query writes to the same sink, most likely the query of a run that was wrongly declared dead.

    No checkpoint covers what that query wrote.

    Way on:
        Make sure that the other run is dead, then launch the job again with ``restore_from: latest``: the sink goes
        back to the checkpoint, and what the other run wrote is removed.
    """


class JobAlreadyRunning(CheckpointError):
    """Another run of the same job is alive.

    This run changed nothing.

    Way on:
        Terminate the other one first. With the tag limit of ``dagster.yaml`` a second run is queued instead.
    """

    recoverable = False


class RestoreRefused(CheckpointError):
    """The restore would lose or double data, or cannot work. Nothing was touched.

    Such as: under ``EXACTLY_ONCE`` a sink that cannot be rolled back; a state store whose files are not known; logs of
    a newer Spark; ``fork_from`` for a job that has checkpoints of its own.

    Way on:
        The hint names the setting: a file sink, ``mode="AT_LEAST_ONCE"``, another provider, an upgrade.
    """

    recoverable = False


class CheckpointsLost(RestoreRefused):
    """The checkpoints of a job were in the memory of a driver that is gone.

    That is ``JobManagerCheckpointStorage`` without a ``checkpoint_path``.

    Way on:
        Empty the sink and launch with ``restore_from: none``; give the storage a path, or use
        ``FileSystemCheckpointStorage``.
    """


class QueryMismatch(RestoreRefused):
    """The query differs from the one whose checkpoint is to be restored.

    Spark's reason is in the message. Found before batches are taken out of the sink.

    Way on:
        Run the query as it was, or start over.
    """


class RestoreWithLoss(RestoreRefused):
    """The restore would work, but lose rows, or double rows under ``EXACTLY_ONCE``; the user has not accepted that.

    Input files of a batch that is read again are gone, or a sink that cannot go back has batches whose boundaries are
    not known. Under ``AT_LEAST_ONCE`` what is doubled is a warning in the run's log.

    Way on:
        Put back what is named; or launch with ``allow_loss: true``.
    """


class SinkNotEmpty(RestoreRefused):
    """A start from nothing was asked for, but the sink already has data.

    Spark would skip every batch id that the sink has seen, and their rows would be lost.

    Way on:
        Empty the sink with its ``_spark_metadata`` or ``_transactions``, write elsewhere, or go on with ``restore_from:
        latest``.
    """


class SinkMismatch(RestoreRefused):
    """The sink does not hold the data that the checkpoint says it holds.

    The query writes to another place than when the checkpoint was taken, or files that the sink had written by then are
    missing or have another size. Or the checkpoint is one that a rollback has abandoned since, of a sink that does not
    hold its rows any more.

    Way on:
        Write to the same place; put the files back; or restore a checkpoint from before those files.
    """


class StateBackendMismatch(RestoreRefused):
    """The job's state backend is not the one whose state the checkpoint holds.

    The state is of another provider than the job's ``state_backend``, or of one of yours that the job no longer names.

    Way on:
        Give the job the state backend that the hint names, or start over.
    """


class QueryFailed(CheckpointError):
    """The streaming query ended with an error; Spark's own error is in ``__cause__``.

    Restarted.

    Way on:
        Mend what the error names, and launch again.
    """


class QueryNotBuilt(QueryFailed):
    """The job's function raised, or Spark could not plan the query; that error is in ``__cause__``.

    The first time it may be something that passes, such as a catalog that is away. The same error in the very next
    attempt is a mistake.

    Restarted. If the next start fails in the same way (the same error but for numbers, ids and paths), the job ends.
    Only what speaks of an outage (a refused connection, a timeout, a full disk) is tried again for as long as the
    strategy allows.

    Way on:
        Mend the function, and launch again.
    """


class PoisonBatch(QueryFailed):
    """The same batch failed with the same error each time it was tried; the last error is in ``__cause__``.

    It failed ``poison_batch_attempts`` times in a row. It is not tried again, whatever the restart strategy still
    allows.

    Way on:
        The guide "Deal with a batch that fails again and again".
    """

    recoverable = False

    @property
    def in_one_line(self) -> str:
        """Message and hint in one line."""
        return f"{self.message} {self.hint}"


class SparkNotStarted(CheckpointError):
    """Spark's JVM, or Spark in the JVM, did not start; PySpark's error is in ``__cause__``.

    Too little memory, a port that is taken, a master that is away. The message has PySpark's reason. Restarted.

    Way on:
        The JVM's own words are in the run's error output (in Dagster: *stderr* of the run). Look at the machine's
        memory, ``spark.driver.memory`` and ``JAVA_HOME``.
    """


class DriverLost(CheckpointError):
    """The JVM of the Spark driver is gone; only a new process can continue the job.

    It was killed, or out of memory. The run fails and the sensor resumes the job in a new process.

    Way on:
        If it repeats: ``spark.driver.memory``.
    """
