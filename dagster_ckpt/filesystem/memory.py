"""Storage in the memory of this process. It keeps every promise of the port except one: it ends with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.errors import PublishConflict, StorageError
from dagster_ckpt.filesystem.port import FileSystem
from dagster_ckpt.filesystem.values import Entry, Part, Stopped, Written, unheard

__all__ = ["MemoryFileSystem"]


class MemoryFileSystem(FileSystem):
    """Files in a dictionary. Thread-safe; a pickled copy begins empty."""

    is_durable = False

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[MemoryFileSystem], tuple[()]]:
        return (type(self), ())

    @property
    def url(self) -> str:
        return "memory"

    def create(self, path: str, data: bytes) -> None:
        path = _inside(path)
        with self._lock:
            if self.files.get(path, data) != data:
                raise PublishConflict(f"{path} already exists and holds something else.")
            self._put(path, data)

    def replace(self, path: str, data: bytes) -> None:
        path = _inside(path)
        with self._lock:
            self._put(path, data)

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        path = _inside(path)
        if stop():
            raise Stopped
        data = source if isinstance(source, bytes) else source.read_bytes()
        with self._lock:
            if path in self.files:
                raise PublishConflict(f"{path} already exists.")
            self._put(path, data)
        return Written.of(data)

    def write_many(
        self,
        items: Sequence[tuple[str, Path | bytes]],
        stop: Callable[[], bool],
        told: Callable[[int], None] = unheard,
    ) -> Sequence[Written]:
        return self._write_in_turn(items, stop, told)

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Do nothing: these files end with the process."""

    def read(self, path: str) -> bytes:
        path = _inside(path)
        with self._lock:
            if path not in self.files:
                raise FileNotFoundError(path)
            return self.files[path]

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        data = _part(self.read(path), part)
        with target.open("xb") as writer:
            writer.write(data)
        return Written.of(data)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        return Written.of(_part(self.read(path), part))

    def size(self, path: str) -> int:
        return len(self.read(path))

    def list(self, path: str) -> Sequence[Entry]:
        path = _inside(path)
        prefix = f"{path}/" if path else ""
        with self._lock:
            found = dict.fromkeys(self.files, False) | dict.fromkeys(self.directories, True)
        return [
            Entry(name.removeprefix(prefix), directory)
            for name, directory in sorted(found.items())
            if name.startswith(prefix) and name != path and "/" not in name.removeprefix(prefix)
        ]

    def remove(self, path: str) -> None:
        path = _inside(path)
        with self._lock:
            self.files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        path = _inside(path)
        with self._lock:
            if not any(name.startswith(f"{path}/") for name in (*self.files, *self.directories)):
                self.directories.discard(path)

    def _put(self, path: str, data: bytes) -> None:
        self.files[path] = data
        self.directories.update(str(parent) for parent in PurePosixPath(path).parents if str(parent) != ".")


def _inside(path: str) -> str:
    """``path`` unchanged, if it is relative and stays below the root."""
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts:
        raise StorageError(f"{path!r} is not a path below the root of the memory.")
    return path


def _part(data: bytes, part: Part | None) -> bytes:
    return data if part is None else part.of(data)
