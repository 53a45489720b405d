"""A directory as a bucket sees itself: what lies in it has versions and is copied by itself.

A real query writes to it as to any directory, so that what is proved of a live location in a bucket needs no connector.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot, vanished
from dagster_ckpt.filesystem import Copy, Part, PosixFileSystem, ServerSide, Stored, crc32c_of
from dagster_ckpt.spark.capture.from_bucket import capture_stored
from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation

__all__ = ["CopyingDirectory", "capture_and_copy"]


class CopyingDirectory(PosixFileSystem, ServerSide):
    """A directory whose files have versions. As in S3, a listing tells no checksum, and a copy does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._directory = root

    @property
    def copies(self) -> ServerSide:
        return self

    def stored(self, path: str) -> Stored:
        return _stored((self._directory / path).stat())

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        root = self._directory / path
        found = {}
        for file in root.rglob("*"):
            try:
                # Hadoop's own checksums are hidden; a bucket has none.
                if file.is_file() and not file.name.startswith("."):
                    found[file.relative_to(root).as_posix()] = _stored(file.stat())
            except FileNotFoundError:
                continue  # deleted while it was listed
        return found

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        with self._pinned(path, version) as reader:
            if part is None:
                return reader.read()
            reader.seek(part.offset)
            return reader.read(part.size)

    def copy(self, copy: Copy) -> Stored:
        target = self._directory / copy.target
        target.parent.mkdir(parents=True, exist_ok=True)
        version = None if copy.of is None else copy.of.version
        with self._pinned(copy.source, version) as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer)
        return replace(self.stored(copy.target), crc32c=crc32c_of(target))

    def remove_below(self, path: str) -> int:
        count = len(self.stored_below(path))
        shutil.rmtree(self._directory / path, ignore_errors=True)
        return count

    def _pinned(self, path: str, version: str | None) -> BinaryIO:
        """What is opened stays what it is, whatever happens to its name."""
        reader = (self._directory / path).open("rb")
        if version is not None and _stored(os.fstat(reader.fileno())).version != version:
            reader.close()
            raise FileNotFoundError(path)
        return reader


def capture_and_copy(location: CheckpointLocation, batch: int, pins: Path) -> Snapshot:
    """Capture a batch and have the directory copy its state, as storing a checkpoint does.

    Raises:
        CaptureIncomplete: something is missing, or was deleted before it was copied.
    """
    assert isinstance(location, StoredCheckpointLocation)
    snapshot = capture_stored(location, batch, pins)
    files = []
    for number, file in enumerate(snapshot.files):
        files.append(file)
        if file.source is not None:
            files[-1] = _copied(file, location, f"copies/{pins.name}/{number}")
    return replace(snapshot, files=tuple(files))


def _copied(file: PinnedFile, location: StoredCheckpointLocation, target: str) -> PinnedFile:
    assert file.source is not None
    try:
        made = location.store.copy(Copy(file.source.path, file.source.of, target))
    except FileNotFoundError as error:
        raise vanished(file.path) from error
    assert made.size == file.size
    return replace(file, local=f"{location.filesystem.url.removeprefix('file://')}/{target}", source=None)


def _stored(status: os.stat_result) -> Stored:
    return Stored(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")
