"""The batch that a query was running when it or its process ended: planned, begun, and not committed.

Read from the live checkpointLocation, without a JVM, by the run itself or by a sensor on the same host.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from dagster_ckpt.checkpoint import PlannedBatch
from dagster_ckpt.spark.batches.plans import PlannedBatches, planned_files, planned_offsets
from dagster_ckpt.spark.files import CheckpointLocation
from dagster_ckpt.spark.live import LiveLocation

__all__ = ["BatchInFlight", "batch_in_flight", "fingerprint"]

_log = logging.getLogger(__name__)

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


def batch_in_flight(live: LiveLocation) -> BatchInFlight | None:
    """The batch under way in a live checkpointLocation; never raises, ``None`` also when nobody can tell."""
    try:
        location = live.location()
        batch = location.planned() if live.has_begun() else None
    except (OSError, ValueError) as error:
        _log.info("It cannot be told which batch was in flight in %s: %s", live.url, error)
        return None
    return None if batch is None else BatchInFlight(batch, _plan(location, batch))


def fingerprint(plan: PlannedBatch) -> str:
    """A digest of what a batch reads: its sources' offsets, and the files where a source's offset does not name them.

    Not of its watermark, its time and its settings, which say nothing about the data.
    """
    what = [[list(source) for source in planned_offsets(plan).sources], planned_files(plan)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _logged(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """The files in which file sources have logged what the batch reads; a compacted one repeats all before it."""
    offsets = location.offsets(batch)
    for source, _ in offsets.sources:
        entry = offsets.file_source_offset(source)
        names = location.names(f"sources/{source}")
        yield from (f"sources/{source}/{name}" for name in names if name.startswith(str(entry)))


def _plan(location: CheckpointLocation, batch: int) -> str | None:
    try:
        if any(location.size(file) > _MOST_BYTES for file in _logged(location, batch)):
            return None
        plans = PlannedBatches(location, batch - 1).new(batch)
        return fingerprint(plans[0]) if plans else None
    except Exception as error:  # without it the batch is told by its number alone
        _log.info("It cannot be told what batch %d of %s reads: %s", batch, location.shown, error)
        return None
