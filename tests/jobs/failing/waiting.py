"""A run of a job that only claims and beats, and a real standby beside it, on a thread of this process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.hosts import this_host
from dagster_ckpt.orchestration import names
from tests.jobs.harness import Bench, eventually

__all__ = ["Waiting"]

Status = dg.DagsterRunStatus


class Waiting:
    """A run of the job that has claimed it, is alive, and has chosen nothing; and its standby, on a thread."""

    def __init__(
        self,
        bench: Bench,
        instance: dg.DagsterInstance,
        storage: FileSystemCheckpointStorage | None = None,
        *,
        rehearsal: bool = True,
    ) -> None:
        self.bench, self.instance = bench, instance
        self.records = bench.catalog.records
        self.standbys = Standbys(bench.catalog.filesystem, bench.catalog.job_name)

        @checkpointed_streaming_asset(
            name=bench.catalog.job_name,
            config=CheckpointConfig(interval="200 ms", heartbeat_interval="200 ms"),
            restart=RestartStrategies.fixed_delay_restart(1, "100 ms"),
            standby=True,
            rehearsal=rehearsal,
        )
        def query(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
            return bench.query(bench, spark)

        self.asset = query
        path, working = str(bench.storage), str(bench.working)
        storage = storage or FileSystemCheckpointStorage(checkpoint_path=path, working_directory=working)
        resources = {"checkpoint_storage": storage, "spark": SparkSessionResource(master="local[2]")}
        self.definitions = build_checkpoint_definitions([query], resources)
        self.records.claim_ownership(storage.deployment)
        self.run_id = self._add(query.job_name, {names.JOB_TAG: query.name}, {})
        self.claim = self.take_over(self.run_id)
        self.beat(alive=True)
        self.standby = str(uuid.uuid4())

    def _add(self, job: str, tags: dict[str, str], config: dict[str, Any]) -> str:
        run = str(uuid.uuid4())
        resolved = self.definitions.resolve_job_def(job)
        self.instance.create_run_for_job(resolved, run_id=run, status=Status.STARTED, tags=tags, run_config=config)
        return run

    def take_over(self, run_id: str) -> Claim:
        return self.records.epochs.claim(
            token=uuid.uuid4().hex, series=None, run_id=run_id, host=this_host(), pid=1, now=iso(time.time())
        )

    @contextmanager
    def alive_elsewhere(self, lease: Lease) -> Iterator[list[float]]:
        """The run beats on another host, of whose processes nobody here can tell anything; yields the time of each."""
        over, process = threading.Event(), replace(ProcessIdentity.current(), host="elsewhere/another-boot")
        beats: list[float] = []

        def beat() -> None:
            while not over.is_set():
                beats.append(time.monotonic())
                told = Heartbeat(
                    self.claim.epoch, self.run_id, (process,), len(beats), time.time(), uptime=1.0, lease=lease
                )
                self.records.heartbeat.write(told)
                over.wait(lease.interval)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield beats
        finally:
            over.set()
            thread.join()

    def beat(self, *, alive: bool, completed: Completed | None = None) -> None:
        now, gone = ProcessIdentity.current(), ProcessIdentity(ProcessIdentity.current().host, 1, 0.0, 1)
        process = now if alive else gone
        epoch, run_id, uptime = self.claim.epoch, self.claim.run_id, SystemClock().monotonic()
        # One beat is enough for the whole test.
        lease = Lease(1.0, 900.0)
        beat = Heartbeat(epoch, run_id, (process,), 1, time.time(), uptime=uptime, lease=lease, completed=completed)
        self.records.heartbeat.write(beat)

    def start(self, config: dict[str, Any] | None = None, tags: dict[str, str] | None = None) -> Callable[[], Any]:
        """Start the standby, and wait until it is warm; returns what waits for its end."""
        given = {"ops": {self.asset.op_name: {"config": {"restore_from": "latest", **(config or {})}}}}
        job = self.definitions.resolve_job_def(names.standby_job(self.asset.name))
        found: list[Any] = []

        def run() -> None:
            found.append(
                job.execute_in_process(
                    run_config=given, instance=self.instance, run_id=self.standby, raise_on_error=False, tags=tags
                )
            )

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        eventually("the standby is warm", lambda: bool(self.standbys.all()) or not thread.is_alive())

        def wait() -> Any:
            eventually("the standby has ended", lambda: not thread.is_alive())
            return found[0]

        return wait

    def said(self, text: str) -> str:
        """The line of the standby's log that has this text."""
        entries = self.instance.all_logs(self.standby)
        return next(entry.user_message for entry in entries if text in (entry.user_message or ""))

    def tags(self, run_id: str) -> dict[str, str]:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return dict(run.tags)

    def assert_taken_over(self, done: Any) -> Claim:
        """The standby has ended well and exactly, as the run of the job; its claim."""
        assert done.success
        self.bench.assert_exact()
        claim = self.records.epochs.read_claim(self.records.epochs.highest())
        assert claim is not None
        assert claim.run_id == self.standby
        return claim

    def assert_left_alone(self, done: Any) -> None:
        """The standby ended well, and nothing was claimed or materialized."""
        assert done.success
        assert done.get_asset_materialization_events() == []
        assert names.JOB_TAG not in self.tags(self.standby)
        assert not self.standbys.all()
