"""Storing pinned files in one directory: great ones whole, small ones many to a stored file.

Every name is new, so nothing that is stored already can be hit.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.checkpoint.metadata import FileEntry
from dagster_ckpt.checkpoint.snapshot import PinnedFile
from dagster_ckpt.errors import CheckpointFailure
from dagster_ckpt.filesystem import FileSystem, Written

__all__ = ["DataFiles"]

#: Small files are packed into stored files of at most this size.
MAX_PACK_BYTES = 4 << 20
#: So many packs are in memory at once.
_PACKS = 8


class DataFiles:
    """The data files that one attempt writes.

    Args:
        filesystem: the storage.
        directory: where they go.
        prefix: before every name.
        referred_as: how a manifest refers to ``directory``: ``../shared/``, or nothing for its own directory.
    """

    def __init__(self, filesystem: FileSystem, directory: str, *, prefix: str = "", referred_as: str = "") -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._prefix = prefix
        self._referred_as = referred_as
        self._begun: list[str] = []

    def undo(self) -> None:
        """Delete what was written; what the storage refuses to delete is unreachable and harms nobody."""
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._filesystem.remove(path)

    def write_whole(self, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> list[FileEntry]:
        """Store each file under a name of its own; durable on return.

        Raises:
            Stopped: ``stop()`` became true.
            CheckpointFailure: a pinned file is not what it was.
            StorageError: the storage failed.
        """
        names = [self._new_name(PurePosixPath(file.path).name) for file in files]
        targets = [(f"{self._directory}/{name}", Path(file.local)) for name, file in zip(names, files, strict=True)]
        results = self._write(targets, stop)
        for file, result in zip(files, results, strict=True):
            if result.size != file.size:
                raise _changed(file, result.size)
        return [
            FileEntry(file.path, result.size, result.sha256, reference=f"{self._referred_as}{name}")
            for name, file, result in zip(names, files, results, strict=True)
        ]

    def write_packed(self, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> list[FileEntry]:
        """Store small files, many to one stored file: one ``fsync`` instead of hundreds. Raises as above."""
        entries: list[FileEntry] = []
        packs: list[tuple[str, bytes]] = []
        pack = bytearray()
        name = self._new_name("pack")
        for file in files:
            data = Path(file.local).read_bytes()
            if len(data) != file.size:
                raise _changed(file, len(data))
            if len(pack) + len(data) > MAX_PACK_BYTES:
                packs.append((f"{self._directory}/{name}", bytes(pack)))
                pack, name = bytearray(), self._new_name("pack")
                if len(packs) == _PACKS:
                    self._write(packs, stop)
                    packs = []
            entries.append(
                FileEntry(
                    file.path,
                    len(data),
                    hashlib.sha256(data).hexdigest(),
                    reference=f"{self._referred_as}{name}",
                    offset=len(pack),
                )
            )
            pack += data
        if entries:
            self._write([*packs, (f"{self._directory}/{name}", bytes(pack))], stop)
        return entries

    def _write(self, items: Sequence[tuple[str, Path | bytes]], stop: Callable[[], bool]) -> Sequence[Written]:
        self._begun += [path for path, _ in items]
        return self._filesystem.write_many(items, stop)

    def _new_name(self, suffix: str) -> str:
        return f"{self._prefix}{uuid.uuid4().hex[:12]}-{suffix}"


def _changed(file: PinnedFile, size: int) -> CheckpointFailure:
    return CheckpointFailure(f"{file.path} changed while it was written: {size} bytes instead of {file.size}.")
