"""What a capture hands to the checkpoint protocol: pinned files and facts about them.

This is the seam between what knows Spark (``dagster_ckpt.spark``) and what stores checkpoints: the
protocol sees files with relative names, an opaque position and facts to write into ``_metadata``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Json", "PinnedFile", "Snapshot"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a snapshot, pinned so that its bytes no longer change.

    Attributes:
        path: relative POSIX path within the snapshot, for example ``checkpoint/state/0/1/12.zip``.
        local: path at which the pinned bytes can be read until the snapshot is released.
        size: bytes.
        identity: equal for the same unchanged file in a later snapshot of the same process, so that its
            checksum need not be computed again; ``None`` where no such promise can be made.
        recurs: whether later snapshots are likely to hold the same file, so that it is stored where they can share
            it; small files that do not recur are kept in ``_metadata``.
    """

    path: str
    local: str
    size: int
    identity: tuple[int, ...] | None = None
    recurs: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent, pinned cut of a job.

    Attributes:
        batch: the last committed micro-batch (or batch step) that the cut covers.
        files: everything a restore needs.
        facts: what ``_metadata`` tells about the job at the cut (JSON values only).
        sink: the sink's position at the cut, ``None`` where the job's sink has none.
        release: drops the pins; called once, whatever became of the checkpoint.
    """

    batch: int
    files: tuple[PinnedFile, ...]
    facts: Mapping[str, Json]
    sink: Mapping[str, Json] | None
    release: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)
