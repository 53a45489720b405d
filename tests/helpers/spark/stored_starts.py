"""Starts of a job whose live location lies in the storage, as an attempt makes them, without Spark."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.dead_runs import finish_deletions
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep_start
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.snapshot import Snapshot
from dagster_ckpt.checkpoint.taking.retained import Discarded
from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore
from dagster_ckpt.clock import iso
from dagster_ckpt.config.retention import Retention
from dagster_ckpt.config.state_backend import LAYOUTS
from dagster_ckpt.filesystem import FileSystem, unheard
from dagster_ckpt.spark.capture.source import StreamingSource
from dagster_ckpt.spark.live.choose import recorded_live
from dagster_ckpt.spark.live.in_bucket import stored_live
from dagster_ckpt.spark.live.live_location import LiveLocation
from dagster_ckpt.spark.live.on_disk import LocalLive
from dagster_ckpt.spark.run.salvage import Salvaging
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.spark.stored_query import StoredQuery

JOB = "flights"
#: Tables of the state are larger, logs are smaller.
INLINE = 2000


@dataclass
class Promised:
    """What a job was promised, and what its query has written.

    Attributes:
        acknowledged: what a restart after each acknowledged checkpoint reads, by reference, with its order.
        queries: by attempt.
    """

    acknowledged: dict[str, tuple[tuple[int, int], dict[str, bytes]]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    queries: dict[str, StoredQuery] = field(default_factory=dict)


class Start:
    """One start.

    Args:
        storage: as this process sees it.
        beneath: the storage as it is, in which Spark writes.
        promised: of the job.
        working: a directory of the machine it is on.
        local: whether its live location lies on the disk of that machine.
    """

    def __init__(
        self, storage: FileSystem, beneath: FileSystem, promised: Promised, working: Path, *, local: bool = False
    ) -> None:
        self.storage = storage
        self.beneath = beneath
        self.promised = promised
        self.clock = ManualClock()
        self.catalog = CheckpointCatalog(storage, JOB)
        self.working = working
        self.restored: CheckpointMetadata | None = None
        token = uuid.uuid4().hex
        self.claim = self.catalog.records.epochs.claim(
            token=token, series=None, run_id=token, host=str(working), pid=1, now=iso(self.clock.time())
        )
        self.directory = working / f"{self.claim.epoch:06}-{token[:8]}"
        self.live: LiveLocation = LocalLive(self.directory / "checkpoint")
        if not local:
            assert storage.copies is not None
            self.live = stored_live(storage, storage.copies, JOB, self.directory.name)
        self.store: CompletedCheckpointStore
        self.query: StoredQuery

    def prepare(self) -> Start:
        """Salvage, choose, lay out, record, sweep: in this order."""
        previous = self.catalog.choice()
        finish_deletions(self.catalog, self.claim.epoch)
        if previous is not None:
            pins = self.directory.with_suffix(".salvage")
            live = recorded_live(previous[1], self.storage)
            Salvaging(self.catalog, LAYOUTS, previous, live, pins, self._store_of).salvage()
        newest = find_newest(self.catalog)
        self.restored = newest.metadata
        if newest.metadata is not None:
            self.live.unpack(self.catalog, newest.metadata, self.directory, unheard)
        else:
            self.directory.mkdir(parents=True)
        self.live.lay_out(self.directory)
        job_id = newest.job_id or self.claim.run_id
        first_id = self.catalog.next_id(job_id, newest.metadata)
        complete = self.catalog.completed_at_choice(self.claim.epoch, job_id, newest.metadata)
        restored = None if newest.metadata is None else newest.metadata.reference
        choice = Choice(
            job_id, restored, first_id, max(complete, default=0), self.live.url, "h", None, "", complete=complete
        )
        self.catalog.records.epochs.record_choice(self.claim.epoch, choice)
        self.store = self._store_of(job_id, first_id, restored)
        self.store.know(self.live.copied_from())
        sweep_start(self.store)
        return self

    def start(self) -> Start:
        """Prepare, and let the query begin or go on."""
        self.prepare()
        self.live.mark_begun()
        if self.restored is None:
            self.query = StoredQuery(self.put)
            self.query.begin()
        else:
            self.query = self._query_before().goes_on(self.put, self.restored.batch)
        self.promised.queries[self.directory.name] = self.query
        self.source = StreamingSource(
            self.live.location(), self.directory / "pins", None, "4.3.0", lambda: None, self.clock
        )
        return self

    def put(self, path: str, data: bytes) -> None:
        """As Spark does it, by its own way to the storage."""
        if isinstance(self.live, LocalLive):
            target = self.live.path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        else:
            self.beneath.replace(f"{JOB}/taskowned/{self.directory.name}/checkpoint/{path}", data)

    def checkpoint(self, keep: int = 2) -> CheckpointMetadata:
        """Take a checkpoint of the last batch, and drop old ones."""
        pending = self.store.begin()
        self.source.look_again()
        committed = self.source.progress().committed
        assert committed is not None
        snapshot = self.source.pin(committed)
        metadata = self.write(pending, snapshot)
        self.subsume(keep)
        return metadata

    def write(self, pending: object, snapshot: Snapshot) -> CheckpointMetadata:
        try:
            metadata = self.store.write(pending, snapshot)  # type: ignore[arg-type]
        finally:
            snapshot.release()
        self.promised.acknowledged[metadata.reference] = (metadata.key, self.query.needed(metadata.batch))
        return metadata

    def subsume(self, keep: int) -> list[Discarded]:
        # What may go is noted before, because the process may die on the way.
        completed = CheckpointCatalog(self.beneath, JOB).completed(self.store.job_id)[0]
        self.promised.given_up |= {item.reference for item in completed[:-keep]}
        return self.store.subsume(Retention(keep))

    def _query_before(self) -> StoredQuery:
        """The newest query that has come to the batch that was restored."""
        assert self.restored is not None
        batch = self.restored.batch
        return next(query for query in reversed(self.promised.queries.values()) if f"commits/{batch}" in query.written)

    def _store_of(self, job_id: str, first_id: int, restored: str | None) -> CompletedCheckpointStore:
        return CompletedCheckpointStore(
            self.catalog,
            self.claim,
            job_id=job_id,
            first_id=first_id,
            restored_from=restored,
            mode="EXACTLY_ONCE",
            clock=self.clock,
            inline_threshold=INLINE,
        )


def found_in(storage: FileSystem, start: Start) -> dict[str, bytes]:
    """What lies in the live location of a start, by path."""
    if isinstance(start.live, LocalLive):
        root = start.live.path
        return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    assert storage.copies is not None
    directory = f"{JOB}/taskowned/{start.directory.name}/checkpoint"
    return {path: storage.read(f"{directory}/{path}") for path in storage.copies.stored_below(directory)}


def shared(storage: FileSystem, job_id: str) -> set[str]:
    return {entry.name for entry in storage.list(f"{JOB}/{job_id}/shared")}
