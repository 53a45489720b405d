"""The deletion log: a deletion is recorded, carried out, and then its record is removed.

After a crash in between, the next run finishes the deletion. Data is deleted before the record, and a checkpoint's
``_metadata`` before any other data, so that nobody can restore a half-deleted checkpoint. Foreign files stay.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from dagster_ckpt.errors import CorruptRecord
from dagster_ckpt.filesystem import FileSystem, Reserve

__all__ = ["ROUNDS", "Deletion", "DeletionLog"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"d-([0-9]{10})-([0-9a-f]{32})")
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
            self._filesystem.remove(self._path(deletion))
            raise
        if not pinned.isdisjoint(checkpoints):
            self._filesystem.remove(self._path(deletion))
            return False
        self._carry_out(deletion, in_use)
        if on_reserve:
            self._reserve.keep()
        return True

    def pending(self) -> list[Deletion]:
        """The recorded deletions that are not yet carried out, oldest epoch first, without unreadable records."""
        found = []
        for entry in self._filesystem.list(self._directory):
            match = _NAME.fullmatch(entry.name)
            if entry.is_directory or match is None:
                continue
            path = f"{self._directory}/{entry.name}"
            try:
                deletion = read_record(self._filesystem, path, Deletion, epoch=int(match[1]), token=match[2])
            except (
                CorruptRecord
            ) as error:  # a checkpoint that stays is subsumed again; a half-deleted one is verified and refused
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
            self._filesystem.remove(self._path(deletion))
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
            self._carry_out(deletion, in_use, self._pins.numbers(deletion.job_id))
        return len(own)

    def recover(self, epoch: int, in_use: Callable[[str], frozenset[str] | None]) -> list[Deletion]:
        """Finish deletions of earlier epochs; called by a run that has claimed ``epoch``.

        A record of an epoch older than the last epoch with a choice is void: that later epoch had finished all valid
        deletions, so a writer that was already fenced wrote this record.

        A pinned checkpoint stays if it is still whole: the writer of the deletion may have died before it looked for
        pins.

        Args:
            epoch: of the caller.
            in_use: names in ``shared/`` of a lineage that must stay; ``None`` when a manifest cannot be read, and then
                no shared file is deleted.
        """
        chosen = [number for number, kinds in self._epochs.names().items() if "choice" in kinds and number < epoch]
        last_chooser = max(chosen, default=0)
        done = []
        for deletion in self.pending():
            if deletion.epoch < last_chooser:
                self._filesystem.remove(self._path(deletion))
            elif deletion.epoch < epoch:
                self._carry_out(
                    deletion,
                    lambda deletion=deletion: in_use(deletion.job_id),  # type: ignore[misc]
                    self._pins.numbers(deletion.job_id),
                )
                done.append(deletion)
        return done

    def _carry_out(
        self,
        deletion: Deletion,
        in_use: Callable[[], frozenset[str] | None],
        pinned: frozenset[int] = frozenset(),
    ) -> None:
        for number in deletion.checkpoints:
            directory = checkpoint_directory(self._job_name, deletion.job_id, number)
            if number in pinned and self._is_whole(directory):
                continue
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
        self._filesystem.remove(self._path(deletion))

    def tell_foreign(self, job_id: str) -> None:
        """Warn of foreign files in the shared directory of a discarded lineage: nothing else will look there."""
        shared = shared_directory(self._job_name, job_id)
        if others := foreign(self._filesystem.list(shared), written_by):
            _log.warning("%s", left_alone(self._filesystem, shared, others))

    def _is_whole(self, directory: str) -> bool:
        """Whether nothing of a checkpoint was deleted: its ``_metadata`` is deleted first, shared files last."""
        return any(entry.name == METADATA_FILE_NAME for entry in self._filesystem.list(directory))

    def _path(self, deletion: Deletion) -> str:
        return f"{self._directory}/d-{deletion.epoch:010}-{deletion.token}"
