"""The writing side of the storage: turns snapshots into completed checkpoints.

A :class:`CompletedCheckpointStore` belongs to one claimed epoch. A new checkpoint is stored before old checkpoints are
deleted; data is written before ``_metadata``; the epoch is checked before the publish, before the acknowledgement and
before a deletion.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, give_name
from dagster_ckpt.checkpoint.control import NO_LABEL, Claim, Label, RecordedSavepoint
from dagster_ckpt.checkpoint.format import (
    SAVEPOINT,
    CheckpointMetadata,
    FileEntry,
    Identity,
    Snapshot,
    checkpoint_directory,
    shared_directory,
)
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, Gauge, PendingCheckpoint
from dagster_ckpt.checkpoint.taking.retained import Discarded, RetainedCheckpoints
from dagster_ckpt.checkpoint.taking.savepoint_files import write_savepoint
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD, SharedFiles
from dagster_ckpt.clock import Clock, iso, milliseconds
from dagster_ckpt.config import Retention
from dagster_ckpt.errors import CheckpointFailure, CorruptCheckpoint, PublishUnknown
from dagster_ckpt.filesystem import FileSystem, unheard

__all__ = ["CompletedCheckpointStore"]

_log = logging.getLogger(__name__)


class CompletedCheckpointStore:
    """The completed checkpoints of one lineage, as written under one epoch.

    Args:
        catalog: the reading side.
        claim: the claimed epoch.
        job_id: the lineage.
        first_id: the first checkpoint id that the epoch may use.
        restored_from: the reference of the checkpoint or savepoint that the epoch restored.
        mode: recorded in each checkpoint.
        clock: wall and monotonic time.
        inline_threshold: files of at most this many bytes are small: small files that do not recur are kept in
            ``_metadata`` (1 MiB in all), other small files are packed together.
        verified: a checkpoint whose files have all just been read and found sound.
        max_state_size: if set, every file is kept in ``_metadata``, and no file may have more bytes than this; ``None``
            to store files separately.
        claimed: a savepoint that the lineage was restored from and may delete.
        tell: called with the progress of a checkpoint that takes long to store, on the threads that store it.
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
        self.catalog = catalog
        self.filesystem: FileSystem = catalog.filesystem
        self._claim = claim
        self.job_id = job_id
        self.restored_from = restored_from
        self._mode = mode
        self._inline_threshold = inline_threshold
        self._clock = clock
        self._tell = tell
        self._records = catalog.records
        self._shared = SharedFiles(
            catalog.filesystem,
            shared_directory(catalog.job_name, job_id),
            claim.epoch,
            inline_threshold,
            verified,
            max_state_size,
        )
        self._is_discarded = False
        self._issued = self._records.issued(job_id)
        #: Ids whose records are useless since a greater id was recorded.
        self._outdated: list[int] = []
        #: Whether the records of epochs whose claims are forgotten were deleted.
        self._is_tidied = False
        #: Held while an id is issued, and for nothing else: a savepoint begins whatever checkpoints wait for.
        self._issuing = threading.Lock()
        #: The id of the next checkpoint or savepoint.
        self.next_id = first_id
        self._kept = RetainedCheckpoints(catalog, claim.epoch, job_id, restored_from, claimed, self._shared, clock)

    @property
    def retained(self) -> list[CheckpointMetadata]:
        """Completed checkpoints by (epoch, id), the newest last, without those in quarantine."""
        return list(self._kept.checkpoints)

    @property
    def quarantined(self) -> list[CheckpointMetadata]:
        """Completed checkpoints in quarantine: neither counted nor deleted; their shared files stay in use."""
        return list(self._kept.quarantined)

    @property
    def broken(self) -> list[CorruptCheckpoint]:
        """The checkpoints found unreadable at the start. While there is one, no shared file is deleted."""
        return list(self._kept.broken)

    @property
    def epoch(self) -> int:
        """The claimed epoch."""
        return self._claim.epoch

    def in_use(self) -> frozenset[str]:
        """The names in ``shared/`` that checkpoints need, including checkpoint attempts in progress."""
        return self._shared.in_use()

    def know(self, files: Iterable[tuple[FileEntry, Identity]]) -> None:
        """Note which stored files the live location's objects were copied from, see :meth:`SharedFiles.know`."""
        self._shared.know(files)

    def check_owner(self) -> None:
        """Make sure that no newer run has taken the job over.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        self._records.epochs.check(self.epoch)

    def begin(self) -> PendingCheckpoint:
        """Issue the next id, durably, so that it is never issued again. Waits for no write and no deletion.

        Raises:
            CheckpointFailure: :meth:`discard_all` was called.
            Fenced: a newer run has taken the job over.
        """
        with self._issuing, self._fenced_first():
            self._require_open()
            self._records.epochs.check(self.epoch)
            number = self.next_id
            self._issued.record(self.epoch, number)
            self._outdated.append(number - 1)
            self.next_id += 1
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
        """Store a snapshot and publish it; on return the checkpoint is durable, visible and acknowledged.

        Raises:
            Stopped: the checkpoint attempt expired; its files are deleted again.
            Fenced: a newer run has taken the job over.
            CheckpointFailure: a newer checkpoint completed meanwhile, or :meth:`discard_all` was called.
            StorageError: the storage failed; the written files are deleted again. If the outcome is unknown, that waits
                until the outcome is known.
        """
        started = self._clock.monotonic()
        completed, settled = False, True
        try:
            with self._fenced_first():
                entries, new_bytes = self._shared.store(
                    pending.number, snapshot, lambda: pending.expired, pending.storing
                )
                metadata = self._describe(pending, snapshot, kind, entries, new_bytes, timings_ms, started)
                with self._kept.lock:
                    self._require_open()
                    self._records.epochs.check(self.epoch)
                    if self.retained and self.retained[-1].key > metadata.key:
                        raise CheckpointFailure(f"{metadata.name} was subsumed by {self.retained[-1].name} meanwhile.")
                    pending.seal()
                    settled = False  # from here on the outcome may be unknown: nothing is deleted on a guess
                    self._kept.unsettled.append(metadata)
                    try:
                        self.filesystem.create(self.catalog.manifest(self.job_id, pending.number), metadata.encode())
                    except PublishUnknown:
                        raise
                    except OSError:
                        # The manifest may have been there, and a newer run may have gone on from it and its files.
                        self._records.epochs.check(self.epoch)
                        settled = True
                        self._kept.unsettled.remove(metadata)
                        raise
                    self._records.epochs.check(self.epoch)
                    completed = settled = True
                    self._kept.unsettled.remove(metadata)
                    self._kept.add(metadata)
                    self._shared.remember(snapshot, entries)
                    self._kept.share()
                return metadata
        finally:
            if settled:  # else nothing that the checkpoint needs may go before its outcome is known
                if not completed:
                    self._undo(pending)
                self._shared.release(pending.number)

    def write_savepoint(
        self,
        pending: PendingCheckpoint,
        snapshot: Snapshot,
        storage: FileSystem,
        *,
        timings_ms: Mapping[str, float] | None = None,
        label: Label = NO_LABEL,
        request: str | None = None,
    ) -> CheckpointMetadata:
        """Write a snapshot as a savepoint below ``storage``. The user owns it: no retention counts or deletes it.

        The savepoint is recorded, for a recovery that is configured to restore savepoints too. A savepoint of the same
        ``request`` loses its name.

        Raises:
            SavepointFailed: a savepoint of another request has the name.
            Stopped: the attempt expired.
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        started = self._clock.monotonic()

        def describe(entries: tuple[FileEntry, ...]) -> CheckpointMetadata:
            size = sum(entry.size for entry in entries)
            described = self._describe(pending, snapshot, SAVEPOINT, entries, size, timings_ms, started)
            return replace(described, given_name=label.name, note=label.note)

        def seal(savepoint: CheckpointMetadata) -> None:
            self._records.epochs.check(self.epoch)
            pending.seal()
            give_name(self.catalog, savepoint, label.series, request)

        with self._fenced_first():
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
            self._records.epochs.check(self.epoch)
            self._records.taken_savepoints.add(RecordedSavepoint.of(metadata))
        except OSError as error:  # the asker has the savepoint
            _log.warning("Savepoint %s is complete, but could not be recorded: %s", metadata.reference, error)
        return metadata

    def settled(self, number: int) -> CheckpointMetadata:
        """A checkpoint whose publish had an unknown outcome, if the publish has succeeded; else it never will.

        Raises:
            CheckpointFailure: the publish has not succeeded.
            Fenced: a newer run has taken the job over.
            StorageError: the outcome stays unknown.
        """
        self._kept.settle()
        for metadata in self.retained:
            if metadata.checkpoint_id == number:
                return metadata
        raise CheckpointFailure(f"The storage did not take chk-{number}.")

    def subsume(self, retention: Retention) -> list[Discarded]:
        """Subsume checkpoints that ``retention`` does not keep and no user pinned; see :class:`RetainedCheckpoints`.

        Checkpoints and savepoints are taken meanwhile, on other threads.

        Raises:
            Fenced: a newer run has taken the job over; nothing was deleted.
        """
        with self._fenced_first():
            discarded = self._kept.subsume(retention)
            self._forget_ids()
            # The reserve may have been given up for what others recorded, or the disk was too full to renew it then.
            self._records.reserve.keep()
            return discarded

    def _forget_ids(self) -> None:
        if self._outdated and not self._is_tidied:
            with contextlib.suppress(OSError):  # lower ids do no harm, and the next call tries again
                self._issued.forget_before(self._outdated[0] + 1, self._records.epochs.names())
                self._is_tidied = True
        while self._outdated:
            self._issued.forget(self.epoch, self._outdated.pop())

    def discard_all(self, reason: str) -> list[Discarded]:
        """Delete every checkpoint of this lineage that is neither pinned nor quarantined, for the cleanup policy.

        From then on the store takes no checkpoint, not even one that is under way.

        Raises:
            Fenced: a newer run has taken the job over; nothing was deleted.
        """
        with self._kept.lock:
            self._is_discarded = True
        with self._fenced_first():
            return self._kept.discard_all(reason)

    def _fenced_first(self) -> contextlib.AbstractContextManager[None]:
        return self._records.epochs.fenced_first(self.epoch)

    def _require_open(self) -> None:
        if self._is_discarded:
            raise CheckpointFailure(
                f"The checkpoints of {self.job_id} have been discarded; no checkpoint is added.",
                hint="The job has ended. Launch it again.",
            )

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
            job_name=self.catalog.job_name,
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
            timings_ms={**(timings_ms or {}), "write": milliseconds(self._clock.monotonic() - started)},
            new_bytes=new_bytes,
            facts=snapshot.facts,
            sink=snapshot.sink,
            files=entries,
        )

    def _undo(self, pending: PendingCheckpoint) -> None:
        self._shared.undo(pending.number)
        with contextlib.suppress(OSError):
            self.filesystem.remove_directory(checkpoint_directory(self.catalog.job_name, self.job_id, pending.number))
