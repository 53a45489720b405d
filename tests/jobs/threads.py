"""The threads that this library starts."""

from __future__ import annotations

import threading


def own_threads() -> frozenset[str]:
    """Names of the library's threads that live now."""
    return frozenset(thread.name for thread in threading.enumerate() if thread.name.startswith("dagster-ckpt"))
