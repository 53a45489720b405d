"""A storage of a user's: not a directory, as far as anybody outside can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_ckpt.filesystem import Entry, FileSystem, Part, PosixFileSystem, Written


class Vault(FileSystem):
    def __init__(self, root: str, login: Mapping[str, Any] | None = None) -> None:
        self._root = root
        self.login = login
        self._inner = PosixFileSystem(Path(root))

    def __reduce__(self) -> tuple[type[Vault], tuple[str]]:
        return (Vault, (self._root,))

    @property
    def url(self) -> str:
        return f"vault://{self._root}"

    def create(self, path: str, data: bytes) -> None:
        self._inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._inner.replace(path, data)

    def write(self, path: str, source: Path | bytes, stop: Callable[[], bool]) -> Written:
        return self._inner.write(path, source, stop)

    def sync_directories(self, paths: Iterable[str]) -> None:
        self._inner.sync_directories(paths)

    def read(self, path: str) -> bytes:
        return self._inner.read(path)

    def fetch(self, path: str, target: Path, part: Part | None = None) -> Written:
        return self._inner.fetch(path, target, part)

    def checksum(self, path: str, part: Part | None = None) -> Written:
        return self._inner.checksum(path, part)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def list(self, path: str) -> Sequence[Entry]:
        return self._inner.list(path)

    def remove(self, path: str) -> None:
        self._inner.remove(path)

    def remove_directory(self, path: str) -> None:
        self._inner.remove_directory(path)
