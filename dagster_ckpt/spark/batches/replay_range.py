"""The line of starts that leads to a start, and the batches of that line that run again as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Newest, PlannedBatch
from dagster_ckpt.config import RestoreRequest
from dagster_ckpt.errors import CorruptCheckpoint, SinkMismatch
from dagster_ckpt.paths import is_same_place
from dagster_ckpt.spark.sinks import Sink

__all__ = ["KnownPlans", "plans_after", "plans_to_replay", "refuse_abandoned"]

#: Returns the epoch that a start continues, and the plans of the batches after the restored checkpoint.
KnownPlans: TypeAlias = "Callable[[], tuple[int | None, list[PlannedBatch]]]"


def plans_after(catalog: CheckpointCatalog, target: Newest) -> tuple[int | None, list[PlannedBatch]]:
    """The epoch of the lineage that this start continues, and the plans of the batches after ``target``."""
    restored = target.metadata
    after = -1 if restored is None else restored.batch
    if target.job_id is not None and (restored is None or restored.job_id != target.job_id):
        # A lineage without a checkpoint of its own: its whole line comes after the checkpoint that it began with.
        own = catalog.records.plans(target.job_id)
        if restored is None or own.newest() is not None:
            return own.newest(), own.newest_after(after)
    if restored is None:
        return None, []
    plans = catalog.records.plans(restored.job_id)
    return plans.line_through(restored) if restored.job_id == target.job_id else None, plans.after(restored)


def plans_to_replay(
    request: RestoreRequest, sink: Sink | None, target: Newest, known: KnownPlans
) -> tuple[int | None, list[PlannedBatch]]:
    """The epoch whose plans this start continues, and the batches that must run again as they were.

    Raises:
        CorruptCheckpoint: the records of these batches are not what was written.
    """
    restored, can_roll_back = target.metadata, sink is None or sink.can_roll_back
    last = request.last_replayed(can_roll_back=can_roll_back)
    if last is None:
        with contextlib.suppress(CorruptCheckpoint):  # a start without a replay goes on even if plans are damaged
            return known()[0], []
        return None, []
    line, plans = known()
    if restored is None and can_roll_back:
        return line, []
    # Even before the first checkpoint: a sink that cannot roll back must get the same batches again.
    return line, [plan for plan in plans if plan.batch <= last]


def refuse_abandoned(catalog: CheckpointCatalog, restored: CheckpointMetadata, sink: Sink) -> None:
    """Refuse a checkpoint off the newest line: a sink that only replaces batches holds the batches of that line alone.

    Raises:
        SinkMismatch: the checkpoint is not on the newest line.
    """
    plans = catalog.records.plans(restored.job_id)
    if _wrote_last(catalog, sink) not in {None, restored.job_id} or plans.line_through(restored) != plans.newest():
        raise SinkMismatch(
            f"Sink {sink.path} cannot be rolled back, and the batches that were written to it last do not come of "
            f"{restored.name}, which a rollback has abandoned: going on from there would not replace all of them.",
            hint="Nothing was touched. Go on with restore_from: latest, or give the sink a rollback_to.",
        )


def _wrote_last(catalog: CheckpointCatalog, sink: Sink) -> str | None:
    """The lineage that has begun to write to the sink last, ``None`` if none is known."""
    epochs = catalog.records.epochs
    for epoch in sorted((epoch for epoch, kinds in epochs.names().items() if "choice" in kinds), reverse=True):
        choice = epochs.read_choice(epoch)
        is_known = choice is not None and choice.sink_kind in {None, sink.kind}  # the first releases recorded no kind
        if choice is not None and is_known and is_same_place(str(choice.sink), sink.path):
            return choice.job_id
    return None
