"""The batch in flight: the batch that a query had planned and not committed when the query or its process ended.

It is read from the live location, without a JVM, by the run itself or by a sensor on the same host.
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

#: A plan is read only from source logs of at most this many bytes, so that the caller stays fast.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """A batch that is under way.

    Attributes:
        batch: the batch's number.
        plan: the fingerprint of what the batch reads, ``None`` when unknown.
    """

    batch: int
    plan: str | None


def batch_in_flight(live: LiveLocation) -> BatchInFlight | None:
    """The batch under way in a live location, ``None`` also when that is unknown; never raises."""
    try:
        location = live.location()
        batch = location.planned() if live.has_begun() else None
    except (OSError, ValueError) as error:
        _log.info("It cannot be told which batch was in flight in %s: %s", live.url, error)
        return None
    return None if batch is None else BatchInFlight(batch, _plan(location, batch))


def fingerprint(plan: PlannedBatch) -> str:
    """A digest of what a batch reads: its sources' offsets, and the files of sources whose offsets do not name them.

    Watermark, time and settings are left out, because they say nothing about the data.
    """
    what = [[list(source) for source in planned_offsets(plan).sources], planned_files(plan)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _logged(location: CheckpointLocation, batch: int) -> Iterator[str]:
    """The logs of file sources that list what the batch reads; a ``.compact`` file also repeats all earlier entries."""
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
    except Exception as error:  # without a plan, the batch's number alone identifies the batch
        _log.info("It cannot be told what batch %d of %s reads: %s", batch, location.shown, error)
        return None
