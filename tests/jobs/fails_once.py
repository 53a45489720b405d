"""A storage on which one creation of a file fails, as at a full disk."""

from __future__ import annotations

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem import PosixFileSystem


class FailsOnce(PosixFileSystem):
    """Fails once, when the file whose path ends so is to be created."""

    ends = ""

    def create(self, path: str, data: bytes) -> None:
        if self.ends and path.endswith(self.ends):
            type(self).ends = ""
            raise StorageError("full")
        super().create(path, data)
