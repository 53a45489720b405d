"""Python's garbage collector, held back while thousands of manifests and names are read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold the garbage collector back: 10,000 manifests are millions of objects, and it would look at all in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()  # the two together make all objects old ones, which the collector seldom looks at
            gc.unfreeze()
        if was_on:
            gc.enable()
