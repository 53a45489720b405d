"""Reads and copies the files of a checkpoint, and compares each file with the manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import older_than
from dagster_ckpt.checkpoint.format import METADATA_FILE_NAME, CheckpointMetadata, FileEntry
from dagster_ckpt.errors import CheckpointFileChanged, CheckpointFileMissing, CheckpointNotFound, CorruptCheckpoint
from dagster_ckpt.filesystem import (
    Copy,
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
from dagster_ckpt.threads import Threads

__all__ = ["copy_files", "materialize_checkpoint", "read_files", "verify_checkpoint"]

#: Takes the files of a checkpoint, where to, and whom to tell the size of each.
Take: TypeAlias = Callable[[Sequence[FileEntry], Path, Callable[[int], object]], tuple[FileEntry, ...]]

#: Most broken files that one error names.
_MOST_NAMED = 1000
#: How many older checkpoints are looked at for one that does not need the broken files.
_MOST_OLDER = 10
_UNPINNED = (
    "cannot be verified: its bucket told no checksum of it, and it is not the object of version {} any more; it was "
    "written since, or copied to where it is now (only a savepoint can be moved)"
)


@dataclass(frozen=True, slots=True)
class _BrokenFile:
    """A broken file of a checkpoint: the error to raise, the stored file's URL, the file's name, and the fault."""

    error: type[CorruptCheckpoint]
    where: str
    path: str
    what: str


def verify_checkpoint(
    catalog: CheckpointCatalog, metadata: CheckpointMetadata, told: Callable[[int], object] = unheard
) -> None:
    """Read every file of a checkpoint and compare size and checksum.

    ``told`` is called with the size of each file, on several threads.

    Raises:
        CheckpointNotFound: the checkpoint was deleted meanwhile.
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
    """
    _read(catalog, metadata, None, told)


def materialize_checkpoint(
    catalog: CheckpointCatalog,
    metadata: CheckpointMetadata,
    target: Path,
    told: Callable[[int], object] = unheard,
    take: Take | None = None,
) -> None:
    """Write every file of a checkpoint below the new directory ``target`` (0700), and verify each file on the way.

    Args:
        catalog: of the job.
        metadata: the checkpoint.
        target: does not exist yet.
        told: is called with the size of each file, on several threads.
        take: moves the files that are on this machine already to where they belong, and returns the others; ``None``
            where there are no such files.

    Raises:
        CheckpointNotFound: the checkpoint was deleted meanwhile.
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
    """
    target.mkdir(mode=0o700, parents=True)
    for directory in {(target / file.path).parent for file in metadata.files}:
        directory.mkdir(parents=True, exist_ok=True)
    files = metadata.files if take is None else take(metadata.files, target, told)
    _read(catalog, replace(metadata, files=files), target, told)


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
    """The error for a checkpoint with broken files, with what to do.

    Raises:
        CheckpointNotFound: nothing is broken, but the checkpoint was deleted meanwhile.
    """
    if _is_deleted(catalog, metadata):
        raise CheckpointNotFound(
            f"{metadata.reference} of {catalog.job_name} was deleted while its files were read.",
            hint="A running job deletes checkpoints that its retention does not keep. To keep one, use `dagster-ckpt "
            f"pin {catalog.job_name} latest {catalog.filesystem.path_option}`.",
        )
    count = f"{len(broken)} of its {len(metadata.files)} files are broken: " if len(broken) > 1 else ""
    named = "; ".join(f"{item.where} ({item.path}) {item.what}" for item in broken[:_MOST_NAMED])
    more = f"; and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
    error = broken[0].error(
        f"{metadata.name} of {catalog.job_name} cannot be restored: {count}{named}{more}.",
        hint=_other_than(catalog, metadata, {item.path for item in broken}),
    )
    error.checkpoint = metadata.reference
    return error


def _is_deleted(catalog: CheckpointCatalog, metadata: CheckpointMetadata) -> bool:
    """Whether a checkpoint that was there is deleted: a deletion removes the manifest before every other file."""
    if metadata.location is not None:
        return all(entry.name != METADATA_FILE_NAME for entry in catalog.storage_of(metadata).list(""))
    try:
        catalog.load(metadata.job_id, metadata.checkpoint_id, named=True)
    except CheckpointNotFound:
        return True
    except CorruptCheckpoint:
        return False
    return False


def _other_than(catalog: CheckpointCatalog, metadata: CheckpointMetadata, broken: Collection[str]) -> str:
    """What to do when these files of ``metadata`` are broken, with exact commands."""
    needed = {file for file in metadata.files if file.path in broken and file.reference is not None}
    before = 0
    for before, other in enumerate(islice(older_than(catalog, metadata), _MOST_OLDER), start=1):
        if metadata.location is None and other.job_id == metadata.job_id and not needed.isdisjoint(other.files):
            continue
        between = "; what is between needs the broken files, too" if before > 1 else ""
        return (
            f"To go back to an older one, launch the job with restore_from: {other.reference} "
            f"(batch {other.batch} instead of {metadata.batch}{between}); "
            f"check it first with `dagster-ckpt verify {catalog.job_name} {other.reference} "
            f"{catalog.filesystem.path_option}`."
        )
    if not before:
        return "There is no older checkpoint. Put the file back from a backup, or start over with restore_from: none."
    return (
        "Older checkpoints need the broken files, too. Put the files back from a backup, see which checkpoint is sound "
        f"with `dagster-ckpt verify {catalog.job_name} {catalog.filesystem.path_option}`, or start over with "
        "restore_from: none."
    )


def copy_files(
    catalog: CheckpointCatalog,
    store: ServerSide,
    metadata: CheckpointMetadata,
    files: Sequence[FileEntry],
    directory: str,
    told: Callable[[int], object] = unheard,
) -> list[Stored]:
    """Have the bucket copy files that it had copied for a checkpoint; returns what each copy is.

    The bytes stay in the bucket. Each copy is compared by size and CRC32C (and MD5, where the bucket knows it) with
    the manifest. A file without a checksum in the manifest is copied only if it is still the very object that was
    written for the checkpoint.

    Args:
        catalog: of the job.
        store: the job's bucket.
        metadata: the checkpoint.
        files: the checkpoint's files that the bucket had copied for it.
        directory: where the copies go.
        told: is called with the size of each file, on several threads.

    Raises:
        CheckpointNotFound: the checkpoint was deleted meanwhile.
        CheckpointFileMissing: a file is gone; every broken file is named.
        CheckpointFileChanged: a file is not what was written; every broken file is named.
        StorageError: the storage failed.
    """

    def copied(file: FileEntry) -> Stored | _BrokenFile:
        path = catalog.stored_path(metadata, file.reference or "")
        where = f"{catalog.filesystem.url}/{path}"
        # The version is checked only where there is no checksum: otherwise a job's directory can be copied elsewhere,
        # and still restores.
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
    with Threads(min(store.concurrency, len(files)), "dagster-ckpt-copy") as pool:
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
    """Read files in parallel; returns the broken ones, in the order of ``files``.

    A stored file that contains many files is read once.

    Args:
        storage: the storage of the files.
        files: the files to read.
        stored_path: returns the path in ``storage`` that a file's reference leads to.
        target: the directory to write the files to, with all its subdirectories; ``None`` to compare only.
        told: is called with the size of each file that has been read, on several threads.

    Raises:
        StorageError: the storage failed.
        WorkingDirectoryFailed: the disk of ``target`` did not take the files.
    """
    alone = [file for file in files if file.reference is not None and file.offset is None]
    packs: dict[str, list[FileEntry]] = {}
    for file in files:
        if file.reference is not None and file.offset is not None:
            packs.setdefault(file.reference, []).append(file)
    broken: dict[str, _BrokenFile | None] = {}

    def read_one(file: FileEntry) -> None:
        path = stored_path(file.reference or "")
        part = _part_of(file)
        try:
            if file.stored is not None:
                read_copied(file, file.stored, path)
                told(file.size)
                return
            found = storage.checksum(path, part) if target is None else storage.fetch(path, target / file.path, part)
        except FileNotFoundError:
            if target is not None and not (target / file.path).parent.is_dir():
                raise  # the stored file is there, but the target directory is gone
            broken[file.path] = _gone(file, f"{storage.url}/{path}")
        else:
            broken[file.path] = _compared(file, found, f"{storage.url}/{path}")
            told(file.size)

    def read_copied(file: FileEntry, stored: Stored, path: str) -> None:
        """Check a file that its bucket had copied. It has no SHA-256, so it is fetched whole for its CRC32C or MD5."""
        if not stored.has_checksum:
            broken[file.path] = _brought_as_pinned(storage, file, stored, path, target)
            return
        with contextlib.ExitStack() as stack:
            local = stack.enter_context(scratch.file(file.size)) if target is None else target / file.path
            storage.fetch(path, local)
            # One checksum is enough; each further one would read the file again.
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
            broken[file.path] = _compared(file, Written.of(content), f"{storage.url}/{path}")
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

    with _named_if_local(files, target), Scratch() as scratch:
        for file in files:
            if file.inline is not None:
                broken[file.path] = _compared(file, Written.of(file.inline), "_metadata")
                if target is not None:
                    (target / file.path).write_bytes(file.inline)
                told(file.size)
        with Threads(storage.concurrency, "dagster-ckpt-read") as pool:
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


def _part_of(file: FileEntry) -> Part | None:
    """What to read of the stored file that holds ``file``.

    Of a stored file that holds nothing else one byte more than there should be, so that a file that has grown is found:
    to ask for the size first would take a bucket a request more for each file.
    """
    if file.offset is not None:
        return Part(file.offset, file.size)
    return Part(0, file.size + 1) if file.size else None


def _gone(file: FileEntry, where: str) -> _BrokenFile:
    """The entry for a file that is not where it was stored."""
    return _BrokenFile(CheckpointFileMissing, where, file.path, "is gone")


def _changed(file: FileEntry, size: int, where: str) -> _BrokenFile:
    """The entry for a file that holds other bytes, ``size`` of them."""
    what = f"has {size} bytes instead of {file.size}" if size != file.size else "was changed"
    return _BrokenFile(CheckpointFileChanged, where, file.path, what)


def _compared_copy(file: FileEntry, found: Stored, where: str) -> _BrokenFile | None:
    """What is wrong with a file that its bucket had copied; ``None`` when nothing is."""
    if file.stored is None or found.is_copy_of(file.stored):
        return None
    return _changed(file, found.size, where)


def _unpinned(store: ServerSide | None, file: FileEntry, path: str, where: str) -> _BrokenFile | None:
    """What is wrong with a file that is known by its version only: the bucket has no such version any more.

    Raises:
        FileNotFoundError: the file is gone.
    """
    if file.stored is None or (store is not None and store.stored(path).is_still(file.stored)):
        return None
    return _BrokenFile(CheckpointFileChanged, where, file.path, _UNPINNED.format(file.stored.version))


def _brought_as_pinned(
    storage: FileSystem, file: FileEntry, stored: Stored, path: str, target: Path | None
) -> _BrokenFile | None:
    """Fetch a file that is known by its version only; returns what is wrong with it.

    Raises:
        FileNotFoundError: the file is gone.
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
    return _changed(file, found.size, where)
