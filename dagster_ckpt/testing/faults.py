"""A file system that fails on demand.

:class:`FaultInjectingFileSystem` wraps another :class:`~dagster_ckpt.filesystem.FileSystem`. Every
operation passes one choke point, which asks a *plan* for the operation's outcome and keeps a log, so that a failed
run can be read, and repeated, operation by operation::

    def plan(operation: Operation) -> Action | None:
        return FailAfter() if operation.name == "create" and operation.path.endswith("_metadata") else None

    storage = FaultInjectingFileSystem(PosixFileSystem(directory), plan)

The possible outcomes, besides success:

* :class:`Fail`: the operation has no effect and raises an error.
* :class:`FailAfter`: the operation takes effect, and the reply is lost.
* :class:`Late`: the reply is lost, and the operation takes effect later, when the network delivers it after all.
* :class:`Torn`: a data file is stored in part.
* :class:`Hang`: the operation waits for something else.
* :class:`Lie`: the operation reports success and does nothing; a listing is wrong.
* :class:`Flip`: one bit is flipped.
* :class:`Crash`, :class:`CrashAfter`: the process dies before or after the operation.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dagster_ckpt.errors import PublishUnknown, StorageError
from dagster_ckpt.filesystem import Entry, FileSystem, Part, ServerSide, Written, unheard
from dagster_ckpt.testing.fault_actions import (
    Action,
    Crash,
    CrashAfter,
    Fail,
    FailAfter,
    Flip,
    Hang,
    Late,
    Lie,
    Operation,
    Plan,
    ProcessDied,
    Torn,
)
from dagster_ckpt.testing.faulty_copies import FaultyCopies

__all__ = ["FaultInjectingFileSystem"]

_Result = TypeVar("_Result")


class FaultInjectingFileSystem(FileSystem):
    """Another file system with faults.

    One instance stands for one process: after a crash each of its operations raises :class:`ProcessDied`,
    while the wrapped file system holds what the storage would hold. Many files are written one after the other, so that
    every run is the same.

    Args:
        inner: carries the operations out.
        plan: asked once per operation, on the operation's thread; may block, to schedule several
            processes, or act on ``inner``, to give another process its turn. May be replaced at
            any time.

    Raises:
        ValueError: (by any operation) the plan asked for an action that does not fit this operation.
    """

    concurrency = 1

    def __init__(self, inner: FileSystem, plan: Plan | None = None) -> None:
        self.inner = inner
        self.plan: Plan = plan or _no_fault
        self.log: list[tuple[Operation, Action | None]] = []
        self._issued = 0
        self._dead = False
        self._lock = threading.Lock()
        self._copies = None if inner.copies is None else FaultyCopies(inner.copies, self._operate)

    def __reduce__(self) -> tuple[type[FaultInjectingFileSystem], tuple[FileSystem, Plan]]:
        return (FaultInjectingFileSystem, (self.inner, self.plan))

    @property
    def is_durable(self) -> bool:  # type: ignore[override]
        return self.inner.is_durable

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self.inner.storage_options

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def hadoop_url(self) -> str:
        return self.inner.hadoop_url

    @property
    def copies(self) -> ServerSide | None:
        return self._copies

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations so far."""
        return tuple(operation for operation, _ in self.log)

    def die(self) -> None:
        """Let the process die now, between two operations."""
        self._dead = True

    def create(self, path: str, data: bytes) -> None:
        def damaged(action: Torn | Flip) -> None:
            self.inner.create(path, _damaged(data, action, path))

        self._operate("create", path, lambda: self.inner.create(path, data), _nothing, damaged, len(data))

    def replace(self, path: str, data: bytes) -> None:
        def damaged(action: Torn | Flip) -> None:
            self.inner.replace(path, _damaged(data, action, path))

        self._operate("replace", path, lambda: self.inner.replace(path, data), _nothing, damaged, len(data))

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        def damaged(action: Torn | Flip) -> Written:
            data = _content(source)
            altered = data[: action.size] if isinstance(action, Torn) else _flipped(data, action.bit)
            self.inner.write(path, altered, stop)
            return Written.of(data)

        return self._operate(
            "write",
            path,
            lambda: self.inner.write(path, source, stop),
            lambda _: Written.of(_content(source)),
            damaged,
            len(source) if isinstance(source, bytes) else source.stat().st_size,
        )

    def write_many(
        self,
        items: Sequence[tuple[str, Path | bytes]],
        stop: Callable[[], bool],
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Written]:
        written = self._write_in_turn(items, stop, told)  # so that every run is the same
        if items:
            self.sync_directories({path.rpartition("/")[0] for path, _ in items})
        return written

    def sync_directories(self, paths: Iterable[str]) -> None:
        names = sorted(paths)
        self._operate("sync_directories", ",".join(names), lambda: self.inner.sync_directories(names), _nothing)

    def read(self, path: str) -> bytes:
        def damaged(action: Torn | Flip) -> bytes:
            return _damaged(self.inner.read(path), action, path)

        return self._operate("read", path, lambda: self.inner.read(path), None, damaged)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        def damaged(action: Torn | Flip) -> Written:
            data = _damaged(_part(self.inner.read(path), part), action, path)
            target.write_bytes(data)
            return Written.of(data)

        return self._operate("fetch", path, lambda: self.inner.fetch(path, target, part), None, damaged)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        def damaged(action: Torn | Flip) -> Written:
            return Written.of(_damaged(_part(self.inner.read(path), part), action, path))

        return self._operate("checksum", path, lambda: self.inner.checksum(path, part), None, damaged)

    def size(self, path: str) -> int:
        return self._operate("size", path, lambda: self.inner.size(path), None)

    def list(self, path: str) -> Sequence[Entry]:
        def wrong(lie: Lie) -> Sequence[Entry]:
            return lie.listing

        return self._operate("list", path, lambda: self.inner.list(path), wrong)

    def remove(self, path: str) -> None:
        self._operate("remove", path, lambda: self.inner.remove(path), _nothing)

    def remove_directory(self, path: str) -> None:
        self._operate("remove_directory", path, lambda: self.inner.remove_directory(path), _nothing)

    def _operate(
        self,
        name: str,
        path: str,
        perform: Callable[[], _Result],
        lie: Callable[[Lie], _Result] | None = None,
        damage: Callable[[Torn | Flip], _Result] | None = None,
        size: int | None = None,
    ) -> _Result:
        """The choke point."""
        with self._lock:
            operation = Operation(self._issued, name, path, size)
            self._issued += 1
        self._alive(operation)
        action = self.plan(operation)
        self._alive(operation)  # another thread of this process may have died while the plan held this one
        with self._lock:
            self.log.append((operation, action))
        match action:
            case None:
                return perform()
            case Crash():
                self._dead = True
                raise ProcessDied(str(operation))
            case CrashAfter():
                with contextlib.suppress(Exception):
                    perform()
                self._dead = True
                raise ProcessDied(str(operation))
            case Fail(error):
                raise error or StorageError(f"{operation} failed (injected).")
            case FailAfter(error):
                perform()
                raise error or _lost(operation)
            case Late(held, error) if operation.changes:
                held.append(lambda: _unheard(perform))
                raise error or _lost(operation)
            case Hang(until):
                until()
                return perform()
            case Lie() if lie is not None:
                return lie(action)
            case Flip() if damage is not None:
                return damage(action)
            case Torn() if damage is not None and name == "write":
                result = damage(action)
                if isinstance(action.error, ProcessDied):
                    self._dead = True
                if action.error is not None:
                    raise action.error
                return result
        raise ValueError(f"{operation} cannot have the action {action}")

    def _alive(self, operation: Operation) -> None:
        if self._dead:
            raise ProcessDied(f"{operation}: the process is dead")


def _no_fault(operation: Operation) -> None:
    del operation


def _nothing(lie: Lie) -> None:
    """The effect of a lie about a change."""
    del lie


def _lost(operation: Operation) -> StorageError:
    kind = PublishUnknown if operation.name == "create" else StorageError
    return kind(f"The reply to {operation} was lost (injected).")


def _unheard(perform: Callable[[], object]) -> None:
    """Perform an operation and ignore its errors: nobody waits for it."""
    with contextlib.suppress(Exception):
        perform()


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _part(data: bytes, part: Part | None) -> bytes:
    return data if part is None else part.of(data)


def _flipped(data: bytes, bit: int) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    position = bit % (8 * len(data))
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def _damaged(data: bytes, action: Torn | Flip, path: str) -> bytes:
    if isinstance(action, Torn):
        raise ValueError(f"{path} is stored whole or not at all: only data files can be torn")
    return _flipped(data, action.bit)
