"""Errors of storages, and of what is stored there."""

from __future__ import annotations

from dagster_ckpt.errors.base import CheckpointError

__all__ = [
    "CheckpointFileChanged",
    "CheckpointFileMissing",
    "CheckpointNotFound",
    "CorruptCheckpoint",
    "CorruptMetadata",
    "CorruptRecord",
    "ForeignCheckpoint",
    "PublishConflict",
    "PublishUnknown",
    "StorageError",
    "StorageUnusable",
    "UnknownMetadataVersion",
    "WorkingDirectoryFailed",
]


class StorageError(CheckpointError, OSError):
    """The storage did not do what was asked; the cause is in ``__cause__``.

    While checkpointing it counts against the tolerance; otherwise the job is restarted.

    Way on:
        Mend the storage.
    """

    @property
    def is_denied(self) -> bool:
        """Whether this user may not use a file or directory that is there."""
        return isinstance(self.__cause__, PermissionError)


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
    """An exclusive create found other bytes under the name, or a name that was taken and is gone again.

    Two writers created the same name, and this writer lost. The protocol handles this error wherever it is to be
    expected.

    Way on:
        If you see this error, another program writes into the job's directory: find that program.
    """


class PublishUnknown(StorageError):
    """A create failed and could not be read back: the file may or may not exist.

    Data that the file refers to must not be deleted on a guess.

    The file is read back before anything is decided about it.

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

    A record in ``control/``, or the state's own metadata, is not what was written; or every checkpoint is in
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
