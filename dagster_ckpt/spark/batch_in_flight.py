"""The batch that a query was running when it or its process ended: planned, begun, and not committed.

Read from the live checkpointLocation, without a JVM, by the run itself or by a sensor on the same host.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.checkpoint.write_ahead_archive import PlannedBatch
from dagster_ckpt.spark.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.planned_batches import PlannedBatches, planned_files, planned_offsets

__all__ = ["BatchInFlight", "batch_in_flight", "fingerprint", "mark_begun"]

_log = logging.getLogger(__name__)

#: Beside the live location, from when its query was started: before, a batch that is planned there is not under way.
_BEGUN = "begun"
#: Of a source's log of more bytes than this the plan is not read, so that whoever asks stays fast.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """A batch under way.

    Attributes:
        batch: its number.
        plan: fingerprint of what it reads, ``None`` when that cannot be told.
    """

    batch: int
    plan: str | None


def mark_begun(live: Path) -> None:
    """Note that the query of a live checkpointLocation was started."""
    (live.parent / _BEGUN).touch()


def batch_in_flight(live: Path) -> BatchInFlight | None:
    """The batch under way in a live checkpointLocation; never raises, ``None`` also when nobody can tell."""
    try:
        location = CheckpointLocation(live)
        batch = location.planned() if (live.parent / _BEGUN).exists() else None
    except (OSError, ValueError) as error:
        _log.info("It cannot be told which batch was in flight in %s: %s", live, error)
        return None
    return None if batch is None else BatchInFlight(batch, _plan(location, batch))


def fingerprint(plan: PlannedBatch) -> str:
    """A digest of what a batch reads: its sources' offsets, and the files where a source's offset does not name them.

    Not of its watermark, its time and its settings, which say nothing about the data.
    """
    what = [[list(source) for source in planned_offsets(plan).sources], planned_files(plan)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _logged(location: CheckpointLocation, batch: int) -> Iterator[Path]:
    """The files in which file sources have logged what the batch reads; a compacted one repeats all before it."""
    offsets = location.offsets(batch)
    for source, _ in offsets.sources:
        entry = offsets.file_source_offset(source)
        yield from (location.path / "sources" / source).glob(f"{entry}*")


def _plan(location: CheckpointLocation, batch: int) -> str | None:
    try:
        if any(file.stat().st_size > _MOST_BYTES for file in _logged(location, batch)):
            return None
        plans = PlannedBatches(location, batch - 1).new(batch)
        return fingerprint(plans[0]) if plans else None
    except Exception as error:  # without it the batch is told by its number alone
        _log.info("It cannot be told what batch %d of %s reads: %s", batch, location.path, error)
        return None
