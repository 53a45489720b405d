"""What one commit does to an Iceberg table, and what the commit has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dagster_ckpt.spark.sinks.iceberg.rollback import Rollback

__all__ = ["Branch", "Change", "Committed"]


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch at the new snapshot, which keeps snapshots from expiring.

    Attributes:
        name: the name of the branch.
        since: the first of these snapshots that the new one comes from is the oldest that is kept. If it comes from
            none, the new one alone is kept. ``None`` removes the branch.
    """

    name: str
    since: Iterable[int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit does.

    Attributes:
        summary: properties of the new snapshot, the mark of a job among them.
        files: Iceberg's data files to add.
        rollback: what is taken back before.
        branch: what the same commit does to a branch, ``None`` for nothing.
    """

    summary: Mapping[str, str]
    files: Sequence[Any] = ()
    rollback: Rollback = field(default_factory=Rollback)
    branch: Branch | None = None


class Committed(NamedTuple):
    """What a commit has made, as the metadata tells that holds the commit.

    Attributes:
        snapshot: the snapshot.
        table: the id that the table got when it was created.
    """

    snapshot: int
    table: str
