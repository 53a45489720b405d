"""Retention: which completed checkpoints stay, as a pure decision with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from dagster_ckpt.config.quantities import format_duration

__all__ = ["Retained", "Retention", "RetentionDecision"]


class Retained(NamedTuple):
    """What retention knows of a checkpoint. A tuple, because a job has many, and a frozen dataclass is slow to make.

    Attributes:
        name: unique.
        key: its place in the order, (epoch, id).
        written_at: seconds since the epoch.
        abandoned: the job went back to an earlier checkpoint and continued from there.
    """

    name: str
    key: tuple[int, int]
    written_at: float = 0.0
    abandoned: bool = False

    @property
    def rank(self) -> tuple[bool, tuple[int, int]]:
        """Orders checkpoints by their worth to a restart: abandoned checkpoints come before all others."""
        return not self.abandoned, self.key


class RetentionDecision(NamedTuple):
    """Whether one checkpoint stays, and why."""

    name: str
    keep: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay: those that at least one attribute keeps. As text: ``the 10 newest``.

    Attributes:
        newest: keeps so many of the newest by (epoch, id); abandoned checkpoints rank after all others. It is 1 at
            least, so what the job would go on from always stays.
        younger: keeps those that were written less than this ago, ``None`` for none.
        every: keeps those whose id is a multiple of this for as long as the job lives, ``None`` for none.
        pinned: keeps these names; has the reason of each, possibly empty.
    """

    newest: int
    younger: timedelta | None = None
    every: int | None = None
    pinned: Mapping[str, str] = field(default_factory=dict)

    def decide(self, checkpoints: Sequence[Retained], now: float) -> list[RetentionDecision]:
        """Decide on each checkpoint; a pin is the first reason to keep it.

        Args:
            checkpoints: all checkpoints.
            now: seconds since the epoch.

        Returns:
            One decision per checkpoint, in the order given.
        """
        kept = {
            name: f"among {words}" for words, names in reversed(self._parts(checkpoints, now).items()) for name in names
        }
        kept |= {name: f"pinned: {reason}" if reason else "pinned" for name, reason in self.pinned.items()}
        otherwise = {
            False: f"not among {self}",
            True: f"a rollback has abandoned it, and abandoned checkpoints go first: not among {self}",
        }
        return [
            RetentionDecision(item.name, item.name in kept, kept.get(item.name, otherwise[item.abandoned]))
            for item in checkpoints
        ]

    def _parts(self, checkpoints: Sequence[Retained] = (), now: float = 0.0) -> dict[str, list[str]]:
        """The names of the checkpoints that each attribute but the pins keeps, by what it keeps in words."""
        ranked = sorted(checkpoints, key=lambda checkpoint: checkpoint.rank)
        parts = {f"the {self.newest} newest": [checkpoint.name for checkpoint in ranked[-self.newest :]]}
        if self.younger is not None:
            age = self.younger.total_seconds()
            young = [checkpoint.name for checkpoint in checkpoints if now - checkpoint.written_at < age]
            parts[f"those younger than {format_duration(self.younger)}"] = young
        if self.every is not None:
            those = [checkpoint.name for checkpoint in checkpoints if checkpoint.key[1] % self.every == 0]
            parts[f"those whose id is a multiple of {self.every}"] = those
        return parts

    def __str__(self) -> str:
        pinned = ["those that are pinned"] if self.pinned else []
        return ", ".join([*pinned, *self._parts()])
