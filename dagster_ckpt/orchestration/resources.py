"""Checkpoint storage and Spark as Dagster resources."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.layout import CHECKPOINT_TASK_OWNED_STATE_DIR
from dagster_ckpt.checkpoint.shared_state import DEFAULT_INLINE_THRESHOLD, MAX_INLINE_BYTES
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FileSystemCheckpointStorage", "SparkSessionResource"]


class FileSystemCheckpointStorage(dg.ConfigurableResource["FileSystemCheckpointStorage"]):
    """Checkpoints as files below one directory, a subdirectory per job.

    .. code-block:: python

        storage = FileSystemCheckpointStorage(checkpoint_path="/mnt/checkpoints")
        storage = FileSystemCheckpointStorage(checkpoint_path=dg.EnvVar("CHECKPOINT_PATH"))
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    checkpoint_path: str = Field(
        description="Directory for checkpoints: a path or a file:// URL on a local or POSIX network file system."
    )
    file_state_size_threshold: int = Field(
        default=-1,
        description="Files of at most this many bytes are kept inside _metadata; at most 1 MiB, -1 for 20 KiB.",
    )
    working_directory: str | None = Field(
        default=None,
        description="Where live checkpointLocations lie while a query runs. Every executor must reach it. Default: "
        "the local temporary directory; 'taskowned' puts them into the storage.",
    )
    savepoint_path: str | None = Field(
        default=None,
        description="Directory for savepoints that are asked for without one: a path or a file:// URL. Every host that "
        "runs or restores the job must reach it.",
    )
    deployment: str = Field(
        default="default",
        description="Who owns the jobs' directories. Deployments with the same path and job name refuse each other.",
    )

    @field_validator("file_state_size_threshold")
    @classmethod
    def _check_threshold(cls, value: int) -> int:
        if not -1 <= value <= MAX_INLINE_BYTES:
            raise ValueError(f"must be between 0 and {MAX_INLINE_BYTES} bytes, or -1 for the default")
        return value

    @property
    def inline_threshold(self) -> int:
        """Bytes up to which a file is kept in ``_metadata``."""
        return DEFAULT_INLINE_THRESHOLD if self.file_state_size_threshold == -1 else self.file_state_size_threshold

    def filesystem(self) -> FileSystem:
        """The file system below ``checkpoint_path``.

        Raises:
            InvalidConfiguration: the path cannot be used.
        """
        return open_filesystem(self.checkpoint_path)

    def catalog(self, job_name: str) -> CheckpointCatalog:
        """The completed checkpoints of one job."""
        return CheckpointCatalog(self.filesystem(), job_name)

    def live_directory(self, job_name: str) -> Path:
        """Where the live checkpointLocations of one job lie on this machine."""
        if self.working_directory == CHECKPOINT_TASK_OWNED_STATE_DIR:
            return Path(self.filesystem().url) / job_name / CHECKPOINT_TASK_OWNED_STATE_DIR
        # Two storages may share a working directory, and have jobs of the same name.
        storage = hashlib.sha256(self.filesystem().url.encode()).hexdigest()[:12]
        if self.working_directory is not None:
            return Path(self.working_directory).expanduser().absolute() / storage / job_name
        return Path(tempfile.gettempdir()) / "dagster_ckpt" / storage / job_name


class SparkSessionResource(dg.ConfigurableResource["SparkSessionResource"]):
    """How to start Spark. The session itself is started by the job, on the thread that drives it.

    .. code-block:: python

        spark = SparkSessionResource(master="local[4]", conf={"spark.driver.memory": "4g"})
        spark = SparkSessionResource(master="spark://host:7077")
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, key to value.")
    app_name: str | None = Field(default=None, description="Application name; the job's name by default.")

    def session(self, job_name: str) -> SparkSession:
        """Start Spark, or join the session of this process.

        Raises:
            JavaNotFound: no usable Java.
        """
        return start_session(self.app_name or job_name, self.master, self.conf)
