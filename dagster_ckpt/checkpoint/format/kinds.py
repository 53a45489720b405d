"""The kinds of checkpoints that are not taken of a running query."""

from __future__ import annotations

__all__ = ["CHANGED", "FORK", "MOVED", "RESCALE", "SAVEPOINT"]

#: The kind of a savepoint: self-contained, in a directory that the user owns.
SAVEPOINT = "savepoint"
#: The kind of a forked job's first checkpoint: a copy of another job's checkpoint or savepoint.
FORK = "fork"
#: The kind of a copy of a checkpoint with another number of state partitions.
RESCALE = "rescale"
#: The kind of a copy of a checkpoint whose sources start elsewhere.
MOVED = "moved"
#: The kinds of copies that a start changes and publishes before its query starts: each begins a line of batches.
CHANGED = frozenset({RESCALE, MOVED})
