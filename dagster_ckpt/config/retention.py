"""Retention: which completed checkpoints stay, as a pure decision with reasons.

A policy says which checkpoints to keep; :func:`decide` adds the minimum that every policy keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from dagster_ckpt.config.quantities import format_duration
from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "AnyOf",
    "KeepEvery",
    "KeepNewest",
    "KeepPinned",
    "KeepYounger",
    "Retained",
    "RetentionDecision",
    "RetentionPolicy",
    "decide",
]


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


class RetentionPolicy(ABC):
    """Chooses the checkpoints to keep. Implementations are frozen values."""

    @abstractmethod
    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        """The names of the checkpoints to keep, each with its reason. ``now``: seconds since the epoch."""

    @abstractmethod
    def __str__(self) -> str:
        """The policy for people: ``the 10 newest``."""


@dataclass(frozen=True, slots=True)
class KeepNewest(RetentionPolicy):
    """Keeps the ``count`` newest by (epoch, id); abandoned checkpoints rank after all others."""

    count: int

    def __post_init__(self) -> None:
        _require(self.count >= 1, "at least 1 checkpoint must be retained")

    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        del now
        newest = sorted(checkpoints, key=lambda checkpoint: checkpoint.rank)[-self.count :]
        return dict.fromkeys((checkpoint.name for checkpoint in newest), f"among {self}")

    def __str__(self) -> str:
        return f"the {self.count} newest"


@dataclass(frozen=True, slots=True)
class KeepYounger(RetentionPolicy):
    """Keeps the checkpoints that were written less than ``age`` ago."""

    age: timedelta

    def __post_init__(self) -> None:
        _require(self.age > timedelta(), "the age up to which checkpoints are retained must be positive")

    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        age = self.age.total_seconds()
        young = (checkpoint.name for checkpoint in checkpoints if now - checkpoint.written_at < age)
        return dict.fromkeys(young, f"among {self}")

    def __str__(self) -> str:
        return f"those younger than {format_duration(self.age)}"


@dataclass(frozen=True, slots=True)
class KeepEvery(RetentionPolicy):
    """Keeps the checkpoints whose id is a multiple of ``step``, for as long as the job lives."""

    step: int

    def __post_init__(self) -> None:
        _require(self.step >= 1, "the step of retained checkpoints must be at least 1")

    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        del now
        those = (checkpoint.name for checkpoint in checkpoints if checkpoint.key[1] % self.step == 0)
        return dict.fromkeys(those, f"among {self}")

    def __str__(self) -> str:
        return f"those whose id is a multiple of {self.step}"


@dataclass(frozen=True, slots=True)
class KeepPinned(RetentionPolicy):
    """Keeps the pinned checkpoints; ``names`` has the reason of each, possibly empty."""

    names: Mapping[str, str]

    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        del now
        present = [checkpoint.name for checkpoint in checkpoints if checkpoint.name in self.names]
        return {name: f"pinned: {self.names[name]}" if self.names[name] else "pinned" for name in present}

    def __str__(self) -> str:
        return "those that are pinned"


@dataclass(frozen=True, slots=True)
class AnyOf(RetentionPolicy):
    """Keeps what any of ``policies`` keeps; the first policy that keeps a checkpoint gives the reason."""

    policies: tuple[RetentionPolicy, ...]

    def __post_init__(self) -> None:
        _require(bool(self.policies), "there must be a policy")

    def kept(self, checkpoints: Sequence[Retained], now: float) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for policy in self.policies:
            found = {**policy.kept(checkpoints, now), **found}
        return found

    def __str__(self) -> str:
        return ", ".join(map(str, self.policies))


def decide(policy: RetentionPolicy, checkpoints: Sequence[Retained], now: float) -> list[RetentionDecision]:
    """Decide on each checkpoint. The newest checkpoint that is not abandoned stays whatever the policy says.

    Args:
        policy: chooses the checkpoints to keep.
        checkpoints: all checkpoints.
        now: seconds since the epoch.

    Returns:
        One decision per checkpoint, in the order given.
    """
    kept = dict(policy.kept(checkpoints, now))
    if checkpoints:
        kept.setdefault(max(checkpoints, key=lambda checkpoint: checkpoint.rank).name, "what the job would go on from")
    otherwise = {
        False: f"not among {policy}",
        True: f"a rollback has abandoned it, and abandoned checkpoints go first: not among {policy}",
    }
    return [
        RetentionDecision(item.name, item.name in kept, kept.get(item.name, otherwise[item.abandoned]))
        for item in checkpoints
    ]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidConfiguration(f"The retention policy cannot be used: {message}.")
