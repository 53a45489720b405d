"""Everything this package raises, in one tree.

Each error says what happened, to which path or job, and tells in :attr:`CheckpointError.hint` what to do
next; ``str(error)`` has both.

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
    """A create failed and could not be read back: the file may or may not exist.

    Data that the file refers to must not be deleted on a guess.
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
        checkpoint: the broken checkpoint, ``{job id}/chk-N`` or the directory of a savepoint; ``None`` if unknown.
    """

    recoverable = False
    checkpoint: str | None = None


class CorruptMetadata(CorruptCheckpoint):
    """A ``_metadata`` file is truncated, was changed, or was never ours."""


class UnknownMetadataVersion(CorruptCheckpoint):
    """A ``_metadata`` file is of a version that this release cannot read."""


class CorruptRecord(CorruptCheckpoint):
    """A record in ``control/`` is truncated, was changed, is in another record's place, or has an impossible value."""


class CheckpointFileMissing(CorruptCheckpoint):
    """A file that ``_metadata`` names is gone."""


class CheckpointFileChanged(CorruptCheckpoint):
    """A file that ``_metadata`` names has another size or another checksum."""


class CaptureIncomplete(CheckpointError):
    """The live location did not hold all files of a batch; a later batch may be whole."""


class CheckpointFailure(CheckpointError):
    """One checkpoint attempt failed; the failure counts against the tolerance."""


class CheckpointExpired(CheckpointFailure):
    """A checkpoint attempt took longer than its timeout and was discarded."""


class SavepointFailed(CheckpointError):
    """A requested savepoint was not taken. This failure never counts against the tolerance."""


class ToleranceExceeded(CheckpointError):
    """More consecutive checkpoint failures than ``tolerable_failed_checkpoints``."""


class MustStop(CheckpointError):
    """Whatever this run did next would be wrong, so it stops: the error is never counted, tolerated or retried."""

    recoverable = False


class Fenced(MustStop):
    """A newer run has taken the job over. The fenced writer must stop, and can no longer change anything."""


class SinkOverlap(MustStop):
    """Another query writes to the same sink, most likely the query of a run that was wrongly declared dead."""


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
    """The restore would work, but lose rows, or double rows under ``EXACTLY_ONCE``; the user has not accepted that."""


class SinkNotEmpty(RestoreRefused):
    """A start from nothing was asked for, but the sink already has data."""


class SinkMismatch(RestoreRefused):
    """The sink does not hold the data that the checkpoint says it holds."""


class StateBackendMismatch(RestoreRefused):
    """The job's state backend is not the one whose state the checkpoint holds."""


class QueryFailed(CheckpointError):
    """The streaming query ended with an error; Spark's own error is in ``__cause__``."""


class QueryNotBuilt(QueryFailed):
    """The job's function raised, or Spark could not plan the query; that error is in ``__cause__``.

    The first time, the cause may pass, such as a catalog that is away. The same error at the very next start is a
    mistake in the job.
    """


class PoisonBatch(QueryFailed):
    """The same batch failed with the same error each time it was tried; the last error is in ``__cause__``."""

    recoverable = False

    @property
    def in_one_line(self) -> str:
        """Message and hint in one line."""
        return f"{self.message} {self.hint}"


class SparkNotStarted(CheckpointError):
    """Spark's JVM, or Spark in the JVM, did not start; PySpark's error is in ``__cause__``."""


class DriverLost(CheckpointError):
    """The JVM of the Spark driver is gone; only a new process can continue the job."""
