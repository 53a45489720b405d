"""The deletion log: a deletion is recorded, carried out, and then its record is removed.

After a crash in between, the next run finishes the deletion. Data is deleted before the record, and a checkpoint's
``_metadata`` before any other data, so that nobody can restore a half-deleted checkpoint. Foreign files stay.

A process that was paused in the midst of a deletion may wake up when the next start has found a pin. So a second
record, created exclusively, decides which checkpoints the deletion spares, before anything is deleted or struck.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dagster_ckpt.checkpoint.control.epochs import Epochs
from dagster_ckpt.checkpoint.control.pins import Pins
from dagster_ckpt.checkpoint.format import (
    CONTROL_DIR,
    METADATA_FILE_NAME,
    CheckpointId,
    Epoch,
    FileName,
    JobId,
    Text,
    Token,
    checkpoint_directory,
    encode_record,
    foreign,
    is_checkpoint_file,
    left_alone,
    read_record,
    reserve_path,
    shared_directory,
    written_by,
)
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem, Reserve

__all__ = ["ROUNDS", "Deletion", "DeletionLog"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"([dx])-([0-9]{10}-[0-9a-f]{32})")
#: How often a deletion is decided at most, when each time a checkpoint was pinned meanwhile. No user pins that often in
#: that moment: the listing of pins must be wrong, and nothing is deleted this time.
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Deletion:
    """Checkpoints to delete, with the shared files that no other checkpoint needed at that time.

    Attributes:
        epoch: the epoch that decided.
        job_id: the lineage.
        checkpoints: ids to delete.
        shared: names in ``shared/`` to delete.
        reason: for people.
        token: unique.
    """

    epoch: Epoch
    job_id: JobId
    checkpoints: tuple[CheckpointId, ...]
    shared: tuple[FileName, ...]
    reason: Text
    token: Token


@dataclass(frozen=True, slots=True)
class _Decision:
    """What a deletion spares. The first decision counts, whoever carries the deletion out.

    Attributes:
        spared: ids of checkpoints that stay; all of them, if the deletion is withdrawn.
    """

    spared: tuple[CheckpointId, ...]


class DeletionLog:
    """The deletions of one job name that are not yet carried out."""

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._job_name = job_name
        self._directory = f"{job_name}/{CONTROL_DIR}/deletions"
        self._epochs = Epochs(filesystem, job_name)
        self._pins = Pins(filesystem, job_name)
        self._reserve = Reserve(filesystem, reserve_path(job_name))

    def delete(
        self,
        epoch: int,
        job_id: str,
        checkpoints: Sequence[int],
        shared: Sequence[str],
        reason: str,
        in_use: Callable[[], frozenset[str] | None],
    ) -> bool:
        """Record a deletion, then carry it out.

        Args:
            epoch: of the caller.
            job_id: the lineage.
            checkpoints: ids to delete.
            shared: names in ``shared/`` that only these checkpoints need.
            reason: for people.
            in_use: called at the last moment for the names in ``shared/`` that must stay; ``None`` when nobody can
                tell, and then no shared file is deleted.

        Returns:
            ``False`` when one of the checkpoints has been pinned meanwhile; then nothing was deleted.

        Raises:
            Fenced: a newer run has taken the job over; the deletion is void.
        """
        deletion = Deletion(epoch, job_id, tuple(checkpoints), tuple(shared), reason, uuid.uuid4().hex)
        path = self._path(deletion)
        on_reserve = self._reserve.create(path, encode_record(deletion, path))
        # Record first, check afterwards: a run that claims an epoch from now on sees the record and treats these
        # checkpoints as gone. A run that claimed before makes this check fail, and nothing has been deleted yet.
        # Likewise a user who pins a checkpoint from now on sees the record, and an earlier pin is seen here.
        try:
            self._epochs.check(epoch)
            pinned = self._pins.numbers(job_id)
        except BaseException:
            self._withdraw(deletion)
            raise
        if not pinned.isdisjoint(checkpoints):
            self._withdraw(deletion)
            return False
        if self._decided(deletion, ()) != frozenset():
            self._epochs.check(epoch)  # a newer run has decided otherwise
            return False
        self._carry_out(deletion, frozenset(), in_use)
        if on_reserve:
            self._reserve.keep()
        return True

    def pending(self) -> list[Deletion]:
        """The recorded deletions that are not yet carried out, oldest epoch first, without unreadable records."""
        return self._pending(self._names()["d"])

    def _pending(self, names: set[str]) -> list[Deletion]:
        found = []
        for name in names:
            epoch, token = name.split("-")
            path = f"{self._directory}/d-{name}"
            try:
                deletion = read_record(self._filesystem, path, Deletion, epoch=int(epoch), token=token)
            except CorruptRecord as error:
                # A checkpoint that stays is subsumed again; a half-deleted one is verified and refused.
                _log.warning("A deletion is left alone: %s", error)
                continue
            if deletion is not None:
                found.append(deletion)
        return sorted(found, key=lambda deletion: (deletion.epoch, deletion.token))

    def ask(self, epoch: int, job_id: str, checkpoints: Sequence[int], shared: Sequence[str], reason: str) -> None:
        """Record a deletion that the holder of ``epoch``, or a later epoch, carries out; arguments as :meth:`delete`.

        Raises:
            Fenced: ``epoch`` is no longer the newest; no deletion was recorded.
        """
        deletion = Deletion(epoch, job_id, tuple(checkpoints), tuple(shared), reason, uuid.uuid4().hex)
        path = self._path(deletion)
        self._reserve.create(path, encode_record(deletion, path))
        try:
            self._epochs.check(epoch)
        except BaseException:
            self._withdraw(deletion)
            raise

    def retry(self, epoch: int, in_use: Callable[[], frozenset[str] | None]) -> int:
        """Carry out deletions of the caller's epoch that a user asked for, or that the storage refused at first.

        Args:
            epoch: of the caller.
            in_use: as for :meth:`recover`.

        Returns:
            the number of these deletions.
        """
        own = [deletion for deletion in self.pending() if deletion.epoch == epoch]
        for deletion in own:
            self._epochs.check(epoch)
            self._finish(deletion, in_use)
        return len(own)

    def recover(self, epoch: int, in_use: Callable[[str], frozenset[str] | None]) -> list[Deletion]:
        """Finish deletions of earlier epochs; called by a run that has claimed ``epoch``.

        A record of an epoch older than the last epoch with a choice is void: that later epoch had finished all valid
        deletions, so a writer that was already fenced wrote this record.

        A pinned checkpoint stays if it is still whole and nothing was decided: the writer of the deletion may have died
        before it looked for pins.

        Args:
            epoch: of the caller.
            in_use: names in ``shared/`` of a lineage that must stay; ``None`` when a manifest cannot be read, and then
                no shared file is deleted.
        """
        chosen = [number for number, kinds in self._epochs.names().items() if "choice" in kinds and number < epoch]
        last_chooser = max(chosen, default=0)
        done, names = [], self._names()
        for deletion in self._pending(names["d"]):
            if deletion.epoch < last_chooser:
                self._strike(deletion)
            elif deletion.epoch < epoch:
                self._finish(deletion, partial(in_use, deletion.job_id))
                done.append(deletion)
        for name in names["x"] - names["d"]:
            self._filesystem.remove(f"{self._directory}/x-{name}")
        return done

    def _finish(self, deletion: Deletion, in_use: Callable[[], frozenset[str] | None]) -> None:
        pinned = self._pins.numbers(deletion.job_id)
        spared = self._decided(
            deletion,
            [number for number in deletion.checkpoints if number in pinned and self._is_whole(deletion, number)],
        )
        if spared is not None:
            self._carry_out(deletion, spared, in_use)

    def _withdraw(self, deletion: Deletion) -> None:
        """Strike a deletion, unless another process carries it out."""
        if self._decided(deletion, deletion.checkpoints) == frozenset(deletion.checkpoints):
            self._strike(deletion)

    def _decided(self, deletion: Deletion, spared: Sequence[int]) -> frozenset[int] | None:
        """What a deletion spares: ``spared``, unless another process has decided that before.

        Returns:
            the ids of checkpoints that stay; ``None`` if the deletion is struck, or the decision cannot be read. Then
            the caller leaves the deletion alone.
        """
        path = self._path(deletion, "x")
        decision: _Decision | None = _Decision(tuple(spared))
        try:
            self._reserve.create(path, encode_record(_Decision(tuple(spared)), path))
        except PublishConflict:
            try:
                decision = read_record(self._filesystem, path, _Decision)
            except CorruptRecord as error:
                _log.warning("A deletion is left alone: %s", error)
                return None
        # A deletion is struck before its decision is removed: while it is on record, the decision is the first.
        if decision is None or self._filesystem.read_if_there(self._path(deletion)) is None:
            self._filesystem.remove(path)
            return None
        return frozenset(decision.spared)

    def _strike(self, deletion: Deletion) -> None:
        for kind in ("d", "x"):
            self._filesystem.remove(self._path(deletion, kind))

    def _carry_out(
        self, deletion: Deletion, spared: frozenset[int], in_use: Callable[[], frozenset[str] | None]
    ) -> None:
        for number in deletion.checkpoints:
            if number in spared:
                continue
            directory = checkpoint_directory(self._job_name, deletion.job_id, number)
            self._filesystem.remove(f"{directory}/{METADATA_FILE_NAME}")
            self._filesystem.sync_directories([directory])
            entries = self._filesystem.list(directory)
            others = foreign(entries, is_checkpoint_file)
            for entry in entries:
                if entry.name not in others and not entry.is_directory:
                    self._filesystem.remove(f"{directory}/{entry.name}")
            if others:
                _log.warning("%s", left_alone(self._filesystem, directory, others))
            self._filesystem.remove_directory(directory)
        shared = shared_directory(self._job_name, deletion.job_id)
        keep = in_use()
        for name in deletion.shared:
            # A record of an earlier release may name foreign files.
            if keep is not None and name not in keep and written_by(name) is not None:
                self._filesystem.remove(f"{shared}/{name}")
        self._filesystem.remove_directory(shared)
        self._filesystem.remove_directory(f"{self._job_name}/{deletion.job_id}")
        self._strike(deletion)

    def tell_foreign(self, job_id: str) -> None:
        """Warn of foreign files in the shared directory of a discarded lineage: nothing else will look there."""
        shared = shared_directory(self._job_name, job_id)
        if others := foreign(self._filesystem.list(shared), written_by):
            _log.warning("%s", left_alone(self._filesystem, shared, others))

    def _is_whole(self, deletion: Deletion, number: int) -> bool:
        """Whether nothing of a checkpoint was deleted: its ``_metadata`` is deleted first, shared files last."""
        directory = checkpoint_directory(self._job_name, deletion.job_id, number)
        return any(entry.name == METADATA_FILE_NAME for entry in self._filesystem.list(directory))

    def _names(self) -> dict[str, set[str]]:
        """What the names of deletions (``d``) and of decisions (``x``) tell: epoch and token."""
        found: dict[str, set[str]] = {"d": set(), "x": set()}
        for entry in self._filesystem.list(self._directory):
            if not entry.is_directory and (match := _NAME.fullmatch(entry.name)) is not None:
                found[match[1]].add(match[2])
        return found

    def _path(self, deletion: Deletion, kind: str = "d") -> str:
        return f"{self._directory}/{kind}-{deletion.epoch:010}-{deletion.token}"
