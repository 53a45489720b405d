"""Spark's live location in the storage of the checkpoints, which Spark reaches through a connector.

Files are read through the storage's own client, from any host. An object appears whole or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from dagster_ckpt.checkpoint import Identity, StoredSource
from dagster_ckpt.config import LAYOUTS, StateLayout
from dagster_ckpt.filesystem import FileSystem, Part, ServerSide, Stored
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import decoded, parse_query_id

__all__ = ["ListedLocation", "StoredCheckpointLocation", "UnreadableStateFile", "is_state_data", "stored_identity"]

_T = TypeVar("_T")
#: Objects of at most this many bytes are remembered while they exist: mostly logs, which rarely change.
_SMALL = 64 << 10
#: How many bytes of a state file are read first: the names of other files are at its beginning.
_HEAD = 64 << 10


class UnreadableStateFile(Exception):
    """A state file contradicts its name: truncated, another codec or another format version."""


def is_state_data(path: str) -> bool:
    """Whether a file of a checkpointLocation belongs to a state store: ``state/<operator>/<partition>/...``."""
    parts = path.split("/")
    return len(parts) > 3 and parts[0] == "state" and parts[2].isdigit()


class StoredCheckpointLocation(CheckpointLocation):
    """Spark's live location below a directory of a storage.

    Keep one object for the life of a query, as for any checkpointLocation.

    Args:
        filesystem: the storage.
        store: the storage's server-side operations.
        directory: the directory of the location in the storage.
        providers: the state store providers with known files, by class.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        store: ServerSide,
        directory: str,
        providers: Mapping[str, StateLayout] = LAYOUTS,
    ) -> None:
        super().__init__(Path(directory), providers)
        self.filesystem = filesystem
        self.store = store
        self.directory = directory
        #: By path and version, so an entry never becomes wrong.
        self.read_before: dict[tuple[str, str], bytes] = {}
        self.parsed_before: dict[tuple[str, str], Any] = {}

    #: Each look at the location makes two listings, which cost time and money.
    pauses = (0.25, 5.0)

    @property
    def shown(self) -> str:
        return f"{self.filesystem.url}/{self.directory}"

    def query_id(self) -> str | None:
        try:
            return parse_query_id(decoded(self.filesystem.read(f"{self.directory}/metadata"), "metadata"))
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> frozenset[str]:
        return frozenset(entry.name for entry in self.filesystem.list(f"{self.directory}/{directory}"))

    def size(self, where: str) -> int:
        return self.filesystem.size(f"{self.directory}/{where}")

    def text(self, where: str) -> str:
        try:
            return decoded(self.filesystem.read(f"{self.directory}/{where}"), where)
        except FileNotFoundError as error:
            raise self.purged(where) from error

    def listed(self) -> ListedLocation:
        """The location as it is now: a listed object version cannot change, only vanish."""
        return ListedLocation(self)

    def _batches(self, directory: str) -> Sequence[int]:
        # A directory in a bucket has no modification time, so listings are not cached: callers must not ask too often.
        return tuple(int(name) for name in self.names(directory) if name.isdigit())


class ListedLocation(StoredCheckpointLocation):
    """A live location as one listing shows it; reads return the listed versions.

    Args:
        of: the location to list.
    """

    def __init__(self, of: StoredCheckpointLocation) -> None:
        super().__init__(of.filesystem, of.store, of.directory, of.providers)
        self.read_before, self.parsed_before = of.read_before, of.parsed_before
        self.objects = of.store.stored_below(of.directory)
        there = {(path, stored.version) for path, stored in self.objects.items()}
        for known in (self.read_before, self.parsed_before):
            for key in [key for key in known if key not in there]:
                del known[key]
        self._names: dict[str, set[str]] = {}
        for path in self.objects:
            *above, name = PurePosixPath(path).parts
            while above:
                self._names.setdefault("/".join(above), set()).add(name)
                name = above.pop()

    def names(self, directory: str) -> frozenset[str]:
        return frozenset(self._names.get(directory, ()))

    def text(self, where: str) -> str:
        return decoded(self.read(where), where)

    def source(self, path: str) -> StoredSource:
        """An object of the location, pinned by its version.

        Raises:
            CaptureIncomplete: the object is not in the listing.
        """
        if (stored := self.objects.get(path)) is None:
            raise self.purged(path)
        return StoredSource(self.store, f"{self.directory}/{path}", stored)

    def is_small(self, path: str) -> bool:
        """Whether an object that is listed is remembered once it was read."""
        return self.objects[path].size <= _SMALL

    def read(self, path: str) -> bytes:
        """The bytes of an object; a small object is remembered.

        Raises:
            CaptureIncomplete: the object is not in the listing, or has vanished since.
        """
        source = self.source(path)
        key = (path, source.of.version)
        data = self.read_before.get(key)
        if data is None:
            data = source.read()
            if len(data) <= _SMALL:
                self.read_before[key] = data
        return data

    def parsed_head(self, path: str, parse: Callable[[Path], _T]) -> _T:
        """The result of ``parse`` for an object that names other files; reads only its head where that is enough.

        Raises:
            CaptureIncomplete: the object is not in the listing, or has vanished since.
            UnreadableStateFile: the object contradicts its name.
        """
        source = self.source(path)
        key = (path, source.of.version)
        if key not in self.parsed_before:
            self.parsed_before[key] = self._parse(source, parse)
        found: _T = self.parsed_before[key]
        return found

    def _parse(self, source: StoredSource, parse: Callable[[Path], _T]) -> _T:
        with tempfile.TemporaryDirectory(prefix="dagster-ckpt-head-") as scratch:
            # Errors of `parse` show the file's name, so keep it.
            head = Path(scratch) / PurePosixPath(source.path).name
            if source.of.size > _HEAD and not head.name.endswith(".zip"):  # a zip has its file list at the end
                try:
                    head.write_bytes(self.store.read_stored(source.path, source.of.version, Part(0, _HEAD)))
                    return parse(head)
                except (FileNotFoundError, UnreadableStateFile):
                    pass  # the head was not enough: parse the whole object
            head.unlink(missing_ok=True)
            source.fetch(head)
            return parse(head)


def stored_identity(stored: Stored) -> Identity:
    """Identifies one object among all that ever lay at a path."""
    return stored.version, stored.size
