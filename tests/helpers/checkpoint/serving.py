"""A job whose driver looks for requests, on a clock that passes when it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    RequestState,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
)
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.taking.requests.checkpoints_at_once import CheckpointsAtOnce
from dagster_ckpt.checkpoint.taking.requests.savepoint_server import SavepointServer
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem
from tests.helpers.checkpoint.coordinating import Job
from tests.helpers.checkpoint.driver import JOB, Run, state
from tests.helpers.checkpoint.savepoints import saved


@dataclass
class Served:
    """A job whose driver looks for requests, in a storage where its checkpoints are in the way of nothing."""

    job: Job
    directory: Path
    default: str | None
    timeout: float = 600.0
    lease: Lease = Lease()  # noqa: RUF009 - it is frozen
    completed: list[CheckpointMetadata] = field(default_factory=list)
    told: list[tuple[str, RequestState, str]] = field(default_factory=list)
    server: SavepointServer = field(init=False)

    def __post_init__(self) -> None:
        self.requests = SavepointRequests(self.job.memory, JOB)
        self.serve(self.job.run, self.job.disk)

    def serve(self, run: Run, storage: FileSystem) -> None:
        """Let ``run`` be the driver."""
        self.at_once = CheckpointsAtOnce(self.job.coordinator, self.job.stream, None)
        self.server = SavepointServer(
            SavepointRequests(storage, JOB),
            run.store,
            self.job.stream,
            self.job.clock,
            self.job.executor,
            default=self.default,
            timeout=self.timeout,
            completed=self.completed.append,
            checkpoints=self.at_once,
            lease=self.lease,
            told=lambda request, state, reason, _: self.told.append((request.token, state, reason)),
        )

    def ask(self, number: int = 1, *, target: str | None = None, stop: bool = False, wait: float = 3600) -> str:
        token = f"{number:032x}"
        now = self.job.clock.time()
        self.requests.ask(SavepointRequest(token, target, stop, now, now + wait))
        return token

    def answer(self, token: str) -> Answer:
        answer = self.requests.answer_to(token)
        assert answer is not None
        return answer

    def pass_time(self, seconds: float) -> None:
        until = self.job.clock.now + seconds
        while self.job.clock.now < until:
            wait = self.server.tick()
            assert 0 < wait <= self.lease.look(1, self.job.disk)
            self.job.clock.advance(wait + 1e-9)

    def holds(self, token: str) -> int:
        """The batch of the savepoint a request was answered with, every byte of it compared."""
        savepoint = self.answer(token).savepoint
        assert savepoint is not None
        metadata = self.completed[-1]
        assert savepoint == TakenSavepoint.of(metadata)
        assert saved(PosixFileSystem(self.directory), metadata) == state(savepoint.batch)
        return savepoint.batch
