"""Whether a move of sources that is asked for was done by a start before this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dagster_ckpt.checkpoint import (
    MOVED,
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Moved,
    Newest,
    find_newest,
    layout,
)
from dagster_ckpt.config import LATEST, RestoreRequest
from dagster_ckpt.errors import CheckpointError

__all__ = ["choose_once", "last_move"]


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


def choose_once(
    catalog: CheckpointCatalog,
    request: RestoreRequest,
    previous: Choice | None,
    choose: Callable[[RestoreRequest], Newest],
    forget: Callable[[], None],
) -> tuple[Newest, RestoreRequest]:
    """Choose a checkpoint, and tell what is left to do: a move that a start before this one has done is not repeated.

    The start then goes on from the newest checkpoint, as long as that comes of the very move that is asked for. So the
    batches since the move keep their boundaries, and the checkpoint that was moved may be gone.

    Args:
        catalog: the job's checkpoints.
        request: what the start was asked to begin with.
        previous: the choice of the previous start.
        choose: chooses by a request, and unpacks the checkpoint.
        forget: removes what was unpacked.
    """
    going_on = _without_repeat(catalog, request, previous)
    target = choose(going_on)
    if going_on is request:
        return target, request
    done = last_move(target.metadata, previous)
    if done is not None and done.asked == request.move:
        told = f"{target.reason}; the sources were moved before, as asked, by {done.checkpoint}"
        return replace(target, reason=told), going_on
    if request.restore_from == LATEST:
        return target, request  # a fallback has passed over the moved copy
    forget()
    return choose(request), request


def _without_repeat(catalog: CheckpointCatalog, request: RestoreRequest, previous: Choice | None) -> RestoreRequest:
    """The request to go on from the newest checkpoint, if that comes of the very move that is asked for.

    Where newer checkpoints are in quarantine, or an upgrade sends the start elsewhere, the request stays as it is.
    """
    if request.move is None or request.asked_as is not None:
        return request
    try:
        newest = find_newest(catalog)
    except CheckpointError:  # the start itself tells it, if it needs the newest checkpoint
        return request
    done = last_move(newest.metadata, previous)
    if newest.passed_over or done is None or done.asked != request.move:
        return request
    return RestoreRequest(allow_loss=request.allow_loss)
