"""Whether a move of sources that is asked for was done by a start before this one."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.checkpoint import MOVED, CheckpointCatalog, CheckpointMetadata, Choice, Moved, find_newest, layout
from dagster_ckpt.config import LATEST, RestoreRequest
from dagster_ckpt.errors import CheckpointError

__all__ = ["last_move", "still_to_move", "without_repeat"]


def last_move(restored: CheckpointMetadata | None, previous: Choice | None) -> Moved | None:
    """The last move of the line that a checkpoint is on, as far as it is known.

    Args:
        restored: the checkpoint; it may be the copy of a start that died before it recorded its choice.
        previous: the choice of the previous start.
    """
    if restored is None:
        return None
    if restored.kind == MOVED:
        return Moved(restored.facts.start_sources or "", restored.reference)
    moved = None if previous is None else previous.moved
    if moved is None:
        return None
    job_id, _, name = moved.checkpoint.partition("/")
    # A rollback to an earlier checkpoint has left the line, and so has a fallback past a copy that is broken.
    is_after = restored.job_id == job_id and restored.checkpoint_id > (layout.checkpoint_id(name) or 0)
    return moved if is_after else None


def without_repeat(catalog: CheckpointCatalog, request: RestoreRequest, previous: Choice | None) -> RestoreRequest:
    """The request to go on from the newest checkpoint, if that comes of the very move that is asked for.

    Then the batches since the move keep their boundaries. The checkpoint that was moved may be gone. Where newer
    checkpoints are in quarantine, the request stays as it is.
    """
    if request.move is None:
        return request
    try:
        newest = find_newest(catalog)
    except CheckpointError:  # the start itself tells it, if it needs the newest checkpoint
        return request
    is_done = not newest.passed_over and _is_of(request, newest.metadata, previous)
    return replace(request, restore_from=LATEST, start_sources=None, replay_to=None) if is_done else request


def still_to_move(
    request: RestoreRequest, going_on: RestoreRequest, restored: CheckpointMetadata | None, previous: Choice | None
) -> RestoreRequest:
    """What is left to do, now that the checkpoint is chosen: a fallback may have passed over the moved copy.

    Args:
        request: what the start was asked to begin with.
        going_on: the result of :func:`without_repeat`, by which the checkpoint was chosen.
        restored: the checkpoint.
        previous: the choice of the previous start.
    """
    if going_on is request or _is_of(request, restored, previous):
        return going_on
    return replace(request, restore_from=LATEST)


def _is_of(request: RestoreRequest, restored: CheckpointMetadata | None, previous: Choice | None) -> bool:
    moved = last_move(restored, previous)
    return moved is not None and moved.asked == request.move
