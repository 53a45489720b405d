"""Space that is set aside for records without which nothing can be deleted, so that a full disk can be freed."""

from __future__ import annotations

import contextlib
import os

from dagster_ckpt.filesystem.local_disk import is_full
from dagster_ckpt.filesystem.port import FileSystem

__all__ = ["Reserve"]

#: Bytes set aside. The longest record is of a deletion; this many bytes name about 20,000 files.
_SIZE = 1 << 20


class Reserve:
    """A file whose only use is that it can be deleted.

    Args:
        filesystem: the storage.
        path: of the file.
    """

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def keep(self) -> None:
        """Set the space aside. Does nothing if it is set aside already, if the storage is full, or for a bucket."""
        if self._filesystem.is_distant:
            return
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                if self._filesystem.size(self._path) == _SIZE:
                    return
            # Random bytes take their space also on a disk that compresses.
            self._filesystem.replace(self._path, os.urandom(_SIZE))

    def create(self, path: str, data: bytes) -> bool:
        """Create a record as :meth:`FileSystem.create` does; returns whether the reserve was given up for it.

        Raises:
            StorageError: the storage failed, or is full without the reserve, too.
        """
        try:
            self._filesystem.create(path, data)
        except OSError as error:
            if not is_full(error):
                raise
            self._filesystem.remove(self._path)
            self._filesystem.create(path, data)
            return True
        return False
