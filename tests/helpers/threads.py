"""A process that can start no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_more_threads"]


@contextmanager
def no_more_threads() -> Iterator[None]:
    """In this context no thread starts: each would need more memory than there are addresses."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)
