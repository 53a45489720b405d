"""The completed checkpoints that the newest start of a lineage retains, and the deletion of the others.

The outcome of an interrupted publish or deletion is determined before any decision.
"""

from __future__ import annotations

import logging
import threading
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, for_retention, references, voided
from dagster_ckpt.checkpoint.control import ROUNDS
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.checkpoint.taking.savepoint_files import give_up_claimed
from dagster_ckpt.checkpoint.taking.shared_files import SharedFiles
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import Retention
from dagster_ckpt.errors import CorruptCheckpoint, PublishConflict

__all__ = ["Discarded", "RetainedCheckpoints"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Discarded:
    """A checkpoint that was subsumed or discarded, and why."""

    metadata: CheckpointMetadata
    reason: str


class RetainedCheckpoints:
    """The completed checkpoints of one lineage under one epoch.

    A publish and the decision what to delete exclude each other by :attr:`lock`. The deletion itself does without the
    lock, so that checkpoints complete meanwhile; another deletion begins only when this one has ended.

    Args:
        catalog: the reading side.
        epoch: the epoch under which checkpoints are deleted.
        job_id: the lineage.
        restored_from: the reference of the checkpoint or savepoint that the epoch restored.
        claimed: a savepoint that the lineage was restored from and may delete.
        shared: the files in ``shared/``; is told of every change.
        clock: wall time.

    Attributes:
        lock: is held by whoever changes the attributes below.
        checkpoints: by (epoch, id), the newest last, without those in quarantine; replaced as a whole, so that a reader
            needs no lock.
        quarantined: checkpoints that are neither counted nor deleted; their shared files stay in use.
        broken: the unreadable checkpoints. While there is one, no shared file is deleted.
        unsettled: checkpoints whose publish has an unknown outcome; the files that they need stay in use.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        epoch: int,
        job_id: str,
        restored_from: str | None,
        claimed: CheckpointMetadata | None,
        shared: SharedFiles,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._records = catalog.records
        self._epoch = epoch
        self._job_id = job_id
        self._restored_from = restored_from
        self._claimed = claimed
        self._shared = shared
        self._clock = clock
        #: Savepoints that may be ancestors. A savepoint of this epoch is no ancestor before the epoch ends.
        self._earlier_savepoints = self._records.taken_savepoints.known()
        self.lock = threading.RLock()
        #: Held while a deletion runs; never asked for by whoever holds ``lock``.
        self._deleting = threading.RLock()
        self.checkpoints: list[CheckpointMetadata] = []
        self.quarantined: list[CheckpointMetadata] = []
        self.broken: list[CorruptCheckpoint] = []
        self.unsettled: list[CheckpointMetadata] = []
        #: After an interrupted deletion ``checkpoints`` may be wrong until the checkpoints are read again.
        self._must_read_again = False
        self._read_again()

    def add(self, metadata: CheckpointMetadata) -> None:
        """Add a completed checkpoint."""
        more = list(self.checkpoints)
        insort(more, metadata, key=lambda item: item.key)
        self.checkpoints = more

    def share(self) -> None:
        """Tell :class:`SharedFiles` which checkpoints need shared files now."""
        self._shared.retain([*self.quarantined, *self.checkpoints])

    def settle(self) -> None:
        """Determine the outcome of publishes whose reply was lost.

        Raises:
            Fenced: a newer run has taken the job over.
            StorageError: the outcome stays unknown.
        """
        with self.lock:
            self._settle()

    def subsume(self, retention: Retention) -> list[Discarded]:
        """Delete the checkpoints that ``retention`` does not keep and no user pinned.

        Nothing is deleted when pins keep changing meanwhile.

        Raises:
            Fenced: a newer run has taken the job over; nothing was deleted.
        """
        drop: dict[str, str] = {}

        def to_drop() -> tuple[list[Discarded], str]:
            nonlocal drop
            with_pins, drop = self._decided(retention)
            found = [Discarded(item, drop[item.reference]) for item in self.checkpoints if item.reference in drop]
            return found, f"subsumed: retained are {with_pins}"

        with self._deleting:
            discarded = self._drop(to_drop, "The next checkpoint tries again.")
            if discarded is not None and self._claimed is not None and self._claimed.reference in drop:
                discarded += self._give_up_claimed(drop[self._claimed.reference])
            return discarded or []

    def discard_all(self, reason: str) -> list[Discarded]:
        """Delete every checkpoint of this lineage that is neither pinned nor quarantined, for the cleanup policy.

        Raises:
            Fenced: a newer run has taken the job over; nothing was deleted.
        """

        def to_drop() -> tuple[list[Discarded], str]:
            pinned = self._records.pins.reasons()
            kept = [
                f"{metadata.name} ({pinned[metadata.reference]})" if pinned[metadata.reference] else metadata.name
                for metadata in self.checkpoints
                if metadata.reference in pinned
            ]
            why = f"{reason}; pinned and kept: {', '.join(kept)}" if kept else reason
            if self.quarantined:
                why += f"; in quarantine and kept: {', '.join(metadata.name for metadata in self.quarantined)}"
            return [Discarded(metadata, why) for metadata in self.checkpoints if metadata.reference not in pinned], why

        with self._deleting:
            discarded = self._drop(to_drop, "The next start of the job tries again.")
            if discarded is None:
                return []
            self._records.deletions.tell_foreign(self._job_id)
            return discarded + self._give_up_claimed(reason)

    def _decided(self, retention: Retention) -> tuple[Retention, dict[str, str]]:
        """The retention including pins, and the reason for each checkpoint that it does not keep, by reference."""
        with_pins = replace(retention, pinned=dict.fromkeys(self._records.pins.pinned(), ""))
        decisions = with_pins.decide(for_retention(self._all_owned(), self._earlier_savepoints), self._clock.time())
        drop = {decision.name: decision.reason for decision in decisions if not decision.keep}
        if not self.checkpoints or self.checkpoints[-1].epoch < self._epoch:
            drop.pop(self._restored_from or "", None)  # a recovery needs it until this epoch has its own checkpoint
        return with_pins, drop

    def _drop(self, to_drop: Callable[[], tuple[list[Discarded], str]], what_next: str) -> list[Discarded] | None:
        """Delete what ``to_drop`` names, for its reason; ``None`` when a checkpoint was pinned meanwhile each time."""
        if self._records.deletions.retry(self._epoch, self._in_use_as_stored):
            self._must_read_again = True
        for _ in range(ROUNDS):
            with self.lock:
                self._settle()
                discarded, reason = to_drop()
                names = self._forget(discarded)
            if not discarded or self._delete(discarded, names, reason):
                return discarded
        _log.warning(
            "Nothing of %s is deleted: %d times in a row a checkpoint to delete was found pinned meanwhile. %s",
            self._catalog.job_name,
            ROUNDS,
            what_next,
        )
        return None

    def _all_owned(self) -> list[CheckpointMetadata]:
        """The completed checkpoints and the claimed savepoint, in order."""
        if self._claimed is None:
            return self.checkpoints
        return sorted([self._claimed, *self.checkpoints], key=lambda metadata: metadata.key)

    def _give_up_claimed(self, reason: str) -> list[Discarded]:
        """Delete the claimed savepoint; if the storage refuses, the next deletion tries again."""
        claimed = self._claimed
        if claimed is None or claimed.location is None:
            return []
        self._records.epochs.check(self._epoch)
        if not give_up_claimed(self._catalog, claimed, self._epoch, self._clock):
            return []
        self._claimed = None
        return [Discarded(claimed, reason)]

    def _settle(self) -> None:
        """Determine the outcome of interrupted publishes and deletions, before any decision depends on it."""
        if self.unsettled:
            self._records.epochs.check(self._epoch)
        for metadata in list(self.unsettled):
            if self._is_published(metadata):
                self.add(metadata)
                self.share()
            else:
                self._shared.undo(metadata.checkpoint_id)
            self._shared.release(metadata.checkpoint_id)
            self.unsettled.remove(metadata)
        if self._must_read_again:
            self._read_again()

    def _is_published(self, metadata: CheckpointMetadata) -> bool:
        """Whether a manifest is there whose create had an unknown outcome; if not, the manifest never will be there.

        The create may still be on its way, so its name is taken by a manifest that is void.
        """
        path = self._catalog.manifest(self._job_id, metadata.checkpoint_id)
        try:
            self._catalog.filesystem.create(path, voided(metadata).encode())
        except PublishConflict:
            self._catalog.load(self._job_id, metadata.checkpoint_id)
            return True
        return False

    def _read_again(self) -> None:
        completed, self.broken = self._catalog.completed(self._job_id)
        quarantined = self._records.quarantine.names()
        self.checkpoints = [metadata for metadata in completed if metadata.reference not in quarantined]
        self.quarantined = [metadata for metadata in completed if metadata.reference in quarantined]
        self.share()
        self._must_read_again = False

    def _in_use_as_stored(self) -> frozenset[str] | None:
        with self.lock:  # else a checkpoint that is published meanwhile would be neither in the listing nor in use
            completed, broken = self._catalog.completed(self._job_id)
            if broken:
                return None
            # A quarantined checkpoint may just have been deleted, because a user asked for that.
            present = {metadata.reference for metadata in completed}
            self.quarantined = [metadata for metadata in self.quarantined if metadata.reference in present]
            self.share()
            return self._shared.in_use() | {name.rpartition("/")[2] for name in references(completed)}

    def _forget(self, discarded: Sequence[Discarded]) -> list[str]:
        """Let no new checkpoint share files of ``discarded``; returns the shared files that nothing needs then."""
        if not discarded:
            return []
        gone = {item.metadata.reference for item in discarded}
        candidates = references([item.metadata for item in discarded])
        self.checkpoints = [metadata for metadata in self.checkpoints if metadata.reference not in gone]
        self.share()
        self._must_read_again = True
        if self.broken:
            return []  # an unreadable checkpoint may need any shared file: all stay until a user repairs or deletes it
        # Files in use are not even recorded: a run that finishes this deletion later does not know today's attempts.
        return sorted({name.rpartition("/")[2] for name in candidates} - self._shared.in_use())

    def _delete(self, discarded: Sequence[Discarded], names: Sequence[str], reason: str) -> bool:
        """Delete forgotten checkpoints; ``False``, and nothing is deleted, when one of them was pinned meanwhile."""
        numbers = [item.metadata.checkpoint_id for item in discarded]
        done = self._records.deletions.delete(self._epoch, self._job_id, numbers, names, reason, self._shared.in_use)
        with self.lock:
            if not done:
                self._read_again()
            self._must_read_again = False
        return done
