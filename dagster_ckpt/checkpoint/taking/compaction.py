"""Which packs a new checkpoint refers to no longer, because little in them is alive.

A pack of small files stays as long as one of them is referred to. So what a new checkpoint still needs of a pack that
is mostly dead is written anew, with the checkpoint's own small files: its bytes are at hand in the snapshot. The old
pack goes when the older checkpoints do. It is only a choice of what a checkpoint writes; the protocol knows nothing of
it.

Two bounds follow, and are tested:

- Space. No checkpoint refers to a pack of more than :data:`LARGEST` times the bytes it has in it, so the packs that one
  checkpoint refers to are at most twice what it needs of them, however old the job.
- Writing. What is written anew is less than what has died in the pack, and the pack is left for good. So no more bytes
  are written anew than small files have vanished, and in all at most twice those of the small files that ever appeared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from dagster_ckpt.checkpoint.format.manifest import FileEntry

__all__ = ["LARGEST", "mostly_dead"]

#: How many times as large a pack may be as what a checkpoint needs of it.
LARGEST = 2


def mostly_dead(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    """The packs that a checkpoint does better without.

    Args:
        entries: what it would refer to.
        sizes: bytes of every pack among that, by reference; ``None`` for one that is gone.
    """
    alive: Counter[str] = Counter()
    for entry in entries:
        if entry.reference is not None and entry.offset is not None:
            alive[entry.reference] += entry.size
    return frozenset(pack for pack, used in alive.items() if (size := sizes[pack]) is None or size > LARGEST * used)
