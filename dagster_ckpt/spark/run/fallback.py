"""Choosing what a job resumes from by itself, when its newest checkpoint may be broken.

A broken checkpoint is first put into quarantine. Then the live location of the previous run is tried, which holds all
of that run's work, if it still exists. Else the next older checkpoint on the line of descent is tried, and so on. A
storage that is down is no reason to pass over a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from dagster_ckpt.checkpoint import (
    LONGEST_REASON,
    CheckpointCatalog,
    CheckpointMetadata,
    Claim,
    FellBack,
    Newest,
    PlannedBatch,
    Quarantined,
    older_than,
)
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileChanged,
    CheckpointFileMissing,
    CorruptCheckpoint,
    CorruptMetadata,
    StorageError,
)
from dagster_ckpt.spark.batches import planned_files
from dagster_ckpt.spark.events import CheckpointQuarantined, CheckpointReplaced, Event
from dagster_ckpt.spark.run.salvage import Salvaging
from dagster_ckpt.spark.sinks import Sink

__all__ = ["FallbackChain", "cost_of"]

_log = logging.getLogger(__name__)

#: Permanent damage. A manifest of a newer release is not damaged, and a storage that fails may recover.
_BROKEN = (CorruptMetadata, CheckpointFileMissing, CheckpointFileChanged)
_OPTION = (
    "Or let the job do that by itself: launch it with fallback_to_older: true, or set it in its CheckpointConfig; the "
    "broken checkpoint is then put into quarantine, and not deleted."
)


class FallbackChain:
    """The checkpoints that a job may resume from by itself, tried one after another.

    Args:
        catalog: the job's checkpoints.
        claim: the epoch of the run that is choosing.
        clock: wall time.
        emit: called with each event.
        opted_in: whether older checkpoints may be tried.
        newest: returns what to resume from, according to manifests alone.
        unpack: writes a checkpoint into the new live location, and verifies all of it; leaves nothing when it raises.
        salvaging: makes a checkpoint of what the previous run has left behind.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        claim: Claim,
        clock: Clock,
        emit: Callable[[Event], None],
        *,
        opted_in: bool,
        newest: Callable[[], Newest],
        unpack: Callable[[CheckpointMetadata], None],
        salvaging: Salvaging,
    ) -> None:
        self._catalog = catalog
        self._claim = claim
        self._clock = clock
        self._opted_in = opted_in
        self._newest = newest
        self._unpack = unpack
        self._emit = emit
        self._salvaging = salvaging

    def newest(self) -> Newest:
        """What to resume from, already unpacked.

        Raises:
            CorruptCheckpoint: the newest checkpoint is broken and older ones may not be tried, or none is left.
            CheckpointNotFound: the recorded choice is missing although it was not discarded.
            Fenced: a newer run has taken the job over.
            StorageError: the storage failed.
        """
        tries = 0
        while True:
            target: Newest | None = None
            try:
                if not tries:
                    self._salvaging.salvage()
                target = self._newest()
                if target.passed_over and not self._opted_in:
                    raise self._refusal(target)
                while target.metadata is not None and (other := self._instead_of(target)) is not None:
                    target = other
            except _BROKEN as error:
                broken = None if target is None else target.metadata
                reference = error.checkpoint if broken is None else broken.reference
                if reference is None or not self._is_own(reference):
                    raise  # a savepoint belongs to the user, and its directory has no older checkpoint
                if self._opted_in:
                    self._put_away(reference, error)
                tries += 1
                rescued = tries == 1 and self._salvaging.rescue(
                    broken, next(older_than(self._catalog, broken or reference), None)
                )
                if rescued:
                    self._emit(CheckpointReplaced(reference, error.message))
                elif not self._opted_in:
                    error.hint = f"{error.hint} {_OPTION}"
                    raise
            else:
                return target

    def _instead_of(self, target: Newest) -> Newest | None:
        """Unpack; returns what to try instead, if a preferred savepoint is broken: the user may have damaged it."""
        if target.metadata is None:
            return None
        try:
            self._unpack(target.metadata)
        except StorageError:
            raise  # a storage that is down, or a full disk here, proves nothing about the savepoint
        except (CorruptCheckpoint, OSError) as error:
            if target.otherwise is None:
                raise
            told = str(error).partition("\n")[0]
            _log.warning("Savepoint %s is passed over: %s", target.metadata.reference, told)
            return target.otherwise()
        return None

    def _put_away(self, reference: str, error: CorruptCheckpoint) -> None:
        self._catalog.records.epochs.check(self._claim.epoch)
        record = Quarantined(
            reference,
            error.message[:LONGEST_REASON],
            self._claim.epoch,
            self._claim.run_id,
            self._claim.host,
            iso(self._clock.time()),
        )
        self._catalog.records.quarantine.add(record)
        self._emit(CheckpointQuarantined(record))

    def _is_own(self, reference: str) -> bool:
        return reference.partition("/")[0] in self._catalog.job_ids()

    def _refusal(self, target: Newest) -> CorruptCheckpoint:
        """The error when an earlier run quarantined a checkpoint and died before its choice; this run has no opt-in."""
        records = self._catalog.records.quarantine.records()
        newest = target.passed_over[0]
        reason = records[newest].reason if newest in records else "its record is gone."
        older = target.metadata
        ways = [f"To verify it once more and go on from it, launch the job with restore_from: {newest}."]
        if older is not None:
            ways.append(f"To go back, launch it with restore_from: {older.reference} (batch {older.batch}).")
        return CorruptCheckpoint(
            f"{newest} of {self._catalog.job_name} is in quarantine: {reason}", hint=" ".join([*ways, _OPTION])
        )


def cost_of(
    catalog: CheckpointCatalog, target: Newest, plans: Sequence[PlannedBatch], sink: Sink | None
) -> FellBack | None:
    """What it costs to resume from ``target``; ``None`` when no checkpoint was passed over.

    Args:
        catalog: the job's checkpoints.
        target: what the job resumes from.
        plans: the batches that are known to have been planned after ``target``.
        sink: the query's sink, if checkpoints cover it: the batches in the sink have been run, too.
    """
    restored = target.metadata
    if restored is None or not target.passed_over:
        return None
    passed = []
    for reference in target.passed_over:
        with suppress(CheckpointError):
            passed.append(catalog.resolve(reference))
    in_sink = None if sink is None else sink.newest_batch()
    last = max([restored.batch, in_sink or 0, *(item.batch for item in passed), *(plan.batch for plan in plans)])
    batches = range(restored.batch + 1, last + 1)
    complete = len(plans) == len(batches) > 0
    files = sum(len(planned_files(plan)) for plan in plans)
    return FellBack(
        target.passed_over,
        restored.name,
        restored.batch,
        last,
        files if complete and files else None,
        _rows(passed, batches),
    )


def _rows(passed: Sequence[CheckpointMetadata], batches: Sequence[int]) -> int | None:
    """The number of rows that ``batches`` read, ``None`` unless a checkpoint has the report of each batch."""
    reported: dict[int, int] = {}
    for item in passed:
        batch, rows = item.facts.progress.get("batch"), item.facts.progress.get("input_rows")
        if isinstance(batch, int) and isinstance(rows, int):
            reported[batch] = rows
    return sum(reported[batch] for batch in batches) if batches and reported.keys() >= set(batches) else None
