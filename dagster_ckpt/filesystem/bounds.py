"""Bounds on what transfers take of this machine at once: bytes in memory, and bytes in the temporary directory."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dagster_ckpt.filesystem.values import Stopped

__all__ = ["MAX_SCRATCH_BYTES", "Budget", "Scratch"]

#: So many bytes pass through the temporary directory at once: a pod has little disk, and a job may have much state.
MAX_SCRATCH_BYTES = 1 << 30


def _never() -> bool:
    return False


class Budget:
    """Bytes that transfers may hold at once. One that needs more than there is goes alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[None]:
        """Wait until ``size`` bytes are free, and hold them.

        Raises:
            Stopped: ``stop()`` became true before.
        """
        with self._changed:
            while self._taken and self._taken + size > self._most:
                if stop():
                    raise Stopped
                self._changed.wait(0.1)
            if stop():
                raise Stopped
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


class Scratch:
    """Files that pass through the temporary directory, of :data:`MAX_SCRATCH_BYTES` together or a larger one alone.

    Thread-safe.

    Args:
        purpose: is in the names of their directories.
    """

    def __init__(self, purpose: str) -> None:
        self._prefix = f"dagster-ckpt-{purpose}-"
        self._room = Budget(MAX_SCRATCH_BYTES)

    @contextlib.contextmanager
    def file(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[Path]:
        """Wait until there is room for a new file of ``size`` bytes; where to put it, and it is gone afterwards.

        Raises:
            Stopped: ``stop()`` became true before.
        """
        with self._room.taken(size, stop), tempfile.TemporaryDirectory(prefix=self._prefix) as directory:
            yield Path(directory) / "file"
