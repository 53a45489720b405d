"""Checkpoint storages as Dagster resources, and as plain objects.

A storage object holds configuration only and opens the storage where it is used. So it can be pickled, go to other
processes, and be used by several threads at once.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from dagster_ckpt.checkpoint import DEFAULT_INLINE_THRESHOLD, MAX_INLINE_BYTES, CheckpointCatalog, layout
from dagster_ckpt.config import Configuration, LiveLocationPlace, load_object
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import DriverMemory, FileSystem, PosixFileSystem, default_root, open_filesystem
from dagster_ckpt.paths import local_path
from dagster_ckpt.shown_text import redacted, secrets_of, shown_cause

__all__ = [
    "CheckpointStorage",
    "CustomCheckpointStorage",
    "FileSystemCheckpointStorage",
    "JobManagerCheckpointStorage",
    "configured_storage",
]

DEFAULT_MAX_STATE_SIZE = 5 << 20
DEFAULT_WRITE_BUFFER_SIZE = 4096


class CheckpointStorage(dg.ConfigurableResource["CheckpointStorage"]):
    """Where the checkpoints of jobs are kept. One of the storages below, or a subclass of one."""

    # A validation error that showed its input could show a misplaced secret.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True)

    working_directory: str | None = Field(
        default=None,
        description="Where live checkpointLocations lie while a query runs. Every executor must reach it. Default: "
        "a directory of the user in the local temporary directory; 'taskowned' puts them into the storage.",
    )
    savepoint_path: str | None = Field(
        default=None,
        description="Directory for savepoints that are asked for without one: a path, a file:// URL or that of a "
        "bucket. Every host that runs or restores the job must reach it.",
    )
    deployment: str = Field(
        default="default",
        description="Who owns the jobs' directories. Deployments with the same path and job name refuse each other.",
    )

    def __reduce__(self) -> tuple[Callable[..., CheckpointStorage], tuple[type[CheckpointStorage], dict[str, Any]]]:
        # Dagster's additions to the fields of a resource cannot be pickled, so the copy is made from the fields.
        return _make, (type(self), dict(self))

    def get_resource_definition(self) -> Any:
        """Dagster's definition of the storage; warns of secrets that Dagster would keep and show."""
        for field, value in dict(self).items():
            for name, _ in secrets_of({field: value} if isinstance(value, Mapping) else {}):
                warnings.warn(
                    f"{name} of {type(self).__name__} is written out: Dagster keeps it in its snapshots of every job "
                    'and shows it in its UI. Give dg.EnvVar("NAME OF A VARIABLE") instead; it is looked up where the '
                    "storage is used.",
                    stacklevel=2,
                )
        return super().get_resource_definition()

    @abstractmethod
    def filesystem(self) -> FileSystem:
        """The file system that checkpoints are written to.

        Raises:
            InvalidConfiguration: the storage cannot be used with this configuration.
        """

    @property
    def live_place(self) -> LiveLocationPlace:
        """Where live checkpointLocations lie."""
        return LiveLocationPlace.LOCAL

    @property
    def inline_threshold(self) -> int:
        """Bytes up to which a file is kept in ``_metadata``."""
        return DEFAULT_INLINE_THRESHOLD

    @property
    def size_limit(self) -> int | None:
        """Bytes that one file of a checkpoint may have if all files are kept in ``_metadata``; else ``None``."""
        return None

    def catalog(self, job_name: str) -> CheckpointCatalog:
        """The completed checkpoints of one job."""
        return CheckpointCatalog(self.filesystem(), job_name)

    def live_directory(self, job_name: str) -> Path:
        """Where the live checkpointLocations of one job lie on this machine.

        Raises:
            InvalidConfiguration: ``taskowned`` is set, but the storage is not a local directory to Spark.
        """
        filesystem = self.filesystem()
        if self.working_directory == layout.CHECKPOINT_TASK_OWNED_STATE_DIR:
            if not isinstance(filesystem, PosixFileSystem):
                raise InvalidConfiguration(
                    f"The live checkpointLocation of job {job_name!r} cannot lie in {filesystem.url}: it is no "
                    "directory of this machine.",
                    hint="Set working_directory to a directory that the driver and every executor reach; with gs://, "
                    "s3://, abfs:// or hdfs:// set live_location to storage.",
                )
            return filesystem.local(f"{job_name}/{layout.CHECKPOINT_TASK_OWNED_STATE_DIR}")
        return self._working_root() / self._place() / job_name

    @property
    def private_from(self) -> Path | None:
        """The first directory on the way to :meth:`live_directory` that the library makes.

        ``None`` for the live directory itself: with ``taskowned`` its parents belong to the storage.
        """
        if self.working_directory is None:
            return self._working_root()
        if self.working_directory == layout.CHECKPOINT_TASK_OWNED_STATE_DIR:
            return None
        return self._working_root() / self._place()

    def _place(self) -> str:
        """This storage's directory in the working directory, which two storages may share."""
        return hashlib.sha256(self.filesystem().url.encode()).hexdigest()[:12]

    def _working_root(self) -> Path:
        if self.working_directory is None:
            return default_root()
        return local_path(self.working_directory)


