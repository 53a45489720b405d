"""A storage in memory that takes itself for durable; quick enough for thousands of runs."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import Copy, Part, ServerSide, Stored, crc32c_of, memory


class MemoryFileSystem(memory.MemoryFileSystem):
    is_durable = True

    def backup(self) -> MemoryFileSystem:
        """What a backup of the storage holds."""
        other = MemoryFileSystem()
        with self._lock:
            other.files, other.directories = dict(self.files), set(self.directories)
        return other


class CopyingMemory(MemoryFileSystem, ServerSide):
    """A storage in memory that copies by itself, as a bucket does."""

    concurrency = 1

    def __init__(self) -> None:
        super().__init__()
        self.generations: dict[str, int] = {}
        self._generation = itertools.count(1)

    @property
    def copies(self) -> ServerSide:
        return self

    @property
    def hadoop_url(self) -> str:
        return f"hadoop-{self.url}"

    def stored(self, path: str) -> Stored:
        data = self.read(path)
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return Stored(len(data), str(self.generations[path]), crc32c_of(data), md5)

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        below = f"{path}/"
        return {name.removeprefix(below): self.stored(name) for name in sorted(self.files) if name.startswith(below)}

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        data = self.read(path)
        if str(self.generations[path]) != version:
            raise FileNotFoundError(path)
        return data if part is None else data[part.offset : part.offset + part.size]

    def copy(self, copy: Copy) -> Stored:
        data = self.read(copy.source)
        if copy.of is not None and str(self.generations[copy.source]) != copy.of.version:
            raise FileNotFoundError(copy.source)
        if self.files.get(copy.target, data) != data:
            raise StorageError(f"{copy.target} exists already and holds something else.")
        self.replace(copy.target, data)
        return self.stored(copy.target)

    def remove_below(self, path: str) -> int:
        names = [name for name in self.files if name.startswith(f"{path}/")]
        for name in names:
            self.remove(name)
        # As in a bucket, a directory is gone with its last object.
        self.directories = {name for name in self.directories if not f"{name}/".startswith(f"{path}/")}
        return len(names)

    def _put(self, path: str, data: bytes) -> None:
        super()._put(path, data)
        self.generations[path] = next(self._generation)


class UnprovingMemory(CopyingMemory):
    """One that tells no checksum of what it has, as Azure does not."""

    tells_checksums = False

    def stored(self, path: str) -> Stored:
        return replace(super().stored(path), crc32c=None, md5=None)
