"""The checkpoints of the lineages that a job has left: they stay in the storage, and the job can go back to each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, layout
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import CorruptCheckpoint, StorageError

__all__ = ["LeftLineages"]

_log = logging.getLogger(__name__)

#: Seconds between two looks in a bucket, where each lineage costs a listing. Only a person deletes what a job has left.
_SELDOM = 1800.0


class LeftLineages:
    """Looks for the checkpoints of the lineages that a job has left by a restore.

    Args:
        catalog: the job's checkpoints.
        clock: monotonic time.
    """

    def __init__(self, catalog: CheckpointCatalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        #: What the last look has found; ``None`` before the first look.
        self._found: list[CheckpointMetadata] | None = None
        #: Of each lineage: the ids of its directories, and what was complete, when its manifests were read last.
        self._read: dict[str, tuple[list[int], list[CheckpointMetadata]]] = {}
        self._current: str | None = None
        self._looked_at = float("-inf")

    def chosen_again(self) -> None:
        """A start may have chosen another lineage: the next look reads the choice, and every lineage."""
        self._current = None
        self._read.clear()

    def restorable(self) -> Sequence[CheckpointMetadata] | None:
        """The checkpoints that are complete and not in quarantine, by (epoch, id) within a lineage.

        Returns ``None`` while the storage has not told yet. A look that fails is made again by the next call, and what
        was found before counts until then.
        """
        now = self._clock.monotonic()
        is_due = not self._catalog.filesystem.is_distant or now - self._looked_at >= _SELDOM
        if self._current is None or is_due:
            try:
                self._found = self._look()
                self._looked_at = now
            except (StorageError, CorruptCheckpoint) as error:
                _log.warning(
                    "The lineages that job %s has left cannot be read now: %s", self._catalog.job_name, error.message
                )
        return self._found

    def _look(self) -> list[CheckpointMetadata]:
        if self._current is None:
            chosen = self._catalog.choice()
            self._current = "" if chosen is None else chosen[1].job_id
        read: dict[str, tuple[list[int], list[CheckpointMetadata]]] = {}
        for job_id in sorted(set(self._catalog.job_ids()) - {self._current}):
            numbers, known = self._catalog.numbers(job_id), self._read.get(job_id)
            is_known = known is not None and known[0] == numbers and self._are_there(known[1])
            read[job_id] = known if known is not None and is_known else (numbers, self._catalog.completed(job_id)[0])
        self._read = read
        quarantined = self._catalog.records.quarantine.names() if any(read.values()) else set()
        return [metadata for _, found in read.values() for metadata in found if metadata.reference not in quarantined]

    def _are_there(self, found: Sequence[CheckpointMetadata]) -> bool:
        directories = (layout.checkpoint_directory(item.job_name, item.job_id, item.checkpoint_id) for item in found)
        manifests = [f"{directory}/{layout.METADATA_FILE_NAME}" for directory in directories]
        return None not in self._catalog.filesystem.size_many(manifests)
