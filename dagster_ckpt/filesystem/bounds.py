"""Bounds on what transfers use of this machine at once: bytes in memory, and bytes in the temporary directory."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dagster_ckpt.filesystem.values import Stopped

__all__ = ["MAX_SCRATCH_BYTES", "Budget", "Scratch"]

#: Bytes in the temporary directory at once: a pod has little disk, and a job may have much state.
MAX_SCRATCH_BYTES = 1 << 30


def _never() -> bool:
    return False


class Budget:
    """Bytes that transfers may hold at once. A transfer that needs more than the whole budget runs alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[None]:
        """Wait until ``size`` bytes are free, and hold them.

        Raises:
            Stopped: ``stop()`` became true first.
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
    """Files that pass through the temporary directory: :data:`MAX_SCRATCH_BYTES` together, or one larger file alone.

    Thread-safe.

    Args:
        purpose: a part of the names of the files' directories.
    """

    def __init__(self, purpose: str) -> None:
        self._prefix = f"dagster-ckpt-{purpose}-"
        self._room = Budget(MAX_SCRATCH_BYTES)

    @contextlib.contextmanager
    def file(self, size: int, stop: Callable[[], bool] = _never) -> Iterator[Path]:
        """Wait for room for a new file of ``size`` bytes and yield its path; the file is removed afterwards.

        Raises:
            Stopped: ``stop()`` became true first.
        """
        with self._room.taken(size, stop), tempfile.TemporaryDirectory(prefix=self._prefix) as directory:
            yield Path(directory) / "file"
