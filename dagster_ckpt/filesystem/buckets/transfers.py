"""How bytes go to a bucket: in chunks, each sent once; an upload can be stopped between two requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.callbacks import Callback

from dagster_ckpt.filesystem.values import Stopped

__all__ = ["LONGEST_REQUEST", "StopBetweenChunks", "in_chunks", "sending_once"]

#: Seconds after which a request is abandoned and repeated: no library checks that the bytes of its body still move. All
#: bodies that can be under way at once, 48 MiB, take that long over a line of half a megabit a second.
LONGEST_REQUEST = 900.0


def in_chunks(source: str, least: int, most: int, unit: int = 1) -> Iterator[bytes]:
    """A local file in chunks: ``least`` bytes each, and more where there would be over ``most`` chunks.

    Each chunk except the last has a multiple of ``unit`` bytes.
    """
    path = Path(source)
    size = max(least, -(-path.stat().st_size // most))
    size = -(-size // unit) * unit
    with path.open("rb") as reader:
        while chunk := reader.read(size):
            yield chunk


def sending_once(session: Any) -> Any:
    """A session of aiohttp that leaves it to others to repeat a request.

    Where a connection breaks that was used before, aiohttp sends a PUT again, and tells nobody.
    """
    session._retry_connection = False  # noqa: SLF001
    return session


class StopBetweenChunks(Callback):  # type: ignore[misc]  # fsspec publishes no types
    """Stops an upload between two of its requests."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        super().__init__()
        self._stop = stop

    def absolute_update(self, value: int) -> None:
        super().absolute_update(value)
        self._check()

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self._check()

    def _check(self) -> None:
        if self._stop():
            raise Stopped
