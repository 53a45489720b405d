"""Which checkpoints a checkpoint descends from; after a rollback, the others are abandoned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.control.taken_savepoints import RecordedSavepoint
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.config.retention import Retained

__all__ = ["Unreadable", "for_retention", "line_of_descent", "unreadable"]


class _Descendant(Protocol):
    @property
    def reference(self) -> str: ...
    @property
    def checkpoint_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def restored_from(self) -> str | None: ...
    @property
    def key(self) -> tuple[int, int]: ...


_D = TypeVar("_D", bound=_Descendant)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is known of a checkpoint whose manifest cannot be read, from the records of the starts of its job."""

    reference: str
    checkpoint_id: int
    epoch: int
    restored_from: str | None

    @property
    def key(self) -> tuple[int, int]:
        """As of a checkpoint that can be read."""
        return (self.epoch, self.checkpoint_id)


def unreadable(job_id: str, number: int, choices: Mapping[int, Choice]) -> Unreadable:
    """Where a checkpoint that cannot be read belongs.

    Ids rise with the starts of a job, so it is of the last start of its lineage that was to use such an id. A salvage,
    which is taken just before the choice of its start, then counts as one of the start that it was salvaged from.

    Args:
        job_id: the lineage.
        number: its id.
        choices: the recorded choices, by epoch.
    """
    starts = [epoch for epoch, choice in choices.items() if choice.job_id == job_id and choice.first_id <= number]
    epoch = max(starts, default=0)
    restored = choices[epoch].restored if epoch else None
    return Unreadable(f"{job_id}/chk-{number}", number, epoch, restored)


def line_of_descent(start: _D, completed: Sequence[_D], savepoints: Sequence[RecordedSavepoint] = ()) -> list[_D]:
    """``start`` and its ancestors among ``completed``, by (epoch, id).

    The ancestors are the earlier checkpoints of the same start of the job, then what that start was restored from,
    and so on. A file sink still holds the data of these only: a rollback has taken out what came after. The line goes
    on behind a savepoint of the lineage that a start was restored from, if ``savepoints`` has it on record.
    """
    by_reference: dict[str, _D | RecordedSavepoint] = {item.reference: item for item in savepoints}
    by_reference.update((metadata.reference, metadata) for metadata in completed)
    line: dict[str, _D] = {}
    seen: set[str] = set()
    current: _D | RecordedSavepoint | None = start
    while current is not None and current.reference not in seen:
        seen.add(current.reference)
        if not isinstance(current, RecordedSavepoint):
            line[current.reference] = current
        for other in completed:
            same_start = other.epoch == current.epoch and other.restored_from == current.restored_from
            if same_start and other.checkpoint_id < current.checkpoint_id:
                line[other.reference] = other
        current = by_reference.get(current.restored_from or "")
    return sorted(line.values(), key=lambda metadata: metadata.key)


def for_retention(
    completed: Sequence[CheckpointMetadata], savepoints: Sequence[RecordedSavepoint] = ()
) -> list[Retained]:
    """What retention needs to know of ``completed``, which are in order of (epoch, id), the newest last.

    Args:
        completed: of one lineage.
        savepoints: of it, that are on record: what descends from one descends from the checkpoints before it.
    """
    line = line_of_descent(completed[-1], completed, savepoints) if completed else []
    return [
        Retained(
            item.reference,
            item.key,
            written_at=datetime.fromisoformat(item.written_at).timestamp(),
            abandoned=item not in line,
        )
        for item in completed
    ]