def _make(kind: type[CheckpointStorage], fields: dict[str, Any]) -> CheckpointStorage:
    return kind(**fields)


def _with_environment(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the values of their ``EnvVar``s, which Dagster does not resolve inside a mapping.

    Raises:
        InvalidConfiguration: a variable is not set.
    """
    return {name: _value(value) for name, value in options.items()}


def _value(option: Any) -> Any:
    match option:
        case list() | tuple():
            return [_value(item) for item in option]
        case dg.EnvVar():
            return from_environment(option.env_var_name)
        case {"env": str(name), **others} if not others:  # Dagster's form of an EnvVar in a run
            return from_environment(name)
        case Mapping():
            return _with_environment(option)
    return option


def from_environment(name: str, what: str = "An option of the checkpoint storage") -> str:
    """The value of an environment variable that holds ``what``.

    Raises:
        InvalidConfiguration: the variable is not set.
    """
    if name not in os.environ:
        raise InvalidConfiguration(
            f"{what} is to come from the environment variable {name}, which is not set.",
            hint=f"Set {name} where the run is launched, or write the option otherwise.",
        )
    return os.environ[name]


class _StoredAsFiles(CheckpointStorage):
    """A storage that keeps large files as files, and small files in ``_metadata``."""

    file_state_size_threshold: int = Field(
        default=-1,
        description="Files of at most this many bytes are kept inside _metadata; at most 1 MiB, -1 for 20 KiB.",
    )

    @field_validator("file_state_size_threshold")
    @classmethod
    def _check_threshold(cls, value: int) -> int:
        if not -1 <= value <= MAX_INLINE_BYTES:
            raise ValueError(f"must be between 0 and {MAX_INLINE_BYTES} bytes, or -1 for the default")
        return value

    @property
    def inline_threshold(self) -> int:
        return DEFAULT_INLINE_THRESHOLD if self.file_state_size_threshold == -1 else self.file_state_size_threshold


class FileSystemCheckpointStorage(_StoredAsFiles):
    """Checkpoints as files below one directory, a subdirectory per job.

    .. code-block:: python

        storage = FileSystemCheckpointStorage(checkpoint_path="/mnt/checkpoints")
        storage = FileSystemCheckpointStorage(checkpoint_path=dg.EnvVar("CHECKPOINT_PATH"))
        storage = FileSystemCheckpointStorage(checkpoint_path="gs://bucket/checkpoints")
        storage = FileSystemCheckpointStorage(
            checkpoint_path="gs://bucket/checkpoints", storage_options={"token": dg.EnvVar("KEY_FILE")}
        )
        storage = FileSystemCheckpointStorage(
            checkpoint_path="s3://bucket/checkpoints", storage_options={"profile": "jobs"}
        )
    """

    checkpoint_path: str = Field(
        description="Directory for checkpoints: a path or a file:// URL on a local or POSIX network file system, or "
        "gs://bucket/directory, s3://bucket/directory, hdfs://namenode:8020/directory or "
        "abfs://container@account.dfs.core.windows.net/directory."
    )
    storage_options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,  # there may be secrets in it
        description="How to connect to an object store. For gs://: token (a service account's key file, "
        "google_default, cloud, anon), project, endpoint_url, requester_pays. For s3://: key, secret and token, or "
        "profile, or anon; endpoint_url, requester_pays, client_kwargs (region_name), config_kwargs, "
        "s3_additional_kwargs. For abfs://: account_name with account_key, sas_token, or tenant_id, client_id and "
        "client_secret; or connection_string. Default: the credentials that the provider's own libraries find. For "
        "hdfs://: keys of Hadoop's configuration.",
    )
    live_location: LiveLocationPlace = Field(
        default=LiveLocationPlace.AUTO,
        description="Where live checkpointLocations lie: local, in working_directory; storage, in checkpoint_path "
        "(hdfs://, or gs://, s3:// and abfs:// through Google's connector for Hadoop, S3A or hadoop-azure); auto, in "
        "checkpoint_path if Spark has that connector, its executors are on other machines and no working_directory is "
        "named, else local.",
    )
    write_buffer_size: int = Field(
        default=-1,
        description="Bytes copied at a time when a file is written; at least the threshold, -1 for 4 KiB.",
    )

    @field_validator("write_buffer_size")
    @classmethod
    def _check_buffer(cls, value: int) -> int:
        if value < -1 or value == 0:
            raise ValueError("must be at least 1 byte, or -1 for the default")
        return value

    @property
    def write_buffer(self) -> int:
        """Bytes copied at a time: as configured, and never less than the threshold, as in Flink."""
        chosen = DEFAULT_WRITE_BUFFER_SIZE if self.write_buffer_size == -1 else self.write_buffer_size
        return max(chosen, self.inline_threshold)

    @property
    def live_place(self) -> LiveLocationPlace:
        return self.live_location

    def filesystem(self) -> FileSystem:
        return open_filesystem(
            self.checkpoint_path,
            write_buffer_size=self.write_buffer,
            storage_options=_with_environment(self.storage_options) or None,
        )


class JobManagerCheckpointStorage(CheckpointStorage):
    """Small checkpoints, whole in one ``_metadata`` each: in the driver's memory, or below a directory.

    Without a ``checkpoint_path`` they live and die with the driver: a failing query is restarted from them within its
    run, and a new run refuses to go on. For trying things out, and for queries with hardly any state.

    .. code-block:: python

        storage = JobManagerCheckpointStorage()
        storage = JobManagerCheckpointStorage(checkpoint_path="/mnt/checkpoints", max_state_size=1 << 20)
    """

    checkpoint_path: str | None = Field(
        default=None, description="Directory for _metadata: a path or a file:// URL. None keeps it in memory only."
    )
    max_state_size: int = Field(
        default=DEFAULT_MAX_STATE_SIZE, gt=0, description="Bytes that one file of Spark's state may have; 5 MiB."
    )

    @property
    def size_limit(self) -> int:
        return self.max_state_size

    def filesystem(self) -> FileSystem:
        if self.checkpoint_path is not None:
            return open_filesystem(self.checkpoint_path)
        return DriverMemory(PosixFileSystem(self._working_root() / self._place()), layout.CONTROL_DIR)

    def live_directory(self, job_name: str) -> Path:
        if self.checkpoint_path is not None:
            return super().live_directory(job_name)
        return self._working_root() / self._place() / job_name / layout.CHECKPOINT_TASK_OWNED_STATE_DIR

    @property
    def private_from(self) -> Path | None:
        if self.checkpoint_path is None and self.working_directory == layout.CHECKPOINT_TASK_OWNED_STATE_DIR:
            return self._working_root()
        return super().private_from

    def _place(self) -> str:
        return super()._place() if self.checkpoint_path is not None else "jobmanager"

    def _working_root(self) -> Path:
        # In the driver's memory there is no directory that 'taskowned' could name.
        if self.checkpoint_path is None and self.working_directory == layout.CHECKPOINT_TASK_OWNED_STATE_DIR:
            return default_root()
        return super()._working_root()


class CustomCheckpointStorage(_StoredAsFiles):
    """A storage of the user's: whatever implements :class:`~dagster_ckpt.filesystem.FileSystem`.

    Hold it to :class:`dagster_ckpt.testing.filesystem_contract.FileSystemContract` in your own tests.

    .. code-block:: python

        storage = CustomCheckpointStorage(
            factory="my_company.storage:VaultFileSystem", options={"vault": "jobs", "token": dg.EnvVar("VAULT_TOKEN")}
        )
    """

    factory: str = Field(description="Import path, 'module:name', of what makes the file system.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,  # there may be secrets in it
        description="Keyword arguments of the factory. What is an EnvVar, at any depth, is looked up for it.",
    )

    def filesystem(self) -> FileSystem:
        make = load_object(self.factory, "the factory of a checkpoint storage")
        options = _with_environment(self.options)
        try:
            filesystem = make(**options)
        except TypeError as error:
            secrets = [value for _, value in secrets_of(options)]
            raise InvalidConfiguration(
                f"The checkpoint storage {self.factory} cannot be made: {redacted(str(error), secrets)}.",
                hint=f"It is called with the options given: {', '.join(sorted(options)) or 'none'}.",
            ) from shown_cause(error, secrets)
        if not isinstance(filesystem, FileSystem):
            raise InvalidConfiguration(
                f"The checkpoint storage {self.factory} made a {type(filesystem).__name__}, which is no "
                "dagster_ckpt.filesystem.FileSystem.",
                hint="Implement that class, and hold the result to dagster_ckpt.testing's FileSystemContract.",
            )
        return filesystem


def configured_storage(configuration: Configuration) -> CheckpointStorage:
    """The storage that Flink's keys describe, chosen as Flink chooses.

    ``execution.checkpointing.storage`` names the storage: ``jobmanager``, ``filesystem``, or the import path of a file
    system's factory. Without this key, checkpoints are files if a directory is configured, else in the driver's memory.

    .. code-block:: python

        resources = {"checkpoint_storage": configured_storage(Configuration.from_yaml("flink.yaml"))}

    Raises:
        InvalidConfiguration: ``filesystem`` is named without a directory.
    """
    directory, savepoints = configuration.checkpoints_directory, configuration.savepoints_directory
    threshold = -1 if configuration.inline_threshold is None else configuration.inline_threshold
    kind = configuration.checkpoint_storage or ("jobmanager" if directory is None else "filesystem")
    if kind == "jobmanager":
        return JobManagerCheckpointStorage(checkpoint_path=directory, savepoint_path=savepoints)
    if kind != "filesystem":
        return CustomCheckpointStorage(factory=kind, savepoint_path=savepoints, file_state_size_threshold=threshold)
    if directory is None:
        raise InvalidConfiguration(
            "execution.checkpointing.storage is filesystem, and no directory is given.",
            hint="Set execution.checkpointing.dir.",
        )
    return FileSystemCheckpointStorage(
        checkpoint_path=directory,
        savepoint_path=savepoints,
        file_state_size_threshold=threshold,
        write_buffer_size=-1 if configuration.write_buffer_size is None else configuration.write_buffer_size,
    )
