"""Everything this package raises, in one tree.

Each error says what happened, to which path or job, and carries in :attr:`CheckpointError.hint` the
next thing to do; both are in ``str(error)``.

::

    CheckpointError
    ├── InvalidConfiguration (ValueError)      a value the user chose cannot be used
    │   └── JavaNotFound                       no usable Java for PySpark
    ├── StorageError (OSError)                 the storage did not do what was asked
    │   ├── StorageUnusable                    it cannot hold checkpoints at all (probe failed, read-only)
    │   ├── WorkingDirectoryFailed             a disk of this machine did not take what a start needs there
    │   ├── PublishConflict (FileExistsError)  the name is taken by somebody else's bytes
    │   └── PublishUnknown                     nobody can say whether the write happened
    ├── CheckpointNotFound (FileNotFoundError) the pointer names nothing
    ├── ForeignCheckpoint                      the pointer or directory belongs to another job or deployment
    ├── CorruptCheckpoint                      what is stored is not what was written
    │   ├── CorruptMetadata                    `_metadata` is truncated, changed or not ours
    │   ├── UnknownMetadataVersion             `_metadata` is of a version this release cannot read
    │   ├── CorruptRecord                      a record in `control/` is not what was written
    │   ├── CheckpointFileMissing              a file named by `_metadata` is gone
    │   └── CheckpointFileChanged              a file named by `_metadata` has another size or checksum
    ├── CaptureIncomplete                      the live location did not hold a whole batch (taken again)
    ├── CheckpointFailure                      one attempt failed; counted against the tolerance
    │   └── CheckpointExpired                  the attempt took longer than its timeout
    ├── SavepointFailed                        a savepoint that was asked for was not taken
    ├── ToleranceExceeded                      more consecutive failed checkpoints than tolerated
    ├── MustStop                               nothing this run does from here on could be right
    │   ├── Fenced                             a newer run has taken this job over
    │   └── SinkOverlap                        another query writes to the same sink
    ├── JobAlreadyRunning                      another run of the same job is alive
    ├── RestoreRefused                         a restore would lose or double data, so nothing was touched
    │   ├── CheckpointsLost                    they were in the memory of a driver that is gone
    │   ├── QueryMismatch                      the query is not the one the checkpoint was taken of
    │   ├── RestoreWithLoss                    it would work, and rows would be lost or doubled
    │   ├── SinkNotEmpty                       start from nothing, but the sink has data
    │   ├── SinkMismatch                       the sink does not hold what the checkpoint says it holds
    │   └── StateBackendMismatch               the state backend cannot read the checkpoint's state
    ├── QueryFailed                            the streaming query ended with an error
    │   ├── QueryNotBuilt                      it never began: the job's function failed, or Spark could not plan it
    │   └── PoisonBatch                        the same batch did, with the same error, each time it was tried
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

    Both may quote what was read or answered: credentials are taken out of them, and control characters are escaped, so
    that wherever an error is shown (a terminal, a log, Dagster's events) it shows neither.

    Attributes:
        recoverable: whether starting the job again can help, so that the restart strategy is asked. It can, unless a
            person has to do something first: only those errors say ``False``.
    """

    recoverable: bool = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(redacted(message))
        self.hint = printable(redacted(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InvalidConfiguration(CheckpointError, ValueError):
    """A value the user chose cannot be used."""

    recoverable = False


class JavaNotFound(InvalidConfiguration):
    """No Java that PySpark can run on was found."""


class StorageError(CheckpointError, OSError):
    """The storage did not do what was asked; the cause is in ``__cause__``."""


class StorageUnusable(StorageError):
    """The storage cannot hold checkpoints at all, for example because it cannot be written."""


class WorkingDirectoryFailed(StorageError):
    """A disk of this machine did not take, or give back, a file that a start needs in the working directory."""


class PublishConflict(StorageError, FileExistsError):
    """An exclusive create found the name taken by bytes that are not ours."""


class PublishUnknown(StorageError):
    """A create failed and could not be read back: it may or may not have happened.

    Nothing that belongs to it may be deleted on a guess.
    """


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """The pointer does not name a completed checkpoint."""

    recoverable = False


class ForeignCheckpoint(CheckpointError):
    """The checkpoint or directory belongs to another job or another deployment."""

    recoverable = False


class CorruptCheckpoint(CheckpointError):
    """What is stored is not what was written.

    Attributes:
        checkpoint: ``{job id}/chk-N`` where it is known which checkpoint is broken, or the directory of a savepoint.
    """

    recoverable = False
    checkpoint: str | None = None


class CorruptMetadata(CorruptCheckpoint):
    """A ``_metadata`` file is truncated, was changed, or was never ours."""


class UnknownMetadataVersion(CorruptCheckpoint):
    """A ``_metadata`` file is of a version that this release cannot read."""


class CorruptRecord(CorruptCheckpoint):
    """A record in ``control/`` is truncated, was changed, lies in another's place, or says what cannot be."""


class CheckpointFileMissing(CorruptCheckpoint):
    """A file that ``_metadata`` names is gone."""


class CheckpointFileChanged(CorruptCheckpoint):
    """A file that ``_metadata`` names has another size or another checksum."""


class CaptureIncomplete(CheckpointError):
    """The live location did not hold everything one batch needs; a later batch may."""


class CheckpointFailure(CheckpointError):
    """One checkpoint attempt failed; it counts against the tolerance."""


class CheckpointExpired(CheckpointFailure):
    """A checkpoint attempt took longer than its timeout and was discarded."""


class SavepointFailed(CheckpointError):
    """A savepoint that was asked for was not taken. It never counts against the tolerance."""


class ToleranceExceeded(CheckpointError):
    """More consecutive checkpoint failures than ``tolerable_failed_checkpoints``."""


class MustStop(CheckpointError):
    """Nothing this run does from here on could be right: it is never counted, tolerated or tried again."""

    recoverable = False


class Fenced(MustStop):
    """A newer run has taken the job over. The fenced writer must stop; it can change nothing any more."""


class SinkOverlap(MustStop):
    """Another query writes to the same sink, most likely that of a run that was declared dead and is not."""


class JobAlreadyRunning(CheckpointError):
    """Another run of the same job is alive."""

    recoverable = False


class RestoreRefused(CheckpointError):
    """The restore would lose or double data, or cannot work. Nothing was touched."""

    recoverable = False


class CheckpointsLost(RestoreRefused):
    """The checkpoints of a job were in the memory of a driver that is gone."""


class QueryMismatch(RestoreRefused):
    """The query differs from the one whose checkpoint is to be restored."""


class RestoreWithLoss(RestoreRefused):
    """The restore would work, and rows would be lost, or doubled under ``EXACTLY_ONCE``; nobody has accepted that."""


class SinkNotEmpty(RestoreRefused):
    """A start from nothing was asked for, but the sink already has data."""


class SinkMismatch(RestoreRefused):
    """The sink does not hold the data that the checkpoint says it holds."""


class StateBackendMismatch(RestoreRefused):
    """The job's state backend is not the one whose state the checkpoint holds."""


class QueryFailed(CheckpointError):
    """The streaming query ended with an error; Spark's own error is in ``__cause__``."""


class QueryNotBuilt(QueryFailed):
    """The query never began: the job's function raised, or Spark could not plan it; that error is in ``__cause__``.

    The first time it may be something that passes, such as a catalog that is away. The same error in the very next
    attempt is a mistake.
    """


class PoisonBatch(QueryFailed):
    """The same batch failed with the same error each time it was tried; its last error is in ``__cause__``."""

    recoverable = False

    @property
    def in_one_line(self) -> str:
        """All it says, for where there is one line only."""
        return f"{self.message} {self.hint}"


class SparkNotStarted(CheckpointError):
    """Spark's JVM, or Spark in it, did not start; what PySpark says is in ``__cause__``."""


class DriverLost(CheckpointError):
    """The JVM of the Spark driver is gone; only a new process can go on."""
