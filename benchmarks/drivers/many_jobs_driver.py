"""A process that drives many jobs without Spark, for ``many_jobs.py``: all of the protocol, and no query.

The process takes orders of Dagster's runs until it has enough. Each job then claims an epoch, goes on from its newest
checkpoint, beats, and completes a checkpoint at each interval. What is acknowledged is noted in a file before the next
step, so that a killed process leaves the truth.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventType

from benchmarks.drivers.many_jobs_site import Site
from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Claim,
    CompletedCheckpointStore,
    Facts,
    Heart,
    Lease,
    PinnedFile,
    Snapshot,
    find_newest,
    finish_deletions,
    free_job,
    sweep_start,
)
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.hosts import this_host
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.checkpointed_asset import partitions_name
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.orchestration.rollback import Launchpad

_POLL = 0.05


def drive(site: Site, options: dict[str, Any], jobs: int, told: Path) -> None:
    """Take orders, and drive their jobs until this process is killed.

    Args:
        site: of the benchmark.
        options: of the bucket, as drivers reach it.
        jobs: to take at most.
        told: the file for what happens, a JSON document a line.
    """
    driver = _Driver(site, options, told)
    for _ in range(jobs):
        while (order := driver.take()) is None:
            time.sleep(_POLL)
        threading.Thread(target=driver.run, args=(order,), daemon=True).start()
    threading.Event().wait()


@dataclass(frozen=True)
class Order:
    """A run of Dagster that is to drive a job."""

    run: str
    job: str
    series: str | None


class _Driver:
    """One process."""

    def __init__(self, site: Site, options: dict[str, Any], told: Path) -> None:
        self._site, self._clock = site, SystemClock()
        self._filesystem = site.storage(options).filesystem()
        self._instance = dg.DagsterInstance.get()
        self._told: TextIO = told.open("a", encoding="utf-8")
        #: Dagster's storage opens a connection for each question.
        self._one_asks = threading.Lock()
        self._pinned = Path(tempfile.mkdtemp(dir=site.directory))

    def take(self) -> Order | None:
        """An order that no other process has taken."""
        for order in self._site.orders.glob("[!.]*"):
            taken = order.with_name(f".{order.name}-{os.getpid()}")
            try:
                order.rename(taken)
            except FileNotFoundError:
                continue
            return Order(**json.loads(taken.read_text(encoding="utf-8")))
        return None

    def run(self, order: Order) -> None:
        try:
            self._run(order)
        except BaseException:  # nothing is true of the figures any more
            self._tell("failed", order.job, why=traceback.format_exc())
            traceback.print_exc()
            os._exit(1)

    def _run(self, order: Order) -> None:
        catalog = CheckpointCatalog(self._filesystem, order.job)
        records = catalog.records
        self._begin(order)
        free_job(records.heartbeat, self._clock, time.sleep)
        claim = records.epochs.claim(
            token=uuid.uuid4().hex,
            series=None if order.series is None else int(order.series),
            run_id=order.run,
            host=this_host(),
            pid=os.getpid(),
            now=iso(self._clock.time()),
            lease=Lease.of(self._site.config),
        )
        heart = Heart(
            records.heartbeat, self._clock, epoch=claim.epoch, run_id=order.run, lease=Lease.of(self._site.config)
        )
        heart.start()
        store, restored = self._start(catalog, claim)
        key = None if restored is None else restored.key
        self._tell("started", order.job, run=order.run, epoch=claim.epoch, restored=key)
        reporter = self._reporter(order, catalog)
        reporter.holds(claim.epoch)
        batch = 0 if restored is None else restored.batch
        while True:
            batch += 1
            completed = store.write(store.begin(), self._snapshot(order.job, batch))
            self._tell("completed", order.job, key=completed.key)
            heart.completed(completed.reference, claim.epoch)
            discarded = store.subsume(Retention(self._site.config.num_retained))
            with self._one_asks:
                reporter.subsumed(discarded, store.retained)
            time.sleep(self._site.interval)

    def _begin(self, order: Order) -> None:
        """What Dagster hears of a run that begins."""
        with self._one_asks:
            event = DagsterEvent(DagsterEventType.RUN_START.value, f"{order.job}_job", message="It runs without Spark.")
            self._instance.report_dagster_event(event, order.run)
            self._instance.add_run_tags(order.run, {names.JOB_TAG: order.job})

    def _start(
        self, catalog: CheckpointCatalog, claim: Claim
    ) -> tuple[CompletedCheckpointStore, CheckpointMetadata | None]:
        """Choose, record the choice, open the store and sweep, as each start does; what it goes on from."""
        finish_deletions(catalog, claim.epoch)
        newest = find_newest(catalog)
        restored = newest.metadata
        job_id = newest.job_id or uuid.uuid4().hex
        complete = catalog.completed_at_choice(claim.epoch, job_id, restored)
        first_id = catalog.next_id(job_id, restored)
        reference = None if restored is None else restored.reference
        last_id = max(complete, default=0)
        choice = Choice(
            job_id, reference, first_id, last_id, "/none", this_host(), None, newest.reason, complete=complete
        )
        catalog.records.epochs.record_choice(claim.epoch, choice)
        store = CompletedCheckpointStore(
            catalog,
            claim,
            job_id=job_id,
            first_id=first_id,
            restored_from=reference,
            mode="EXACTLY_ONCE",
            clock=self._clock,
            verified=restored,
        )
        sweep_start(store)
        return store, restored

    def _snapshot(self, job: str, batch: int) -> Snapshot:
        """A small state: a file that stays, and a new one."""
        files = {name: self._pinned / f"{job}-{name}" for name in ("base", str(batch))}
        for name, local in files.items():
            local.write_bytes(f"{job} {name} ".encode() * 1_000)
        pinned = tuple(
            PinnedFile(f"checkpoint/state/{name}.sst", str(local), local.stat().st_size, recurs=name == "base")
            for name, local in files.items()
        )
        return Snapshot(batch, pinned, Facts(query_id="q", batch=batch), None, files[str(batch)].unlink)

    def _reporter(self, order: Order, catalog: CheckpointCatalog) -> CheckpointReporter:
        checkpoints = dg.AssetKey(f"{order.job}_checkpoints")
        report = self._instance.report_runless_asset_event
        with self._one_asks:
            launchpad = Launchpad.of_run(self._instance.get_run_by_id(order.run), order.job)
        return CheckpointReporter(
            self._instance, report, checkpoints, partitions_name(order.job), catalog, self._clock, 0, launchpad
        )

    def _tell(self, what: str, job: str, **more: Any) -> None:
        self._told.write(json.dumps({"what": what, "job": job, "at": time.time(), "pid": os.getpid(), **more}) + "\n")
        self._told.flush()
