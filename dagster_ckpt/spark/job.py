"""What a streaming job is, and how a run of the job ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, End, FetchedAhead, find_newest
from dagster_ckpt.config import (
    POISON_BATCH_ATTEMPTS,
    CheckpointConfig,
    JobStatus,
    LiveLocationPlace,
    RestartStrategy,
    StateBackend,
    UpgradeMode,
    format_duration,
)
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration, NotRestarted
from dagster_ckpt.filesystem import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["JobStorage", "RunResult", "StreamingJob", "Versions"]

_log = logging.getLogger(__name__)


class JobStorage(Protocol):
    """Where the checkpoints of jobs are kept, as the storage resources of Dagster say it."""

    @property
    def deployment(self) -> str: ...
    @property
    def inline_threshold(self) -> int: ...
    @property
    def live_place(self) -> LiveLocationPlace: ...
    @property
    def private_from(self) -> Path | None: ...
    @property
    def savepoint_path(self) -> str | None: ...
    @property
    def size_limit(self) -> int | None: ...
    @property
    def working_directory(self) -> str | None: ...
    def live_directory(self, job_name: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class Versions:
    """The version of a query's code, and what happens when it changes.

    Attributes:
        current: of the query; ``None`` where nobody tells it. Then a change is not noticed.
        mode: what a new version goes on from.
        timeout: seconds for which a new version may work, or fail, without a checkpoint; ``None`` for any time.
        previous: makes the query of earlier versions, by version.
        green: makes the query of versions that a cut-over may put in the place of ``current``, by version.
    """

    current: str | None = None
    mode: UpgradeMode = UpgradeMode.LAST_STATE
    timeout: float | None = None
    previous: Mapping[str, Callable[..., DataStreamWriter]] = field(default_factory=dict)
    green: Mapping[str, Callable[..., DataStreamWriter]] = field(default_factory=dict)

    @property
    def others(self) -> dict[str, Callable[..., DataStreamWriter]]:
        """Makes the query of every version but ``current``."""
        return {**self.previous, **self.green}

    def check(self, config: CheckpointConfig) -> None:
        """Refuse settings by which every new version would be taken back.

        Raises:
            InvalidConfiguration: no checkpoint is due before the time of a new version is over.
        """
        limit = None if self.timeout is None else timedelta(seconds=self.timeout)
        interval = config.effective_interval
        if limit is None or (interval is not None and limit > interval):
            return
        taken = "no periodic checkpoints" if interval is None else f"one in {format_duration(interval)}"
        raise InvalidConfiguration(
            f"upgrade_timeout is {format_duration(limit)}, and the job takes {taken}: every new version would fail.",
            hint="Make upgrade_timeout a few times as long as the longer of interval and min_pause.",
        )

    def check_known(self, version: str | None) -> None:
        """Refuse a version that is not here.

        Raises:
            InvalidConfiguration: there is no function of it.
        """
        if version is not None and version not in {self.current, *self.others}:
            here = ", ".join(sorted({self.current or "", *self.others} - {""})) or "no version"
            raise InvalidConfiguration(
                f"The job is to run version {version} of its code, and has {here} only.",
                hint=f"Nothing was touched. Give the asset green={{{version!r}: its function}}, or deploy it as "
                f"code_version={version!r}; or name a version that is there.",
            )

    def bound(self, *arguments: Any, **named: Any) -> Versions:
        """The same, with functions that take what is left beside these arguments: the session."""

        def filled(
            versions: Mapping[str, Callable[..., DataStreamWriter]],
        ) -> dict[str, Callable[..., DataStreamWriter]]:
            return {version: partial(make, *arguments, **named) for version, make in versions.items()}

        return replace(self, previous=filled(self.previous), green=filled(self.green))


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """A streaming query that runs with checkpoints.

    Attributes:
        name: stable; the name of the job's directory of checkpoints.
        query: builds the query in the given session; returns a writer that is not started.
        session: starts Spark, or joins it.
        config: when checkpoints are taken and kept.
        restart: what happens after a failure.
        filesystem: where checkpoints are stored.
        working_directory: local (or cluster-shared) directory for live locations.
        deployment: the owner of the job's directory in the storage.
        inline_threshold: files of at most this many bytes are kept in ``_metadata``.
        savepoint_path: the directory for savepoints that are requested without one; ``None`` for no such directory.
        max_state_size: keeps whole checkpoints in ``_metadata`` and limits each of their files to this many bytes;
            ``None`` for checkpoints that are stored as files.
        state_backend: how a query keeps its state; ``None`` for the session's settings. Settings that Spark needs when
            it starts must be applied by ``session``.
        partitions: of the query and its state, fixed at the first start; ``None`` for the session's setting.
        poison_batch_attempts: the job ends when the same batch has failed this many times in a row with the same error,
            even if ``restart`` allows more; ``None`` for no such limit.
        live_location: where Spark's live locations lie.
        shares_disk: whether the user named ``working_directory``, and so vouches that executors reach it.
        private_from: the topmost directory on the path to ``working_directory`` that the library creates, accessible to
            the user of the job only; ``None`` for ``working_directory`` itself.
        start_jvm: starts the JVM that ``session`` will use, on a thread of its own beside the claim; ``None`` to leave
            that to ``session``.
        versions: of the query's code.
        ahead: has files of the newest checkpoint on this machine; ``None`` for no such files.
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
    start_jvm: Callable[[], object] | None = None
    versions: Versions = Versions()
    ahead: FetchedAhead | None = None

    @property
    def url(self) -> str:
        """The job's directory of checkpoints, which no other job has."""
        return f"{self.filesystem.url}/{self.name}"

    @classmethod
    def stored_in(
        cls,
        storage: JobStorage,
        filesystem: FileSystem,
        *,
        name: str,
        query: Callable[[SparkSession], DataStreamWriter],
        session: Callable[[], SparkSession],
        config: CheckpointConfig,
        restart: RestartStrategy,
        state_backend: StateBackend | None,
        partitions: int | None = None,
        poison_batch_attempts: int | None,
        start_jvm: Callable[[], object] | None = None,
        versions: Versions = Versions(),
    ) -> StreamingJob:
        """A job whose checkpoints are kept in ``storage``; the other arguments are attributes of the job.

        ``filesystem`` is the storage's, and the one that the caller's catalog reads: each that the storage makes anew
        has its own connection, or its own memory.

        Raises:
            InvalidConfiguration: the storage cannot be used, or no new version could prove itself in its time.
        """
        versions.check(config)
        return cls(
            name=name,
            query=query,
            session=session,
            config=config,
            restart=restart,
            filesystem=filesystem,
            working_directory=storage.live_directory(name),
            deployment=storage.deployment,
            inline_threshold=storage.inline_threshold,
            savepoint_path=storage.savepoint_path,
            max_state_size=storage.size_limit,
            state_backend=state_backend,
            partitions=partitions,
            poison_batch_attempts=poison_batch_attempts,
            live_location=storage.live_place,
            shares_disk=storage.working_directory is not None,
            private_from=storage.private_from,
            start_jvm=start_jvm,
            versions=versions,
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended without an error: ``FINISHED`` or ``CANCELED``."""

    status: JobStatus
    newest: CheckpointMetadata | None

    @classmethod
    def of_job_over(cls, catalog: CheckpointCatalog, end: End) -> RunResult:
        """The result of a run that starts nothing, because the run that it should replace has ended the job.

        Raises:
            NotRestarted: the job has failed.
        """
        if end.status == JobStatus.FAILED.value:
            raise NotRestarted(
                f"Job {catalog.job_name!r} ended {end.status}: {end.reason}.",
                hint="Mend the cause, and run the job again: it goes on from its newest checkpoint.",
            )
        newest = None
        try:
            newest = find_newest(catalog).metadata
        except CheckpointError as error:
            _log.warning("Job %r is over, and its newest checkpoint is not known: %s", catalog.job_name, error)
        return cls(JobStatus(end.status), newest)
