"""Versions of a job's code, as the choice of an epoch tells them."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.format.records import Epoch, Line

__all__ = ["UNTOLD", "CodeVersion", "Upgrade"]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A change of the code whose new version has no checkpoint yet, of a job that returns if that version fails.

    Attributes:
        before: the version that took the checkpoints until then.
        checkpoint: what ``before`` goes on from, as ``restored`` of a choice; ``None`` for nothing.
        epoch: the first epoch of the new version.
        began_at: when that epoch chose, ISO 8601 in UTC.
    """

    before: Line
    checkpoint: Line | None
    epoch: Epoch
    began_at: Line


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """The code of the query that an epoch ran.

    Attributes:
        version: the ``code_version`` of the asset; ``None`` where nobody told it.
        upgrade: the change that ``version`` still has to prove by a checkpoint.
        taken_back: the version that failed, in whose place ``version`` was taken from ``previous``.
        in_place_of: the deployed version, in whose place a cut-over has put ``version`` for as long as it is deployed.
    """

    version: Line | None = None
    upgrade: Upgrade | None = None
    taken_back: Line | None = None
    in_place_of: Line | None = None


#: Nobody told the version.
UNTOLD = CodeVersion()
