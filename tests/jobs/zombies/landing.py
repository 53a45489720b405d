"""Files that land while a driver reads them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.jobs.matrix.streams import ROWS, Row, land

__all__ = ["Landing"]


class Landing:
    """Files that land one after another.

    A test that waits for a batch lands a file for that batch: a driver that is quick has read all others already.
    """

    def __init__(self, directory: Path, files: int) -> None:
        self._directory = directory
        self._over = threading.Event()
        self.landed = 0
        self.more(files)

    def more(self, files: int = 1) -> None:
        for _ in range(files):
            land(self._directory, self.landed)
            self.landed += 1

    @contextmanager
    def going_on(self, pause: float) -> Iterator[None]:
        """Land a file every ``pause`` seconds until the block is left."""
        self._over.clear()
        thread = threading.Thread(target=self._go_on, args=(pause,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _go_on(self, pause: float) -> None:
        while not self._over.wait(pause):
            self.more()

    def rows(self) -> Counter[Row]:
        """Each row that has landed."""
        return Counter((key, key * 10 + file) for file, key in self._keys())

    def first_rows(self) -> Counter[Row]:
        """Each id once, as the first file had it."""
        first: dict[int, int] = {}
        for file, key in self._keys():
            first.setdefault(key, key * 10 + file)
        return Counter(first.items())

    def _keys(self) -> Iterator[tuple[int, int]]:
        return ((file, file * 5 + row) for file in range(self.landed) for row in range(ROWS))
