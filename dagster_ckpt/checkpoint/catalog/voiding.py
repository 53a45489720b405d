"""Which published checkpoints are void.

Their writer was fenced before the publish, or the job was over and swept, or their publish was given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dagster_ckpt.checkpoint.control import Choice, JobRecords
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.errors import CorruptRecord

__all__ = ["BY_NO_EPOCH", "Voiding", "voided"]

#: The epoch of a void manifest that stands where a publish was given up.
BY_NO_EPOCH = 0


def voided(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """What takes the name of a checkpoint whose publish is given up, so that a late request cannot publish it.

    For a release that does not know such manifests, the choice of the publishing epoch voids it: it lists only
    checkpoints that were complete before.
    """
    return replace(metadata, epoch=BY_NO_EPOCH)


@dataclass(frozen=True, slots=True)
class _AtChoice:
    """What a choice tells about checkpoints of older epochs."""

    job_id: str
    last_id: int
    complete: frozenset[int] | None

    @classmethod
    def by(cls, choice: Choice) -> _AtChoice:
        return cls(choice.job_id, choice.last_id, None if choice.complete is None else frozenset(choice.complete))

    def counts(self, number: int) -> bool:
        """Whether a checkpoint of an older epoch was complete at the time of the choice."""
        return number <= self.last_id if self.complete is None else number in self.complete


class Voiding:
    """Tells which checkpoints of a job are void.

    Args:
        records: of the job.
    """

    def __init__(self, records: JobRecords) -> None:
        self._epochs = records.epochs
        self._at_choice: dict[int, _AtChoice] = {}
        self._settled: dict[int, Mapping[str, frozenset[int]]] = {}

    def note(self, epoch: int, choice: Choice) -> None:
        """Note a choice that was read."""
        self._at_choice[epoch] = _AtChoice.by(choice)

    def voided_by(self, metadata: CheckpointMetadata, names: dict[int, set[str]]) -> int | None:
        """The epoch that voids ``metadata``: it had taken the job over, or the job was swept after it, before publish.

        A publish that was given up is void by :data:`BY_NO_EPOCH`.

        A late publish, by a fenced writer or held back by the network, can refer to files that have been deleted or
        swept since.

        Each later choice of the lineage lists the checkpoints that were complete at that time. The list lacks every
        checkpoint that an earlier choice had voided, and has every checkpoint that damaged records did not decide. So
        the newest readable choice decides, and a damaged record matters only when no choice decides.

        Args:
            metadata: what the checkpoint's manifest says.
            names: the records of each epoch, the epochs in ascending order.

        Raises:
            CorruptRecord: the readable records do not decide.
        """
        if metadata.epoch == BY_NO_EPOCH:
            return BY_NO_EPOCH
        damaged: CorruptRecord | None = None
        for epoch in reversed(names):
            if epoch < metadata.epoch:
                break
            try:
                settled = self._settled_after(epoch) if "settled" in names[epoch] else {}
                then = self._choice_of(epoch) if "choice" in names[epoch] and epoch > metadata.epoch else None
            except CorruptRecord as error:
                damaged = damaged or error
                continue
            if metadata.checkpoint_id not in settled.get(metadata.job_id, {metadata.checkpoint_id}):
                return epoch
            if then is not None and then.job_id == metadata.job_id:
                if not then.counts(metadata.checkpoint_id):
                    return epoch
                if then.complete is not None:
                    return None
        if damaged is not None:
            raise damaged
        return None

    def _settled_after(self, epoch: int) -> Mapping[str, frozenset[int]]:
        """The checkpoints of each lineage that were complete when the job was swept after ``epoch``."""
        if epoch not in self._settled and (settled := self._epochs.read_settled(epoch)) is not None:
            self._settled[epoch] = {job_id: frozenset(numbers) for job_id, numbers in settled.complete.items()}
        return self._settled.get(epoch, {})

    def _choice_of(self, epoch: int) -> _AtChoice | None:
        if epoch not in self._at_choice and (choice := self._epochs.read_choice(epoch)) is not None:
            self.note(epoch, choice)
        return self._at_choice.get(epoch)
