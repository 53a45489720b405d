"""Which checkpoints a checkpoint descends from. After a rollback, all other checkpoints are abandoned.

Also, how many bytes a deletion would free: a file that several checkpoints share is deleted with the last of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Protocol, TypeVar

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, references
from dagster_ckpt.checkpoint.control import Choice, RecordedSavepoint
from dagster_ckpt.checkpoint.format import (
    METADATA_FILE_NAME,
    CheckpointMetadata,
    checkpoint_id,
    is_job_id,
)
from dagster_ckpt.config import Retained
from dagster_ckpt.errors import CheckpointNotFound, CorruptCheckpoint

__all__ = ["for_retention", "line_before", "line_of_descent", "older_than", "reclaimable_bytes"]


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
    """What the records of a job's starts tell about a checkpoint whose manifest cannot be read."""

    reference: str
    checkpoint_id: int
    epoch: int
    restored_from: str | None

    @property
    def key(self) -> tuple[int, int]:
        """Orders checkpoints, as for a readable one: epoch, then id."""
        return (self.epoch, self.checkpoint_id)


def unreadable(job_id: str, number: int, choices: Mapping[int, Choice]) -> Unreadable:
    """The place of an unreadable checkpoint in its lineage.

    Ids rise with the starts of a job, so the checkpoint belongs to the latest start whose ``first_id`` is not above
    its id. A salvage is taken just before the choice of its start, so it counts for the start that was salvaged.

    Args:
        job_id: the lineage.
        number: the checkpoint's id.
        choices: the recorded choices, by epoch.
    """
    starts = [epoch for epoch, choice in choices.items() if choice.job_id == job_id and choice.first_id <= number]
    epoch = max(starts, default=0)
    restored = choices[epoch].restored if epoch else None
    return Unreadable(f"{job_id}/chk-{number}", number, epoch, restored)


def line_of_descent(start: _D, completed: Sequence[_D], savepoints: Sequence[RecordedSavepoint] = ()) -> list[_D]:
    """``start`` and its ancestors among ``completed``, by (epoch, id).

    The ancestors are the earlier checkpoints of the same start, then the checkpoint that this start restored, and so
    on. A file sink still holds the data of these checkpoints only: a rollback has removed the data after them. If a
    start restored a savepoint of the lineage, the line continues behind it when ``savepoints`` contains it.
    """
    return sorted(_line(start, completed, savepoints).values(), key=lambda metadata: metadata.key)


def _line(start: _D, completed: Sequence[_D], savepoints: Sequence[RecordedSavepoint]) -> dict[str, _D]:
    """The line of descent by references, in no particular order."""
    by_reference: dict[str, _D | RecordedSavepoint] = {item.reference: item for item in savepoints}
    by_start: dict[tuple[int, str | None], list[_D]] = {}
    for item in sorted(completed, key=attrgetter("checkpoint_id")):
        by_reference[item.reference] = item
        by_start.setdefault((item.epoch, item.restored_from), []).append(item)
    line: dict[str, _D] = {}
    seen: set[str] = set()
    current: _D | RecordedSavepoint | None = start
    while current is not None and current.reference not in seen:
        seen.add(current.reference)
        if not isinstance(current, RecordedSavepoint):
            line[current.reference] = current
        # Each start is visited twice at most: all its checkpoints lead on to the one that the start restored.
        for other in by_start.get((current.epoch, current.restored_from), ()):
            if other.checkpoint_id >= current.checkpoint_id:
                break
            line[other.reference] = other
        current = by_reference.get(current.restored_from or "")
    return line


def for_retention(
    completed: Sequence[CheckpointMetadata], savepoints: Sequence[RecordedSavepoint] = ()
) -> list[Retained]:
    """What retention needs to know about ``completed``, which are in order of (epoch, id), the newest last.

    Args:
        completed: completed checkpoints of one lineage.
        savepoints: the lineage's recorded savepoints. A descendant of a savepoint descends from the checkpoints before
            the savepoint.
    """
    line = _line(completed[-1], completed, savepoints) if completed else {}
    return [
        Retained(item.reference, item.key, _seconds(item.written_at), item.reference not in line) for item in completed
    ]


@lru_cache(maxsize=1 << 15)
def _seconds(moment: str) -> float:
    """The seconds since the epoch; remembered, because retention asks for the same checkpoints each time."""
    return datetime.fromisoformat(moment).timestamp()


def line_before(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata | str) -> list[str]:
    """The ancestors of a checkpoint in its lineage, readable or not, the newest first.

    Args:
        catalog: the job's.
        checkpoint: the checkpoint; for an unreadable one ``{job id}/chk-N``.
    """
    start: CheckpointMetadata | Unreadable | None = None
    if isinstance(checkpoint, CheckpointMetadata):
        job_id, start = checkpoint.job_id, checkpoint
    else:
        job_id, _, name = checkpoint.partition("/")
        if not is_job_id(job_id) or checkpoint_id(name) is None:
            return []
    completed, broken = catalog.completed(job_id)
    nodes: dict[str, CheckpointMetadata | Unreadable] = {item.reference: item for item in completed}
    missing = {error.checkpoint for error in broken if error.checkpoint is not None}
    if isinstance(checkpoint, str) and checkpoint not in nodes:
        missing.add(checkpoint)
    if missing:
        choices = catalog.choices()
        for reference in missing:
            number = checkpoint_id(reference.rpartition("/")[2]) or 0
            nodes[reference] = unreadable(job_id, number, choices)
    start = start or nodes[str(checkpoint)]
    savepoints = catalog.records.taken_savepoints.known()
    line = line_of_descent(start, list(nodes.values()), savepoints)
    return [item.reference for item in reversed(line) if item.reference != start.reference]


def older_than(catalog: CheckpointCatalog, checkpoint: CheckpointMetadata | str) -> Iterator[CheckpointMetadata]:
    """The checkpoints of :func:`line_before` that can be read and are not in quarantine, the newest first."""
    quarantined = catalog.records.quarantine.names()
    for older in line_before(catalog, checkpoint):
        if older not in quarantined:
            try:
                yield catalog.resolve(older)
            except (CheckpointNotFound, CorruptCheckpoint):
                continue


def reclaimable_bytes(
    catalog: CheckpointCatalog, completed: Sequence[CheckpointMetadata], drop: Collection[str]
) -> dict[str, int]:
    """The bytes that deleting the checkpoints in ``drop`` frees, by checkpoint.

    A file that several of these checkpoints share counts for the last of them in order; a file that a checkpoint
    outside ``drop`` needs does not count. The sum is what all the deletions free together.

    Args:
        catalog: the job's.
        completed: every completed checkpoint of one lineage, in order.
        drop: references (``{job id}/chk-N``) of the checkpoints to delete.

    Raises:
        StorageError: the storage failed.
    """
    discarded = [metadata for metadata in completed if metadata.reference in drop]
    needed = references([metadata for metadata in completed if metadata.reference not in drop])
    last_user = {reference: metadata for metadata in discarded for reference in metadata.references - needed}
    files = [(metadata, METADATA_FILE_NAME) for metadata in discarded]
    files += [(metadata, reference) for reference, metadata in last_user.items()]
    sizes = catalog.filesystem.size_many([catalog.stored_path(*file) for file in files])
    freed = dict.fromkeys((metadata.reference for metadata in discarded), 0)
    for (metadata, _), size in zip(files, sizes, strict=True):
        freed[metadata.reference] += size or 0  # a running job may have deleted the file meanwhile
    return freed
