"""What a streaming job is, and what it tells about its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dagster_ckpt.checkpoint.control.quarantine import FellBack, Quarantined
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, RestoreInProgress
from dagster_ckpt.checkpoint.taking.retained import Dropped
from dagster_ckpt.config.checkpoint_config import CheckpointConfig, JobStatus
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.config.restart import POISON_BATCH_ATTEMPTS, RestartStrategy
from dagster_ckpt.config.state_backend import StateBackend
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.spark.verdict import Preflight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "CheckpointCompleted",
    "CheckpointFailed",
    "CheckpointQuarantined",
    "CheckpointsDropped",
    "CheckpointsUnreadable",
    "EpochClaimed",
    "Event",
    "LiveLocationChosen",
    "Replaying",
    "Restarting",
    "RunResult",
    "SavepointCompleted",
    "SettingsIgnored",
    "SparkStarted",
    "Started",
    "StreamingJob",
]


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
class SparkStarted:
    """Spark is there; so many seconds it took."""

    seconds: float
    web_url: str | None


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """The run has claimed an epoch: the first thing it does, and again before each restart within it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LiveLocationChosen:
    """Where the live location of a start lies, and why there."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The query started.

    Attributes:
        epoch: its epoch.
        job_id: the lineage.
        restored: the checkpoint it went on from, ``None`` for a start from nothing.
        retained: the completed checkpoints there are.
        reason: why that checkpoint.
        sink: what the rollback of the sink removed, for people; empty when nothing.
        restore_seconds: reading, verifying and rolling back.
        preflight: what was checked before anything was touched.
        fell_back: that newer checkpoints are broken, and what going on from an older one costs.
    """

    epoch: int
    job_id: str
    restored: CheckpointMetadata | None
    retained: Sequence[CheckpointMetadata]
    reason: str
    sink: str
    restore_seconds: float
    preflight: Preflight
    fell_back: FellBack | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint completed; ``retained`` is what there is now, the newest last."""

    metadata: CheckpointMetadata
    dropped: Sequence[Dropped]
    retained: Sequence[CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CheckpointsDropped:
    """The cleanup policy gave checkpoints up at the end of the job; ``retained`` are those that are pinned."""

    dropped: Sequence[Dropped]
    retained: Sequence[CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint attempt failed; the query goes on."""

    number: int
    reason: str
    consecutive: int


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """A savepoint that somebody had asked for completed."""

    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class SettingsIgnored:
    """What the state backend asks for and does not get, a sentence each; told once in a run."""

    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """The newest checkpoint is broken and was put into quarantine."""

    record: Quarantined


@dataclass(frozen=True, slots=True)
class CheckpointsUnreadable:
    """Manifests in the ``directory`` of the job cannot be read; told once with each start."""

    errors: Sequence[CorruptCheckpoint]
    directory: str


@dataclass(frozen=True, slots=True)
class Replaying:
    """Batches are run again with the boundaries they had: ``next`` is the next one, and ``last`` the last."""

    next: int
    last: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarting:
    """The query failed and will be restarted within this run."""

    error: str
    reason: str
    delay: float


Event: TypeAlias = (
    EpochClaimed
    | SparkStarted
    | CheckpointInProgress
    | RestoreInProgress
    | LiveLocationChosen
    | Started
    | CheckpointCompleted
    | CheckpointsDropped
    | CheckpointFailed
    | SavepointCompleted
    | SettingsIgnored
    | CheckpointQuarantined
    | CheckpointsUnreadable
    | Replaying
    | Restarting
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended in order: ``FINISHED`` or ``CANCELED``."""

    status: JobStatus
    newest: CheckpointMetadata | None
