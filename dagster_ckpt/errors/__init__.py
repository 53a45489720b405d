"""Everything this package raises, in one tree.

Each error says what happened, to which path or job, and tells in :attr:`CheckpointError.hint` what to do
next; ``str(error)`` has both. The docstrings are the reference of errors in the documentation.

::

    CheckpointError
    ├── InvalidConfiguration (ValueError)      a value the user chose cannot be used
    │   ├── JavaNotFound                       no usable Java for PySpark
    │   └── UnsupportedSpark                   a Spark of a release that this package does not know
    ├── StorageError (OSError)                 the storage did not do what was asked
    │   ├── StorageUnusable                    the storage cannot hold checkpoints at all (probe failed, read-only)
    │   ├── WorkingDirectoryFailed             a disk of this machine refused a file of the working directory
    │   ├── PublishConflict (FileExistsError)  the name is taken, by other bytes
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
    │   ├── SinkOverlap                        another query writes to the same sink
    │   └── TopicRecreated                     a topic of Kafka was deleted and created again under a running query
    ├── JobAlreadyRunning                      another run of the same job is alive
    ├── RestoreRefused                         a restore would lose or double data, so nothing was touched
    │   ├── CheckpointsLost                    the checkpoints were in the memory of a driver that is gone
    │   ├── QueryMismatch                      the checkpoint was taken of another query
    │   ├── RestoreWithLoss                    the restore would work, but lose or double rows
    │   ├── SinkNotEmpty                       start from nothing, but the sink has data
    │   ├── SinkMismatch                       the sink does not hold what the checkpoint says it holds
    │   └── StateBackendMismatch               the state backend cannot read the checkpoint's state
    ├── UpgradeFailed                          a new version of the code completed no checkpoint in time
    ├── QueryFailed                            the streaming query ended with an error
    │   ├── QueryNotBuilt                      the job's function failed, or Spark could not plan the query
    │   └── PoisonBatch                        the same batch failed with the same error each time it was tried
    ├── SparkNotStarted                        Spark's JVM, or Spark in it, did not start
    ├── DriverLost                             the JVM of the Spark driver is gone, or the driver
    └── NotRestarted                           the job has failed, and the restart strategy allows no restart
"""

from __future__ import annotations

from dagster_ckpt.errors.base import CheckpointError, InvalidConfiguration, JavaNotFound, UnsupportedSpark
from dagster_ckpt.errors.runs import (
    CaptureIncomplete,
    CheckpointExpired,
    CheckpointFailure,
    CheckpointsLost,
    DriverLost,
    Fenced,
    JobAlreadyRunning,
    MustStop,
    NotRestarted,
    PoisonBatch,
    QueryFailed,
    QueryMismatch,
    QueryNotBuilt,
    RestoreRefused,
    RestoreWithLoss,
    SavepointFailed,
    SinkMismatch,
    SinkNotEmpty,
    SinkOverlap,
    SparkNotStarted,
    StateBackendMismatch,
    ToleranceExceeded,
    TopicRecreated,
    UpgradeFailed,
)
from dagster_ckpt.errors.storage import (
    CheckpointFileChanged,
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptCheckpoint,
    CorruptMetadata,
    CorruptRecord,
    ForeignCheckpoint,
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
    UnknownMetadataVersion,
    WorkingDirectoryFailed,
)

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
    "NotRestarted",
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
    "TopicRecreated",
    "UnknownMetadataVersion",
    "UnsupportedSpark",
    "UpgradeFailed",
    "WorkingDirectoryFailed",
]

for _name in __all__:  # as an import path and in a traceback, the package has them
    globals()[_name].__module__ = __name__
