"""A job's driver with all its parts except Spark: heart, coordinator, store, savepoint server, starts and ends."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointCoordinator,
    CheckpointMetadata,
    CheckpointsAtOnce,
    Choice,
    Claim,
    CompletedCheckpointStore,
    Discarded,
    End,
    Facts,
    Heart,
    Lease,
    PinnedFile,
    Progress,
    SavepointServer,
    Snapshot,
    fallback_of,
    find_newest,
    finish_deletions,
    free_job,
    materialize_checkpoint,
    sweep_start,
)
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.config import CheckpointConfig
from dagster_ckpt.errors import CheckpointError, Fenced, JobAlreadyRunning
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.hosts import this_host
from dagster_ckpt.threads import Threads
from tests.jobs.beside.place import Place

_BATCH = 0.1
_CONFIG = CheckpointConfig(interval="300 ms", num_retained=2, tolerable_failed_checkpoints=0)


def contents(job: int, batch: int) -> dict[str, bytes]:
    """The state of a job after a batch: files that stay, that are in several checkpoints, and that are new."""
    return {
        "checkpoint/state/base.sst": f"of job {job} ".encode() * 4000,
        f"checkpoint/state/{batch // 8}.sst": f"of job {job}, batch {batch // 8 * 8} ".encode() * 2000,
        f"checkpoint/offsets/{batch}": f"{job} {batch}".encode(),
    }


class Stream:
    """A source whose batches commit as time passes."""

    def __init__(self, job: int, first: int, directory: Path) -> None:
        self._job, self._first, self._directory = job, first, directory
        self._began = time.monotonic()

    def progress(self) -> Progress:
        return Progress(self._first + int((time.monotonic() - self._began) / _BATCH), None)

    def look_again(self) -> None:
        """Time is always as it is."""

    def pin(self, batch: int) -> Snapshot:
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        files = []
        for number, (path, data) in enumerate(contents(self._job, batch).items()):
            (directory / str(number)).write_bytes(data)
            files.append(PinnedFile(path, str(directory / str(number)), len(data), recurs="/state/" in path))
        return Snapshot(batch, tuple(files), Facts(query_id="q", batch=batch), None, lambda: shutil.rmtree(directory))


class JobDriver:
    """Starts a job again and again, until its process is killed.

    Args:
        place: where all work.
        number: of the job.
        seed: of what happens.
    """

    def __init__(self, place: Place, number: int, seed: int) -> None:
        self._place = place
        self._number = number
        self._random = random.Random(seed)
        self._clock = SystemClock()
        self._directory = place.work(number)

    def drive(self, until: float) -> None:
        """One life after another; one in three ends with SIGKILL."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        while time.monotonic() < until:
            try:
                self._live(until)
            except (Fenced, JobAlreadyRunning) as error:
                self._place.count(f"starts that ended with {type(error).__name__}")
                time.sleep(0.2)
            except BaseException:
                self._place.violation(f"driver of job {self._number}: {traceback.format_exc()}")
                raise
        signal.pause()

    def completed(self, metadata: CheckpointMetadata) -> None:
        self._place.acknowledge(self._number, metadata.reference, metadata.key)
        self._place.count("checkpoints")

    def subsumed(self, discarded: Sequence[Discarded]) -> None:
        for _ in discarded:
            self._place.count("subsumed")

    def failed(self, number: int, reason: str, consecutive: int) -> None:
        self._place.violation(f"checkpoint {number} of job {self._number} failed: {reason}")

    def check_newest(self, newest: CheckpointMetadata | None) -> None:
        """Compare what a start resumes from with what was acknowledged."""
        reference, key = self._place.acknowledged(self._number)
        if reference is not None and (newest is None or newest.key < key):
            found = None if newest is None else newest.reference
            self._place.violation(f"job {self._number}: {reference} was acknowledged, and the newest is {found}")

    def _live(self, until: float) -> None:
        catalog = CheckpointCatalog(PosixFileSystem(self._place.storage), self._place.job(self._number))
        free_job(catalog.records.heartbeat, self._clock, time.sleep)
        token = uuid.uuid4().hex
        claim = catalog.records.epochs.claim(
            token=token,
            series=None,
            run_id=token,
            host=this_host(),
            pid=os.getpid(),
            now=iso(self._clock.time()),
        )
        heart = Heart(catalog.records.heartbeat, self._clock, epoch=claim.epoch, run_id=token)
        heart.start()
        try:
            self._run(catalog, claim, heart, until)
        finally:
            heart.stop()
        self._place.count("orderly ends")
        time.sleep(self._random.uniform(0, 3))  # the job is over

    def _run(self, catalog: CheckpointCatalog, claim: Claim, heart: Heart, until: float) -> None:
        finish_deletions(catalog, claim.epoch)
        newest = find_newest(catalog)
        self.check_newest(newest.metadata)
        restored = newest.metadata
        if restored is not None:
            self._check_content(catalog, restored)
        job_id = newest.job_id or uuid.uuid4().hex
        complete = catalog.completed_at_choice(claim.epoch, job_id, restored)
        first_id = catalog.next_id(job_id, restored)
        reference = None if restored is None else restored.reference
        choice = Choice(
            job_id,
            reference,
            first_id,
            max(complete, default=0),
            str(self._directory),
            this_host(),
            None,
            newest.reason,
            fallback=fallback_of(newest),
            complete=complete,
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
        self._place.count("starts")
        if self._random.random() < 1 / 3:
            self._place.count("kills")
            timer = threading.Timer(self._random.uniform(0.1, 4), os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        self._go_on(
            catalog,
            claim,
            store,
            Stream(self._number, 0 if restored is None else restored.batch, self._directory),
            min(until, time.monotonic() + self._random.uniform(2, 8)),
        )

    def _go_on(
        self, catalog: CheckpointCatalog, claim: Claim, store: CompletedCheckpointStore, stream: Stream, until: float
    ) -> None:
        with ThreadPoolExecutor(2) as pool:
            deleter = Threads(1, "deletions")
            coordinator = CheckpointCoordinator(store, stream, _CONFIG, self._clock, pool, deleter, self, self._random)
            server = SavepointServer(
                catalog.records.savepoint_requests,
                store,
                stream,
                self._clock,
                pool,
                default=str(self._place.savepoints),
                timeout=60,
                completed=lambda _: self._place.count("savepoints of running jobs"),
                checkpoints=CheckpointsAtOnce(coordinator, stream, None),
                lease=Lease(),
            )
            while time.monotonic() < until:
                time.sleep(min(coordinator.tick(), server.tick()))
            server.finish()
            coordinator.finish()
            deleter.shutdown()
        store.check_owner()
        discards = self._random.random() < 0.3
        if discards:
            self._place.acknowledge(self._number, None)
        status = "CANCELED" if discards else "FINISHED"
        end = End(status, "of the crowd", discarded=discards, ended_at=iso(self._clock.time()))
        catalog.records.epochs.record_end(claim.epoch, end)
        if discards:
            store.discard_all("of the crowd")
            self._place.count("discarded jobs")

    def _check_content(self, catalog: CheckpointCatalog, metadata: CheckpointMetadata) -> None:
        target = Path(tempfile.mkdtemp(dir=self._directory)) / "restored"
        try:
            materialize_checkpoint(catalog, metadata, target)
            found: Mapping[str, bytes] = {
                str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()
            }
        except CheckpointError:
            catalog.records.epochs.check(catalog.records.epochs.highest())
            raise
        finally:
            shutil.rmtree(target.parent)
        if found != contents(self._number, metadata.batch):
            self._place.violation(f"job {self._number}: {metadata.reference} does not hold what was stored")
