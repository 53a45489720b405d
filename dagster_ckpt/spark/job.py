"""What a streaming job is, and how a run of it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.config import (
    POISON_BATCH_ATTEMPTS,
    CheckpointConfig,
    JobStatus,
    LiveLocationPlace,
    RestartStrategy,
    StateBackend,
)
from dagster_ckpt.filesystem import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["RunResult", "StreamingJob"]


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """A streaming query to be driven with checkpoints.

    Attributes:
        name: stable; the directory of its checkpoints.
        query: builds the query in the session it is given; returns a writer that is not started.
        session: starts Spark, or joins it.
        config: when checkpoints are taken and kept.
        restart: what happens after a failure.
        filesystem: where checkpoints are stored.
        working_directory: local (or cluster-shared) directory for live checkpointLocations.
        deployment: who owns the job's directory in the storage.
        inline_threshold: bytes up to which a file is kept in ``_metadata``.
        savepoint_path: where savepoints go that are asked for without a directory; ``None`` for nowhere.
        max_state_size: checkpoints are kept whole in ``_metadata``, and no file of them may be larger than this, in
            bytes; ``None`` for checkpoints that are stored as files.
        state_backend: what a query keeps its state with; ``None`` for what its session says. Its settings for the start
            of Spark are for ``session`` to heed.
        partitions: of the query and of its state, fixed when it first starts; ``None`` for what its session says.
        poison_batch_attempts: the job ends when the same batch failed so many times in a row with the same error,
            whatever ``restart`` still allows; ``None`` for as often as that allows.
        live_location: where Spark's live checkpointLocations lie.
        shares_disk: whether ``working_directory`` was named by somebody, who knows that executors reach it.
        private_from: the first directory on the way to ``working_directory`` that is the library's own to make, for
            the user of the job alone; ``None`` for ``working_directory`` itself.
    """

    name: str
    query: Callable[[SparkSession], DataStreamWriter]
    session: Callable[[], SparkSession]
    config: CheckpointConfig
    restart: RestartStrategy
    filesystem: FileSystem
    working_directory: Path
    deployment: str
    inline_threshold: int
    savepoint_path: str | None = None
    max_state_size: int | None = None
    state_backend: StateBackend | None = None
    partitions: int | None = None
    poison_batch_attempts: int | None = POISON_BATCH_ATTEMPTS
    live_location: LiveLocationPlace = LiveLocationPlace.LOCAL
    shares_disk: bool = True
    private_from: Path | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended in order: ``FINISHED`` or ``CANCELED``."""

    status: JobStatus
    newest: CheckpointMetadata | None
