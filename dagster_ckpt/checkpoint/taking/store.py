"""Writing side of the store: turns snapshots into completed checkpoints and drops the old ones.

One store belongs to one claimed epoch. New is stored before old is dropped; data is written before
``_metadata``; the epoch is checked before the publish, before the acknowledgement and before a deletion.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, references
from dagster_ckpt.checkpoint.catalog.lineage import for_retention
from dagster_ckpt.checkpoint.cleanup.start_sweep import sweep
from dagster_ckpt.checkpoint.clock import Clock, iso
from dagster_ckpt.checkpoint.control.deletion_log import ROUNDS, DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.issued_ids import record_issued
from dagster_ckpt.checkpoint.control.pins import Pins
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME, checkpoint_directory, shared_directory
from dagster_ckpt.checkpoint.format.manifest import SAVEPOINT, CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.format.snapshot import Identity, Snapshot
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, Gauge
from dagster_ckpt.checkpoint.taking.savepoint_files import dispose_claimed, write_savepoint
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD, SharedState
from dagster_ckpt.config.retention import AnyOf, KeepPinned, RetentionPolicy, decide
from dagster_ckpt.errors import CheckpointFailure, CheckpointNotFound, CorruptCheckpoint, PublishUnknown
from dagster_ckpt.filesystem import FileSystem, Stopped, unheard

__all__ = ["CompletedCheckpointStore", "Dropped", "PendingCheckpoint"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A checkpoint that was subsumed or given up, and why."""

    metadata: CheckpointMetadata
    reason: str


@dataclass(slots=True)
class PendingCheckpoint:
    """An attempt: it has an id, and either its publish or its expiry wins.

    Attributes:
        number: its id.
        triggered_at: seconds since the epoch.
        started: monotonic seconds; the timeout counts from here.
        storing: its files on their way.
    """

    number: int
    triggered_at: float
    started: float
    storing: Gauge
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: str = "writing"

    def expire(self) -> bool:
        """Give the attempt up; ``False`` when it is already being published."""
        with self._lock:
            if self._state == "publishing":
                return False
            self._state = "expired"
            return True

    def seal(self) -> None:
        """Begin to publish.

        Raises:
            Stopped: the attempt was given up before.
        """
        with self._lock:
            if self._state == "expired":
                raise Stopped
            self._state = "publishing"

    @property
    def expired(self) -> bool:
        """Whether the attempt was given up."""
        with self._lock:
            return self._state == "expired"


