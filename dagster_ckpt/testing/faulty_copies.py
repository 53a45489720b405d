"""A bucket's own copies of its objects, with faults: a part of :mod:`~dagster_ckpt.testing.faults`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dagster_ckpt.filesystem import Copy, Part, ServerSide, Stopped, Stored, unheard

__all__ = ["FaultyCopies"]

_Result = TypeVar("_Result")


class FaultyCopies(ServerSide):
    """The copies of another file system; each passes the choke point of the file system that injects faults.

    Args:
        inner: carries the operations out.
        operate: the choke point.
    """

    concurrency = 1

    def __init__(self, inner: ServerSide, operate: Callable[[str, str, Callable[[], object]], object]) -> None:
        self._inner = inner
        self._operate = operate
        self.tells_checksums = inner.tells_checksums

    def stored(self, path: str) -> Stored:
        return self._through("stored", path, lambda: self._inner.stored(path))

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        return self._through("stored_below", path, lambda: self._inner.stored_below(path))

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        return self._through("read_stored", path, lambda: self._inner.read_stored(path, version, part))

    def copy(self, copy: Copy) -> Stored:
        return self._through("copy", copy.target, lambda: self._inner.copy(copy))

    def copy_many(
        self,
        copies: Sequence[Copy],
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Stored]:
        made = []
        for copy in copies:  # one after the other, so that every run is the same
            if stop():
                raise Stopped
            made.append(self.copy(copy))
            told(made[-1].size)
        return made

    def remove_below(self, path: str) -> int:
        return self._through("remove_below", path, lambda: self._inner.remove_below(path))

    def _through(self, name: str, path: str, perform: Callable[[], _Result]) -> _Result:
        result: _Result = self._operate(name, path, perform)  # type: ignore[assignment]
        return result
