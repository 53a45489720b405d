"""What a run leaves in the storage, written by the checkpoint layer itself, without Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    checkpointed_streaming_asset,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Choice, Claim, End
from dagster_ckpt.checkpoint.control.failures import Failure, FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format.code_versions import UNTOLD, CodeVersion
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config.restart import RestartStrategy
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.hosts import this_host

QUICK = RestartStrategies.fixed_delay_restart(3, "1 ms")


def make_asset(
    name: str = "orders",
    *,
    job_name: str | None = None,
    config: CheckpointConfig | None = None,
    restart: RestartStrategy = QUICK,
    poison_batch_attempts: int | None = 5,
    standby: bool = False,
) -> CheckpointedStreamingAsset:
    """An asset whose query is never run."""

    @checkpointed_streaming_asset(
        name=name,
        job_name=job_name,
        config=config,
        restart=restart,
        poison_batch_attempts=poison_batch_attempts,
        standby=standby,
    )
    def never_run(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        raise AssertionError("no test runs this query")

    return never_run


def run_id() -> str:
    """As Dagster makes them."""
    return str(uuid.uuid4())


def launched(instance: dg.DagsterInstance, given: Mapping[str, Any], *, op: str = "orders") -> str:
    """Let the instance know a run whose query was launched with the configuration ``given``; the id of the run."""
    run = dg.DagsterRun(f"{op}_job", run_id(), {"ops": {op: {"config": given}}}, status=dg.DagsterRunStatus.STARTED)
    return instance.add_run(run).run_id


@dataclass
class StoredJob:
    """A job's directory in a storage at ``root``, filled step by step as a run would.

    Attributes:
        root: the checkpoint path.
        name: the job's.
    """

    root: Path
    name: str = "orders"
    catalog: CheckpointCatalog = field(init=False)
    failures: FailureLog = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = self.storage.catalog(self.name)
        self.failures = FailureLog(self.catalog.filesystem, self.name)

    @property
    def storage(self) -> FileSystemCheckpointStorage:
        return FileSystemCheckpointStorage(checkpoint_path=str(self.root))

    def claim(self, run: str, *, series: int | None = None, ago: float = 0) -> Claim:
        return self.catalog.records.epochs.claim(
            token=uuid.uuid4().hex,
            series=series,
            run_id=run,
            host=this_host(),
            pid=1,
            now=iso(time.time() - ago),
        )

    def choose(
        self,
        claim: Claim,
        restored: CheckpointMetadata | None = None,
        *,
        is_bounded: bool | None = None,
        code: CodeVersion = UNTOLD,
    ) -> CompletedCheckpointStore:
        """Record a choice; returns the store that ``claim`` writes into."""
        job_id = restored.job_id if restored else claim.run_id.replace("-", "")
        complete = self.catalog.completed_at_choice(claim.epoch, job_id, restored)
        choice = Choice(
            job_id=job_id,
            restored=restored.reference if restored else None,
            first_id=self.catalog.next_id(job_id),
            last_id=max(complete, default=0),
            live=str(self.root.parent / "live"),
            host=this_host(),
            sink=None,
            reason="of the test",
            complete=complete,
            is_bounded=is_bounded,
            code=code,
        )
        self.catalog.records.epochs.record_choice(claim.epoch, choice)
        return CompletedCheckpointStore(
            self.catalog,
            claim,
            job_id=job_id,
            first_id=choice.first_id,
            restored_from=choice.restored,
            mode="EXACTLY_ONCE",
            clock=SystemClock(),
        )

    def checkpoint(self, store: CompletedCheckpointStore, batch: int) -> CheckpointMetadata:
        """Complete a checkpoint of a few bytes."""
        return store.write(store.begin(), self._snapshot(batch))

    def savepoint(self, store: CompletedCheckpointStore, batch: int) -> CheckpointMetadata:
        """Complete a savepoint of a few bytes."""
        return store.write_savepoint(
            store.begin(), self._snapshot(batch), open_filesystem(str(self.root.parent / "savepoints"))
        )

    def _snapshot(self, batch: int) -> Snapshot:
        pinned = self.root.parent / f"pinned-{uuid.uuid4().hex}"
        pinned.write_text(f"state of batch {batch}")
        file = PinnedFile("checkpoint/state/0/0/1.delta", str(pinned), pinned.stat().st_size)
        facts = Facts(watermark_ms=1_000 * batch, progress={"input_rows": 7, "state_rows": 5})
        return Snapshot(batch, (file,), facts, None, pinned.unlink)

    def beat(
        self,
        claim: Claim,
        *,
        alive: bool,
        stopped: bool = False,
        interrupted: bool = False,
        ago: float = 0,
        completed: CheckpointMetadata | None = None,
    ) -> None:
        """Leave a heartbeat of this process, or of one that is gone."""
        process = ProcessIdentity.current()
        if not alive:
            process = ProcessIdentity(process.host, process.pid, process.created - 1000)
        uptime = SystemClock().monotonic() - ago
        beat = Heartbeat(claim.epoch, claim.run_id, (process,), 1, time.time() - ago, stopped, uptime=uptime)
        newest = None if completed is None else Completed(completed.reference, completed.epoch)
        beat = replace(beat, interrupted=interrupted, completed=newest)
        HeartbeatFile(self.catalog.filesystem, self.name).write(beat)

    def end(self, claim: Claim, status: str, reason: str = "of the test") -> None:
        self.catalog.records.epochs.record_end(claim.epoch, End(status, reason, False, iso(time.time())))

    def fail(self, claim: Claim, sequence: int, *, recoverable: bool = True) -> None:
        failure = Failure(claim.run_id, sequence, time.time(), None, f"failure {sequence}", recoverable)
        self.failures.record(claim.series, failure)

    def die(self, run: str, *, checkpoints: int = 1, series: int | None = None) -> Claim:
        """A run that claimed, chose, completed checkpoints, and is gone without a word."""
        claim = self.claim(run, series=series)
        store = self.choose(claim, find_newest(self.catalog).metadata)
        for batch in range(checkpoints):
            self.checkpoint(store, batch)
        self.beat(claim, alive=False)
        return claim