class CompletedCheckpointStore:
    """The completed checkpoints of one lineage, as written under one epoch.

    Args:
        catalog: the reading side.
        claim: the epoch this store writes under.
        job_id: the lineage.
        first_id: the first id it may use.
        restored_from: the reference of what the epoch began with.
        mode: recorded in each checkpoint.
        clock: wall and monotonic time.
        inline_threshold: files of at most this many bytes are small: those that do not recur are kept in
            ``_metadata`` (1 MiB in all), the others are packed together.
        verified: a checkpoint whose every file has just been read and found sound.
        max_state_size: every file is kept in ``_metadata``, and none may be larger than this, in bytes; ``None`` for
            files that are stored as such.
        claimed: a savepoint that the lineage was restored from and that is its own to delete.
        tell: is told of what takes long to store, on the threads that store it.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        claim: Claim,
        *,
        job_id: str,
        first_id: int,
        restored_from: str | None,
        mode: str,
        clock: Clock,
        inline_threshold: int = DEFAULT_INLINE_THRESHOLD,
        verified: CheckpointMetadata | None = None,
        max_state_size: int | None = None,
        claimed: CheckpointMetadata | None = None,
        tell: Callable[[CheckpointInProgress], object] = unheard,
    ) -> None:
        self._catalog = catalog
        self._claimed = claimed
        self.filesystem: FileSystem = catalog.filesystem
        self._claim = claim
        self.job_id = job_id
        self.restored_from = restored_from
        self._mode = mode
        self._inline_threshold = inline_threshold
        self._clock = clock
        self._tell = tell
        self._deletions = DeletionLog(catalog.filesystem, catalog.job_name)
        self._pins = Pins(catalog.filesystem, catalog.job_name)
        self._savepoints = RecordedSavepoints(catalog.filesystem, catalog.job_name)
        #: Those that the lineage may have come from; what this epoch takes is nobody's ancestor before its end.
        self._earlier_savepoints = self._savepoints.known()
        self._shared = SharedState(
            catalog.filesystem,
            shared_directory(catalog.job_name, job_id),
            claim.epoch,
            inline_threshold,
            verified,
            max_state_size,
        )
        self._lock = threading.RLock()
        self._next = first_id
        self._retained: list[CheckpointMetadata] = []
        #: Neither counted nor deleted; what they share stays in use.
        self._quarantined: list[CheckpointMetadata] = []
        self._broken: list[CorruptCheckpoint] = []
        self._unsettled: list[CheckpointMetadata] = []
        #: A deletion was broken off: what is retained is not what ``_retained`` says until it is read again.
        self._must_read_again = False
        self._read_again()

    @property
    def retained(self) -> list[CheckpointMetadata]:
        """Completed checkpoints by (epoch, id), the newest last, without those in quarantine."""
        with self._lock:
            return list(self._retained)

    @property
    def broken(self) -> list[CorruptCheckpoint]:
        """What was found unreadable at the start. While there is any, no shared file is deleted."""
        return list(self._broken)

    @property
    def epoch(self) -> int:
        """The epoch this store writes under."""
        return self._claim.epoch

    def know(self, files: Iterable[tuple[FileEntry, Identity]]) -> None:
        """The live location's objects of these identities were copied from these stored files, see ``SharedState``."""
        self._shared.know(files)

    def check_owner(self) -> None:
        """Make sure that no newer run has taken the job over.

        Raises:
            Fenced: one has.
        """
        self._catalog.epochs.check(self.epoch)

    def sweep(self) -> list[str]:
        """Delete what earlier epochs left unfinished in this lineage, before the first checkpoint; what was deleted.

        Nothing, while there is a checkpoint that cannot be read: it may need any of it.

        Raises:
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed; the next start tries again.
        """
        if self._broken:
            return []
        completed = {metadata.checkpoint_id for metadata in (*self._quarantined, *self._retained)}
        return sweep(self._catalog, self.job_id, self.epoch, self._next, completed, self._shared.in_use())

    def begin(self) -> PendingCheckpoint:
        """Issue the next id, durably, so that it is never issued again."""
        with self._lock:
            self._catalog.epochs.check(self.epoch)
            number = self._next
            record_issued(self.filesystem, self._catalog.job_name, self.job_id, self.epoch, number)
            self._next += 1
        storing = Gauge.of_checkpoint(number, self._clock, self._tell)
        return PendingCheckpoint(number, self._clock.time(), self._clock.monotonic(), storing)

    def write(
        self,
        pending: PendingCheckpoint,
        snapshot: Snapshot,
        *,
        kind: str = "checkpoint",
        timings_ms: Mapping[str, float] | None = None,
    ) -> CheckpointMetadata:
        """Store a snapshot and publish it; on return it is durable, visible and acknowledged.

        Raises:
            Stopped: the attempt expired; what it wrote is gone again.
            Fenced: a newer run has taken the job over.
            CheckpointFailure: a newer checkpoint completed meanwhile.
            StorageError: the storage failed; what it wrote is gone again, unless the outcome is unknown.
        """
        started = self._clock.monotonic()
        published = False
        try:
            entries, new_bytes = self._shared.store(pending.number, snapshot, lambda: pending.expired, pending.storing)
            metadata = self._describe(pending, snapshot, kind, entries, new_bytes, timings_ms, started)
            with self._lock:
                self._catalog.epochs.check(self.epoch)
                if self._retained and self._retained[-1].key > metadata.key:
                    raise CheckpointFailure(f"{metadata.name} was subsumed by {self._retained[-1].name} meanwhile.")
                pending.seal()
                directory = checkpoint_directory(self._catalog.job_name, self.job_id, pending.number)
                published = True  # from here on the outcome may be unknown: nothing is deleted on a guess
                self._unsettled.append(metadata)
                try:
                    self.filesystem.create(f"{directory}/{METADATA_FILE_NAME}", metadata.encode())
                except PublishUnknown:
                    raise
                except OSError:
                    published = False
                    self._unsettled.remove(metadata)
                    raise
                self._catalog.epochs.check(self.epoch)
                self._unsettled.remove(metadata)
                self._retained.append(metadata)
                self._shared.remember(snapshot, entries)
                self._share()
            return metadata
        finally:
            if not published:
                self._undo(pending)
            self._shared.release(pending.number)

    def write_savepoint(
        self,
        pending: PendingCheckpoint,
        snapshot: Snapshot,
        storage: FileSystem,
        *,
        timings_ms: Mapping[str, float] | None = None,
    ) -> CheckpointMetadata:
        """Write a snapshot as a savepoint below ``storage``. It is the user's: nothing here counts or deletes it.

        That it was taken goes on record, for a recovery that is told to go on from savepoints, too.

        Raises:
            Stopped: the attempt expired.
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        started = self._clock.monotonic()

        def describe(entries: tuple[FileEntry, ...]) -> CheckpointMetadata:
            size = sum(entry.size for entry in entries)
            return self._describe(pending, snapshot, SAVEPOINT, entries, size, timings_ms, started)

        def seal() -> None:
            self._catalog.epochs.check(self.epoch)
            pending.seal()

        metadata = write_savepoint(
            storage,
            self.job_id,
            snapshot,
            describe,
            pending.storing,
            inline_threshold=self._inline_threshold,
            stop=lambda: pending.expired,
            seal=seal,
        )
        try:
            self._catalog.epochs.check(self.epoch)
            self._savepoints.add(RecordedSavepoint.of(metadata))
        except OSError as error:  # whoever asked for the savepoint has it
            _log.warning("Savepoint %s is complete and not on record: %s", metadata.reference, error)
        return metadata

    def subsume(self, retention: RetentionPolicy) -> list[Dropped]:
        """Drop what ``retention`` does not keep and nobody has pinned; nothing, where pins are never settled.

        Raises:
            Fenced: a newer run has taken the job over; nothing was dropped.
        """
        with self._lock:
            self._settle()
            for _ in range(ROUNDS):
                policy = retention
                if pinned := self._pins.pinned():
                    policy = AnyOf((retention, KeepPinned(dict.fromkeys(pinned, ""))))
                decisions = decide(
                    policy, for_retention(self._all_owned(), self._earlier_savepoints), self._clock.time()
                )
                drop = {decision.name: decision.reason for decision in decisions if not decision.keep}
                if all(metadata.epoch < self.epoch for metadata in self._retained):
                    drop.pop(self.restored_from or "", None)  # until this epoch has its own, it is what is gone on from
                dropped = [
                    Dropped(metadata, drop[metadata.reference])
                    for metadata in self._retained
                    if metadata.reference in drop
                ]
                if not dropped or self._discard(dropped, f"subsumed: retained are {policy}"):
                    break
            else:
                return self._keep_all("The next checkpoint tries again.")
            if self._claimed is not None and self._claimed.reference in drop:
                dropped += self._give_up_claimed(drop[self._claimed.reference])
            return dropped

    def discard_all(self, reason: str) -> list[Dropped]:
        """Delete every checkpoint of this lineage that is neither pinned nor quarantined, for the cleanup policy.

        Raises:
            Fenced: a newer run has taken the job over; nothing was deleted.
        """
        with self._lock:
            self._settle()
            for _ in range(ROUNDS):
                pinned = self._pins.reasons()
                kept = [
                    f"{metadata.name} ({pinned[metadata.reference]})" if pinned[metadata.reference] else metadata.name
                    for metadata in self._retained
                    if metadata.reference in pinned
                ]
                why = f"{reason}; pinned and kept: {', '.join(kept)}" if kept else reason
                if self._quarantined:
                    why += f"; in quarantine and kept: {', '.join(metadata.name for metadata in self._quarantined)}"
                dropped = [Dropped(metadata, why) for metadata in self._retained if metadata.reference not in pinned]
                if not dropped or self._discard(dropped, why):
                    break
            else:
                return self._keep_all("The next start of the job tries again.")
            self._deletions.tell_foreign(self.job_id)
            return dropped + self._give_up_claimed(reason)

    def _keep_all(self, what_next: str) -> list[Dropped]:
        _log.warning(
            "Nothing of %s is deleted: %d times in a row it was found to be pinned meanwhile. %s",
            self._catalog.job_name,
            ROUNDS,
            what_next,
        )
        return []

    def _all_owned(self) -> list[CheckpointMetadata]:
        """The completed checkpoints and the claimed savepoint, in order."""
        claimed = [] if self._claimed is None else [self._claimed]
        return sorted([*claimed, *self._retained], key=lambda metadata: metadata.key)

    def _give_up_claimed(self, reason: str) -> list[Dropped]:
        """Delete the claimed savepoint; what the storage refuses to delete is tried again with the next one."""
        claimed = self._claimed
        if claimed is None or claimed.location is None:
            return []
        self._catalog.epochs.check(self.epoch)
        if not dispose_claimed(claimed.location, like=self.filesystem):
            return []
        self._claimed = None
        return [Dropped(claimed, reason)]

    def _describe(
        self,
        pending: PendingCheckpoint,
        snapshot: Snapshot,
        kind: str,
        entries: tuple[FileEntry, ...],
        new_bytes: int,
        timings_ms: Mapping[str, float] | None,
        started: float,
    ) -> CheckpointMetadata:
        return CheckpointMetadata(
            job_name=self._catalog.job_name,
            job_id=self.job_id,
            checkpoint_id=pending.number,
            epoch=self.epoch,
            batch=snapshot.batch,
            mode=self._mode,
            kind=kind,
            restored_from=self.restored_from,
            writer={"run_id": self._claim.run_id, "host": self._claim.host, "pid": self._claim.pid},
            triggered_at=iso(pending.triggered_at),
            written_at=iso(self._clock.time()),
            timings_ms={**(timings_ms or {}), "write": _milliseconds(self._clock.monotonic() - started)},
            new_bytes=new_bytes,
            facts=snapshot.facts,
            sink=snapshot.sink,
            files=entries,
        )

    def _settle(self) -> None:
        """Find out what became of publishes and deletions that were broken off, before anything is decided on them."""
        for metadata in list(self._unsettled):
            with contextlib.suppress(CheckpointNotFound):
                self._catalog.load(self.job_id, metadata.checkpoint_id)
                self._retained = sorted([*self._retained, metadata], key=lambda item: item.key)
                self._share()
            self._unsettled.remove(metadata)
        if self._deletions.retry(self.epoch, self._in_use_as_stored) or self._must_read_again:
            self._read_again()

    def _read_again(self) -> None:
        completed, self._broken = self._catalog.completed(self.job_id)
        quarantined = self._catalog.quarantine.names()
        self._retained = [metadata for metadata in completed if metadata.reference not in quarantined]
        self._quarantined = [metadata for metadata in completed if metadata.reference in quarantined]
        self._share()
        self._must_read_again = False

    def _share(self) -> None:
        self._shared.retain([*self._quarantined, *self._retained])

    def _in_use_as_stored(self) -> frozenset[str] | None:
        completed, broken = self._catalog.completed(self.job_id)
        if broken:
            return None
        # One in quarantine may just have been deleted: somebody has asked for that.
        present = {metadata.reference for metadata in completed}
        self._quarantined = [metadata for metadata in self._quarantined if metadata.reference in present]
        self._share()
        return self._shared.in_use() | {name.rpartition("/")[2] for name in references(completed)}

    def _discard(self, dropped: Sequence[Dropped], reason: str) -> bool:
        """Delete checkpoints; ``False`` when one of them was pinned meanwhile, and nothing was deleted."""
        gone = {item.metadata.reference for item in dropped}
        candidates = references([item.metadata for item in dropped])
        self._retained = [metadata for metadata in self._retained if metadata.reference not in gone]
        self._share()
        # Not even on record: a run that finishes this deletion later cannot know of an attempt that is under way now.
        needed = self._shared.in_use()
        names = sorted({name.rpartition("/")[2] for name in candidates} - needed)
        if self._broken:
            names = []  # an unreadable manifest may need any shared file: they stay until somebody has looked at it
        self._must_read_again = True
        if not self._deletions.delete(
            self.epoch,
            self.job_id,
            [item.metadata.checkpoint_id for item in dropped],
            names,
            reason,
            self._shared.in_use,
        ):
            self._read_again()
            return False
        self._must_read_again = False
        return True

    def _undo(self, pending: PendingCheckpoint) -> None:
        self._shared.undo(pending.number)
        with contextlib.suppress(OSError):
            self.filesystem.remove_directory(checkpoint_directory(self._catalog.job_name, self.job_id, pending.number))


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
