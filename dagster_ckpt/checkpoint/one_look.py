"""The records of a job as one look sees them, with as few requests as a distant storage allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from dagster_ckpt.checkpoint.format import CONTROL_DIR
from dagster_ckpt.filesystem import Entry, FileSystem, Part, Written

__all__ = ["OneLook"]


class OneLook(FileSystem):
    """A storage that is asked for each listing and each record once, and never for what a listing lacks.

    Only for a look that changes nothing. Whoever finds something missing looks again without it: another process may
    have changed the records between two of the requests.

    Args:
        storage: that is looked at.
        job_name: of the job; what its ``control`` directory has is listed first.
    """

    def __init__(self, storage: FileSystem, job_name: str) -> None:
        self._storage, self._control = storage, f"{job_name}/{CONTROL_DIR}"
        self._listed: dict[str, Sequence[Entry]] = {}
        self._read: dict[str, bytes | None] = {}
        self.is_durable, self.is_distant = storage.is_durable, storage.is_distant
        self.concurrency = storage.concurrency

    def know(
        self, *, listed: Mapping[str, Sequence[Entry]] | None = None, read: Mapping[str, bytes | None] | None = None
    ) -> None:
        """Take what somebody else has asked the storage for: directories and what they have, files and their bytes."""
        self._listed |= listed or {}
        self._read |= read or {}

    @property
    def url(self) -> str:
        """That of the storage."""
        return self._storage.url

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """Those of the storage."""
        return self._storage.storage_options

    def list(self, path: str) -> Sequence[Entry]:
        """The names in one directory, as they were when they were asked for first."""
        if path not in self._listed:
            self._listed[path] = () if self._is_missing(path) else self._storage.list(path)
        return self._listed[path]

    def read_if_there(self, path: str) -> bytes | None:
        """All bytes of one file as they were when they were asked for first, ``None`` for a missing file."""
        if path not in self._read:
            self._read[path] = None if self._is_missing(path) else self._storage.read_if_there(path)
        return self._read[path]

    def _is_missing(self, path: str) -> bool:
        """Whether the listing of a directory above it lacks it."""
        if path.startswith(f"{self._control}/"):
            self.list(self._control)
        above = [PurePosixPath(path), *PurePosixPath(path).parents]
        return any(
            str(directory) in self._listed and all(entry.name != below.name for entry in self._listed[str(directory)])
            for below, directory in pairwise(above)
        )

    def read(self, path: str) -> bytes:
        """As of the storage, and so is what follows."""
        return self._storage.read(path)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        return self._storage.fetch(path, target, part)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        return self._storage.checksum(path, part)

    def size(self, path: str) -> int:
        return self._storage.size(path)

    def create(self, path: str, data: bytes) -> None:
        self._storage.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._storage.replace(path, data)

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        return self._storage.write(path, source, stop)

    def sync_directories(self, paths: Iterable[str]) -> None:
        self._storage.sync_directories(paths)

    def remove(self, path: str) -> None:
        self._storage.remove(path)

    def remove_directory(self, path: str) -> None:
        self._storage.remove_directory(path)
