"""Reading the files of a checkpoint, each compared with what its manifest says."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.checkpoint.format.manifest import FileEntry
from dagster_ckpt.errors import CheckpointFileChanged, CheckpointFileMissing, CorruptCheckpoint
from dagster_ckpt.filesystem import (
    FileSystem,
    Part,
    Scratch,
    ServerSide,
    Stored,
    Written,
    crc32c_of,
    md5_of,
    refused_write,
    unheard,
)

__all__ = ["BrokenFile", "compared_copy", "gone", "read_files", "unpinned"]

_UNPINNED = (
    "cannot be verified: its store told no checksum of it, and it is not the object of version {} any more; it was "
    "written since, or copied to where it is now (what can be moved is a savepoint)"
)


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file of a checkpoint that is not what was written: with which error, stored where, which, and what it is."""

    error: type[CorruptCheckpoint]
    where: str
    path: str
    what: str


def read_files(
    storage: FileSystem,
    files: Sequence[FileEntry],
    stored_path: Callable[[str], str],
    target: Path | None,
    told: Callable[[int], object] = unheard,
) -> list[BrokenFile]:
    """Read files side by side; those that are broken, in the order of ``files``.

    A stored file that has many of them is read once.

    Args:
        storage: where they are stored.
        files: what is to be read.
        stored_path: tells where in ``storage`` a reference of theirs leads.
        target: the directory below which each is written; it has their directories already. ``None`` to compare only.
        told: is told the size of each file that has been read, on several threads.

    Raises:
        StorageError: the storage failed.
        WorkingDirectoryFailed: the disk of ``target`` did not take what was read.
    """
    alone = [file for file in files if file.reference is not None and file.offset is None]
    packs: dict[str, list[FileEntry]] = {}
    for file in files:
        if file.reference is not None and file.offset is not None:
            packs.setdefault(file.reference, []).append(file)
    broken: dict[str, BrokenFile | None] = {}
    scratch = Scratch("verify")

    def read_one(file: FileEntry) -> None:
        path = stored_path(file.reference or "")
        part = None if file.offset is None else Part(file.offset, file.size)
        try:
            if file.stored is not None:
                read_copied(file, file.stored, path)
                told(file.size)
                return
            found = storage.checksum(path, part) if target is None else storage.fetch(path, target / file.path, part)
        except FileNotFoundError:
            if target is not None and not (target / file.path).parent.is_dir():
                raise  # not the stored file is gone, but the directory that it was to be written to
            broken[file.path] = gone(file, f"{storage.url}/{path}")
        else:
            broken[file.path] = _compared(file, found, f"{storage.url}/{path}")
            told(file.size)

    def read_copied(file: FileEntry, stored: Stored, path: str) -> None:
        """One that its store had copied has no SHA-256: it is brought here whole, and its CRC32C or MD5 taken."""
        if not stored.has_checksum:
            broken[file.path] = _brought_as_pinned(storage, file, stored, path, target)
            return
        with contextlib.ExitStack() as stack:
            local = stack.enter_context(scratch.file(file.size)) if target is None else target / file.path
            storage.fetch(path, local)
            # One checksum is enough, and each reads the file once more.
            md5 = md5_of(local) if stored.crc32c is None else None
            found = Stored(local.stat().st_size, stored.version, crc32c_of(local), md5)
        broken[file.path] = compared_copy(file, found, f"{storage.url}/{path}")

    def read_pack(reference: str) -> None:
        path = stored_path(reference)
        try:
            data = memoryview(storage.read(path))
        except FileNotFoundError:
            for file in packs[reference]:
                broken[file.path] = gone(file, f"{storage.url}/{path}")
            return
        for file in packs[reference]:
            begin = file.offset or 0
            content = bytes(data[begin : begin + file.size])
            broken[file.path] = _compared(file, _written(content), f"{storage.url}/{path}")
            if target is not None:
                (target / file.path).write_bytes(content)
            told(file.size)

    def read(item: FileEntry | str) -> None:
        if isinstance(item, FileEntry):
            read_one(item)
        elif len(packs[item]) == 1:
            read_one(packs[item][0])
        else:
            read_pack(item)

    with _named_if_local(files, target):
        for file in files:
            if file.inline is not None:
                broken[file.path] = _compared(file, _written(file.inline), "_metadata")
                if target is not None:
                    (target / file.path).write_bytes(file.inline)
                told(file.size)
        with ThreadPoolExecutor(storage.concurrency, "dagster-ckpt-read") as pool:
            list(pool.map(read, [*alone, *packs]))
    return [item for file in files if (item := broken.get(file.path)) is not None]


@contextlib.contextmanager
def _named_if_local(files: Sequence[FileEntry], target: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        size = sum(file.size for file in files)
        failure = None if target is None else refused_write(error, target, size)
        if failure is None:
            raise
        raise failure from error


def gone(file: FileEntry, where: str) -> BrokenFile:
    """That a file is not where it was stored."""
    return BrokenFile(CheckpointFileMissing, where, file.path, "is gone")


def compared_copy(file: FileEntry, found: Stored, where: str) -> BrokenFile | None:
    """What is wrong with a file that its store had copied."""
    if file.stored is None or found.is_copy_of(file.stored):
        return None
    what = f"has {found.size} bytes instead of {file.size}" if found.size != file.size else "was changed"
    return BrokenFile(CheckpointFileChanged, where, file.path, what)


def unpinned(store: ServerSide | None, file: FileEntry, path: str, where: str) -> BrokenFile | None:
    """What is wrong with a file of which nothing is known but its version, and that no store has under that any more.

    Raises:
        FileNotFoundError: it is gone.
    """
    if file.stored is None or (store is not None and store.stored(path).is_still(file.stored)):
        return None
    return BrokenFile(CheckpointFileChanged, where, file.path, _UNPINNED.format(file.stored.version))


def _brought_as_pinned(
    storage: FileSystem, file: FileEntry, stored: Stored, path: str, target: Path | None
) -> BrokenFile | None:
    """Bring a file here of which nothing is known but its version; what is wrong with it.

    Raises:
        FileNotFoundError: it is gone.
    """
    where, store = f"{storage.url}/{path}", storage.copies
    found = unpinned(store, file, path, where)
    if found is not None or store is None:
        return found
    if target is not None and not store.fetch_stored(path, stored, target / file.path):
        return BrokenFile(CheckpointFileChanged, where, file.path, "came with another size")
    return None


def _compared(file: FileEntry, found: Written, where: str) -> BrokenFile | None:
    if (found.size, found.sha256) == (file.size, file.sha256):
        return None
    what = f"has {found.size} bytes instead of {file.size}" if found.size != file.size else "was changed"
    return BrokenFile(CheckpointFileChanged, where, file.path, what)


def _written(data: bytes) -> Written:
    return Written(len(data), hashlib.sha256(data).hexdigest())
