"""Decides which packs a new checkpoint stops referring to, because most of their bytes are dead.

A pack of small files stays in the storage while a checkpoint refers to one of its files. So a new checkpoint rewrites
the live files of a mostly dead pack together with its own small files; the snapshot has their bytes. The old pack is
deleted with the older checkpoints. Compaction only decides what a checkpoint writes; the protocol does not depend on
it.

Two bounds follow, and are tested:

- Space. No checkpoint refers to a pack larger than :data:`LARGEST` times the bytes that the checkpoint needs from the
  pack. So the packs of one checkpoint are at most twice as large as its files in them, however old the job is.
- Writing. A rewrite writes fewer bytes than have died in the pack, and no later checkpoint refers to the pack. So all
  rewrites write at most the bytes of the small files that vanished, and all writes of small files together at most
  twice the bytes of the small files that ever appeared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from dagster_ckpt.checkpoint.format import FileEntry

__all__ = ["LARGEST", "mostly_dead"]

#: The largest pack, as a multiple of the bytes that a checkpoint needs from the pack.
LARGEST = 2


def mostly_dead(entries: Iterable[FileEntry], sizes: Mapping[str, int | None]) -> frozenset[str]:
    """The packs that a new checkpoint should not refer to.

    Args:
        entries: the entries that the checkpoint would refer to.
        sizes: bytes of each of their packs, by reference; ``None`` for a pack that is gone.
    """
    alive: Counter[str] = Counter()
    for entry in entries:
        if entry.reference is not None and entry.offset is not None:
            alive[entry.reference] += entry.size
    return frozenset(pack for pack, used in alive.items() if (size := sizes[pack]) is None or size > LARGEST * used)
