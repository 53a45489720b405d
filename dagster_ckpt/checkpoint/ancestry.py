"""Which checkpoints a checkpoint descends from; after a rollback, the others are abandoned."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.checkpoint.recorded_savepoints import RecordedSavepoint
from dagster_ckpt.config.retention import Retained

__all__ = ["for_retention", "line_of_descent"]


def line_of_descent(
    start: CheckpointMetadata,
    completed: Sequence[CheckpointMetadata],
    savepoints: Sequence[RecordedSavepoint] = (),
) -> list[CheckpointMetadata]:
    """``start`` and its ancestors among ``completed``, by (epoch, id).

    The ancestors are the earlier checkpoints of the same start of the job, then what that start was restored from,
    and so on. A file sink still holds the data of these only: a rollback has taken out what came after. The line goes
    on behind a savepoint of the lineage that a start was restored from, if ``savepoints`` has it on record.
    """
    by_reference: dict[str, CheckpointMetadata | RecordedSavepoint] = {item.reference: item for item in savepoints}
    by_reference.update((metadata.reference, metadata) for metadata in completed)
    line: dict[str, CheckpointMetadata | RecordedSavepoint] = {}
    current: CheckpointMetadata | RecordedSavepoint | None = start
    while current is not None and current.reference not in line:
        line[current.reference] = current
        for other in completed:
            same_start = other.epoch == current.epoch and other.restored_from == current.restored_from
            if same_start and other.checkpoint_id < current.checkpoint_id:
                line[other.reference] = other
        current = by_reference.get(current.restored_from or "")
    found = [item for item in line.values() if isinstance(item, CheckpointMetadata)]
    return sorted(found, key=lambda metadata: metadata.key)


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
