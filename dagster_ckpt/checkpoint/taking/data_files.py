"""Stores pinned files in one directory: large files whole, small files packed together.

Every name is new, so no stored file can be overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.checkpoint.format import FileEntry, PinnedFile, StoredSource, vanished
from dagster_ckpt.checkpoint.taking.progress import Gauge
from dagster_ckpt.errors import CheckpointFailure
from dagster_ckpt.filesystem import Copy, FileSystem, Scratch, ServerSide, Stopped, Written
from dagster_ckpt.threads import Threads

__all__ = ["DataFiles"]

#: Small files are packed into stored files of at most this size.
MAX_PACK_BYTES = 4 << 20
#: Most packs in memory at once.
_PACKS = 8


class DataFiles:
    """The data files that one checkpoint or savepoint attempt writes.

    Args:
        filesystem: the storage.
        directory: where the files go.
        prefix: begins every name.
        referred_as: how a manifest refers to ``directory``: ``../shared/``, or empty for the manifest's own directory.
        storing: measures the progress.
    """

    def __init__(
        self, filesystem: FileSystem, directory: str, storing: Gauge, *, prefix: str = "", referred_as: str = ""
    ) -> None:
        self._filesystem = filesystem
        self._storing = storing
        self._directory = directory
        self._prefix = prefix
        self._referred_as = referred_as
        self._begun: list[str] = []

    def undo(self) -> None:
        """Delete the written files. A file that the storage refuses to delete is unreachable and does no harm."""
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._filesystem.remove(path)

    def write_whole(self, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> list[FileEntry]:
        """Store each file under its own name; durable on return. The bucket copies objects that it already has.

        Raises:
            Stopped: ``stop()`` became true.
            CaptureIncomplete: a pinned object was deleted or replaced in its bucket.
            CheckpointFailure: a pinned file has changed.
            StorageError: the storage failed.
        """
        store = self._filesystem.copies
        copied = {} if store is None else self._copy(store, files, stop)
        left = [file for file in files if file.path not in copied]
        here = [file for file in left if file.source is None]
        # Pinned objects go first, because they may vanish.
        carried = self._carry([(file, file.source) for file in left if file.source is not None], stop)
        return [*copied.values(), *carried, *self._write_whole(here, stop)]

    def _copy(self, store: ServerSide, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> dict[str, FileEntry]:
        """Have the bucket copy those of ``files`` that it has."""
        names: dict[str, str] = {}
        copies: list[Copy] = []
        for file in files:
            if file.source is not None and file.source.copies is store:
                name = names[file.path] = self._new_name(PurePosixPath(file.path).name)
                copies.append(Copy(file.source.path, file.source.of, f"{self._directory}/{name}"))
        self._begun += [copy.target for copy in copies]
        try:
            made = store.copy_many(copies, self._looking(stop), self._storing.add)
        except FileNotFoundError as error:
            raise vanished(str(error)) from error
        return {
            path: FileEntry(path, stored.size, None, reference=f"{self._referred_as}{name}", stored=stored)
            for (path, name), stored in zip(names.items(), made, strict=True)
        }

    def _carry(self, files: Sequence[tuple[PinnedFile, StoredSource]], stop: Callable[[], bool]) -> list[FileEntry]:
        """Store files of another bucket through this machine's disk, which may be too small for all of them at once."""
        if not files:
            return []
        asked = self._looking(stop)
        failures: list[BaseException] = []

        def carry(source: StoredSource, target: str) -> Written:
            try:
                with scratch.file(source.of.size, given_up) as local:
                    source.fetch(local, given_up)
                    written = self._filesystem.write(target, local, given_up)
                self._storing.add(written.size)
            except BaseException as error:
                failures.append(error)
                raise
            return written

        def given_up() -> bool:
            # After one failure the other transfers stop, so that the failure is reported at once.
            return bool(failures) or asked()

        names = [self._new_name(PurePosixPath(file.path).name) for file, _ in files]
        targets = [f"{self._directory}/{name}" for name in names]
        self._begun += targets
        with Scratch() as scratch, Threads(min(self._filesystem.concurrency, len(files)), "dagster-ckpt-carry") as pool:
            written = [pool.submit(carry, source, target) for (_, source), target in zip(files, targets, strict=True)]
        if failures:
            raise failures[0]  # the other transfers stopped because of it
        self._filesystem.sync_directories([self._directory])
        return self._entries([file for file, _ in files], names, [future.result() for future in written])

    def _write_whole(self, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> list[FileEntry]:
        names = [self._new_name(PurePosixPath(file.path).name) for file in files]
        targets = [(f"{self._directory}/{name}", Path(file.local)) for name, file in zip(names, files, strict=True)]
        return self._entries(files, names, self._write(targets, stop))

    def _entries(
        self, files: Sequence[PinnedFile], names: Sequence[str], results: Sequence[Written]
    ) -> list[FileEntry]:
        for file, result in zip(files, results, strict=True):
            if result.size != file.size:
                raise _changed(file, result.size)
        return [
            FileEntry(file.path, result.size, result.sha256, reference=f"{self._referred_as}{name}")
            for name, file, result in zip(names, files, results, strict=True)
        ]

    def write_packed(self, files: Sequence[PinnedFile], stop: Callable[[], bool]) -> list[FileEntry]:
        """Pack small files into few stored files: one ``fsync`` instead of hundreds. Raises as :meth:`write_whole`."""
        entries: list[FileEntry] = []
        packs: list[tuple[str, bytes]] = []
        pack = bytearray()
        name = self._new_name("pack")
        asked = self._looking(stop)
        for file in files:
            if asked():  # reading a file may be a request to a bucket
                raise Stopped
            data = file.read()
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
        return self._filesystem.write_many(items, self._looking(stop), self._storing.add)

    def _looking(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """``stop``, extended to report progress: it is called between any two pieces of a file."""

        def asked() -> bool:
            self._storing.look()
            return stop()

        return asked

    def _new_name(self, suffix: str) -> str:
        return f"{self._prefix}{uuid.uuid4().hex[:12]}-{suffix}"


def _changed(file: PinnedFile, size: int) -> CheckpointFailure:
    return CheckpointFailure(f"{file.path} changed while it was written: {size} bytes instead of {file.size}.")
