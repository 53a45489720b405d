"""Retention: which completed checkpoints stay, decided purely and with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Retained", "RetentionDecision", "retain_newest"]


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention knows of a checkpoint.

    Attributes:
        name: unique.
        key: its place in the order, (epoch, id).
        abandoned: the job went back behind it and on from there.
    """

    name: str
    key: tuple[int, int]
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Whether one checkpoint stays, and why."""

    name: str
    keep: bool
    reason: str


def retain_newest(checkpoints: Sequence[Retained], count: int) -> list[RetentionDecision]:
    """Keep the ``count`` newest by (epoch, id), abandoned ones after all others; at least the first always stays.

    Returns one decision per checkpoint, in the order given.
    """
    keep = max(count, 1)
    ranked = sorted(checkpoints, key=lambda checkpoint: (not checkpoint.abandoned, checkpoint.key), reverse=True)
    rank = {checkpoint.name: position for position, checkpoint in enumerate(ranked, start=1)}
    return [
        RetentionDecision(
            checkpoint.name,
            rank[checkpoint.name] <= keep,
            f"{'among' if rank[checkpoint.name] <= keep else 'older than'} the {keep} newest",
        )
        for checkpoint in checkpoints
    ]
