"""Reading and copying the files of a checkpoint, each compared with what its manifest says."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import older_than
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.errors import CheckpointFileChanged, CheckpointFileMissing, CorruptCheckpoint
from dagster_ckpt.filesystem import Copy, FileSystem, Part, ServerSide, Stored, Written
from dagster_ckpt.filesystem.bounds import Scratch
from dagster_ckpt.filesystem.local_disk import refused_write
from dagster_ckpt.filesystem.port import unheard
from dagster_ckpt.filesystem.server_side import crc32c_of, md5_of

__all__ = ["copy_files", "materialize_checkpoint", "read_files", "verify_checkpoint"]

#: Broken files that are named in one error.
_MOST_NAMED = 1000
_UNPINNED = (
    "cannot be verified: its store told no checksum of it, and it is not the object of version {} any more; it was "
    "written since, or copied to where it is now (what can be moved is a savepoint)"
)


@dataclass(frozen=True, slots=True)
class _BrokenFile:
    """A file of a checkpoint that is not what was written: with which error, stored where, which, and what it is."""

    error: type[CorruptCheckpoint]
    where: str
    path: str
    what: str


def verify_checkpoint(catalog: CheckpointCatalog, metadata: CheckpointMetadata) -> None:
    """Read every file of a checkpoint and compare size and checksum.

    Raises:
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
    """
    _read(catalog, metadata, None)


def materialize_checkpoint(
    catalog: CheckpointCatalog, metadata: CheckpointMetadata, target: Path, told: Callable[[int], object] = unheard
) -> None:
    """Write every file of a checkpoint below the new directory ``target`` (0700), verifying it on the way.

    ``told`` is told the size of each, on several threads.

    Raises:
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
    """
    target.mkdir(mode=0o700, parents=True)
    for directory in {(target / file.path).parent for file in metadata.files}:
        directory.mkdir(parents=True, exist_ok=True)
    _read(catalog, metadata, target, told)


def _read(
    catalog: CheckpointCatalog,
    metadata: CheckpointMetadata,
    target: Path | None,
    told: Callable[[int], object] = unheard,
) -> None:
    located = partial(catalog.stored_path, metadata)
    if broken := read_files(catalog.storage_of(metadata), metadata.files, located, target, told):
        raise _refusal(catalog, metadata, broken)


def _refusal(
    catalog: CheckpointCatalog, metadata: CheckpointMetadata, broken: Sequence[_BrokenFile]
) -> CorruptCheckpoint:
    """That a checkpoint cannot be restored because these files of it are broken, and the ways on."""
    count = f"{len(broken)} of its {len(metadata.files)} files are broken: " if len(broken) > 1 else ""
    named = "; ".join(f"{item.where} ({item.path}) {item.what}" for item in broken[:_MOST_NAMED])
    more = f"; and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
    error = broken[0].error(
        f"{metadata.name} of {catalog.job_name} cannot be restored: {count}{named}{more}.",
        hint=_other_than(catalog, metadata),
    )
    error.checkpoint = metadata.reference
    return error


def _other_than(catalog: CheckpointCatalog, metadata: CheckpointMetadata) -> str:
    """The exact ways on when ``metadata`` cannot be used."""
    other = next(older_than(catalog, metadata), None)
    if other is None:
        return "There is no older checkpoint. Put the file back from a backup, or start over with restore_from: none."
    return (
        f"To go back to the one before, launch the job with restore_from: {other.reference} "
        f"(batch {other.batch} instead of {metadata.batch}); "
        f"check it first with `dagster-ckpt verify {catalog.job_name} {other.reference} "
        f"--path {catalog.filesystem.url}`."
    )


def copy_files(
    catalog: CheckpointCatalog,
    store: ServerSide,
    metadata: CheckpointMetadata,
    files: Sequence[FileEntry],
    directory: str,
    told: Callable[[int], object] = unheard,
) -> list[Stored]:
    """Copy files that the store had copied for a checkpoint: the store copies them again; what each copy is.

    The bytes stay in the store. Each copy is compared by size and CRC32C (and MD5, where the store knows it) with what
    the manifest says. A file of which the manifest has no checksum is copied only if it is the very object that was
    written for the checkpoint.

    Args:
        catalog: of the job.
        store: its storage.
        metadata: the checkpoint.
        files: those of its files that the store had copied for it.
        directory: where they go.
        told: is told the size of each, on several threads.

    Raises:
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
        StorageError: the storage failed.
    """

    def copied(file: FileEntry) -> Stored | _BrokenFile:
        path = catalog.stored_path(metadata, file.reference or "")
        where = f"{catalog.filesystem.url}/{path}"
        # Only where nothing else is known of the version on record: else a job's directory can be copied elsewhere, and
        # still restores.
        pinned = None if file.stored is None or file.stored.has_checksum else file.stored
        try:
            if pinned is not None and (broken := _unpinned(store, file, path, where)) is not None:
                return broken
            made = store.copy(Copy(path, pinned, f"{directory}/{file.path}"))
        except FileNotFoundError:
            return _gone(file, where)
        told(file.size)
        return _compared_copy(file, made, where) or made

    if not files:
        return []
    with ThreadPoolExecutor(min(store.concurrency, len(files)), "dagster-ckpt-copy") as pool:
        found = list(pool.map(copied, files))
    if broken := [item for item in found if isinstance(item, _BrokenFile)]:
        raise _refusal(catalog, metadata, broken)
    return [item for item in found if isinstance(item, Stored)]


def read_files(
    storage: FileSystem,
    files: Sequence[FileEntry],
    stored_path: Callable[[str], str],
    target: Path | None,
    told: Callable[[int], object] = unheard,
) -> list[_BrokenFile]:
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
    broken: dict[str, _BrokenFile | None] = {}
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
            broken[file.path] = _gone(file, f"{storage.url}/{path}")
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
        broken[file.path] = _compared_copy(file, found, f"{storage.url}/{path}")

    def read_pack(reference: str) -> None:
        path = stored_path(reference)
        try:
            data = memoryview(storage.read(path))
        except FileNotFoundError:
            for file in packs[reference]:
                broken[file.path] = _gone(file, f"{storage.url}/{path}")
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


def _gone(file: FileEntry, where: str) -> _BrokenFile:
    """That a file is not where it was stored."""
    return _BrokenFile(CheckpointFileMissing, where, file.path, "is gone")


def _compared_copy(file: FileEntry, found: Stored, where: str) -> _BrokenFile | None:
    """What is wrong with a file that its store had copied."""
    if file.stored is None or found.is_copy_of(file.stored):
        return None
    what = f"has {found.size} bytes instead of {file.size}" if found.size != file.size else "was changed"
    return _BrokenFile(CheckpointFileChanged, where, file.path, what)


def _unpinned(store: ServerSide | None, file: FileEntry, path: str, where: str) -> _BrokenFile | None:
    """What is wrong with a file of which nothing is known but its version, and that no store has under that any more.

    Raises:
        FileNotFoundError: it is gone.
    """
    if file.stored is None or (store is not None and store.stored(path).is_still(file.stored)):
        return None
    return _BrokenFile(CheckpointFileChanged, where, file.path, _UNPINNED.format(file.stored.version))


def _brought_as_pinned(
    storage: FileSystem, file: FileEntry, stored: Stored, path: str, target: Path | None
) -> _BrokenFile | None:
    """Bring a file here of which nothing is known but its version; what is wrong with it.

    Raises:
        FileNotFoundError: it is gone.
    """
    where, store = f"{storage.url}/{path}", storage.copies
    found = _unpinned(store, file, path, where)
    if found is not None or store is None:
        return found
    if target is not None and not store.fetch_stored(path, stored, target / file.path):
        return _BrokenFile(CheckpointFileChanged, where, file.path, "came with another size")
    return None


def _compared(file: FileEntry, found: Written, where: str) -> _BrokenFile | None:
    if (found.size, found.sha256) == (file.size, file.sha256):
        return None
    what = f"has {found.size} bytes instead of {file.size}" if found.size != file.size else "was changed"
    return _BrokenFile(CheckpointFileChanged, where, file.path, what)


def _written(data: bytes) -> Written:
    return Written(len(data), hashlib.sha256(data).hexdigest())
