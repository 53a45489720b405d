"""Savepoints: self-contained checkpoints in a directory that the user owns, deleted only on request.

``{savepoint_path}/savepoint-{6 hex of the job id}-{12 random hex}/`` holds every file of the savepoint. ``_metadata``
is written last and marks the savepoint as complete, as for a checkpoint. A savepoint refers to nothing outside its
directory, so the directory can be moved.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dagster_ckpt.checkpoint.catalog import (
    CheckpointCatalog,
    give_name,
    gone_with_name,
    materialize_checkpoint,
    new_savepoint_directory,
    savepoint_token,
)
from dagster_ckpt.checkpoint.control import NO_LABEL, Choice, Label, Pin
from dagster_ckpt.checkpoint.format import (
    METADATA_FILE_NAME,
    SAVEPOINT,
    SAVEPOINT_DIR_PREFIX,
    CheckpointMetadata,
    FileEntry,
    FileName,
    JobId,
    Line,
    PinnedFile,
    Snapshot,
    encode_record,
    read_record,
)
from dagster_ckpt.checkpoint.taking.data_files import DataFiles
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress, Gauge
from dagster_ckpt.checkpoint.taking.shared_files import DEFAULT_INLINE_THRESHOLD, MAX_INLINE_BYTES, inline_entry
from dagster_ckpt.clock import Clock, iso
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFailure,
    CheckpointNotFound,
    CorruptCheckpoint,
    Fenced,
    InvalidConfiguration,
    PublishConflict,
    PublishUnknown,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, Stopped, is_full, open_filesystem, scratch_directory, unheard

__all__ = [
    "claim_savepoint",
    "claimed_savepoint",
    "copy_to_savepoint",
    "dispose_claimed",
    "dispose_savepoint",
    "give_up_claimed",
    "write_savepoint",
]

_log = logging.getLogger(__name__)
_NAME = re.compile(rf"{SAVEPOINT_DIR_PREFIX}[0-9a-f]{{6}}-[0-9a-f]{{12}}")
_DISPOSING = "_disposing"
_CLAIMED = "_claimed"
_GIVEN_UP = "the job deletes this savepoint, which it has claimed"


@dataclass(frozen=True, slots=True)
class _Claimed:
    """The lineage that may delete the savepoint: recorded in the savepoint's directory when a user has it claimed.

    A record in the job's storage alone does not permit the deletion, because a savepoint can be anywhere.
    """

    job_name: Line
    job_id: JobId


@dataclass(frozen=True, slots=True)
class _Disposal:
    """The names in a savepoint's directory that a disposal deletes beside ``_metadata``."""

    files: tuple[FileName, ...]


def write_savepoint(
    storage: FileSystem,
    job_id: str,
    snapshot: Snapshot,
    describe: Callable[[tuple[FileEntry, ...]], CheckpointMetadata],
    storing: Gauge,
    *,
    inline_threshold: int = DEFAULT_INLINE_THRESHOLD,
    stop: Callable[[], bool] = lambda: False,
    seal: Callable[[CheckpointMetadata], object] = unheard,
    new_token: Callable[[], str] = savepoint_token,
) -> CheckpointMetadata:
    """Write a snapshot as a savepoint into a new directory below ``storage``; durable and visible on return.

    Args:
        storage: the user's directory for savepoints.
        job_id: the lineage, whose first 6 digits are in the directory's name.
        snapshot: the data to save; the caller releases it.
        describe: makes the manifest from the entries of all files.
        storing: measures the progress.
        inline_threshold: files of at most this many bytes are kept in ``_metadata``, 1 MiB in all.
        stop: asked while data is written.
        seal: called with the savepoint before the publish; an exception prevents the publish.
        new_token: makes the random part of the name.

    Raises:
        Stopped: ``stop()`` became true.
        CheckpointFailure: a pinned file has changed.
        StorageError: the storage failed. In all these cases the written files are deleted again as far as the storage
            allows, unless the outcome of the publish is unknown, as it is to an interrupt that comes during the
            publish; without ``_metadata`` they are no savepoint.
    """
    directory = new_savepoint_directory(storage, job_id, new_token)
    files = DataFiles(storage, directory, storing)
    storing.begin(snapshot.size)
    is_undone = True
    try:
        metadata = describe(_store(files, snapshot, inline_threshold, stop))
        manifest, placed = metadata.encode(), replace(metadata, location=f"{storage.url}/{directory}")
        seal(placed)
        is_undone = False  # from here on the outcome may be unknown, to an interrupt too: nothing is deleted on a guess
        try:
            storage.create(f"{directory}/{METADATA_FILE_NAME}", manifest)
        except OSError as error:
            is_undone = not isinstance(error, PublishUnknown)
            raise
        return placed
    finally:
        if is_undone:
            files.undo()
            with contextlib.suppress(OSError):
                storage.remove_directory(directory)


def copy_to_savepoint(
    catalog: CheckpointCatalog,
    checkpoint: CheckpointMetadata,
    storage: FileSystem,
    clock: Clock,
    tell: Callable[[CheckpointInProgress], object] = unheard,
    label: Label = NO_LABEL,
) -> CheckpointMetadata:
    """Make a savepoint of a completed checkpoint, for a job that does not run.

    The savepoint keeps the id and epoch of the checkpoint, because the state is the same. All bytes pass through this
    machine's temporary directory and are verified on the way.

    Args:
        catalog: the job's checkpoints.
        checkpoint: the checkpoint.
        storage: the user's directory for savepoints.
        clock: wall and monotonic time.
        tell: called with the progress if copying is slow.
        label: what the savepoint is called.

    Raises:
        SavepointFailed: another savepoint has the name.
        CorruptCheckpoint: the checkpoint is not what was written.
        CheckpointFailure: a file changed on the way.
        StorageError: the storage failed.
    """
    began = clock.monotonic()
    triggered_at = iso(clock.time())

    def describe(entries: tuple[FileEntry, ...]) -> CheckpointMetadata:
        for entry, original in zip(entries, checkpoint.files, strict=True):
            # A file that a bucket had copied has no SHA-256; its CRC32C, MD5 or version was compared when it was read.
            if original.sha256 is not None and entry.sha256 != original.sha256:
                raise CheckpointFailure(f"{original.path} of {checkpoint.name} changed while it was copied.")
        return replace(
            checkpoint,
            kind=SAVEPOINT,
            triggered_at=triggered_at,
            written_at=iso(clock.time()),
            timings_ms={"write": round((clock.monotonic() - began) * 1000, 3)},
            new_bytes=sum(entry.size for entry in entries),
            files=entries,
            location=None,
            given_name=label.name,
            note=label.note,
        )

    if label.name is not None:
        gone_with_name(catalog, label.name)  # look before anything is copied
    with scratch_directory() as scratch:
        local = scratch / "files"
        materialize_checkpoint(catalog, checkpoint, local)
        pinned = tuple(PinnedFile(file.path, str(local / file.path), file.size) for file in checkpoint.files)
        snapshot = Snapshot(checkpoint.batch, pinned, checkpoint.facts, checkpoint.sink, lambda: None)
        storing = Gauge.of_checkpoint(checkpoint.checkpoint_id, clock, tell)
        name_it = partial(give_name, catalog, series=label.series)
        return write_savepoint(storage, checkpoint.job_id, snapshot, describe, storing, seal=name_it)


def dispose_savepoint(storage: FileSystem, directory: str) -> Sequence[str]:
    """Delete a savepoint. The files to delete are recorded first, so that an interrupted disposal can be finished.

    Args:
        storage: the file system.
        directory: the savepoint's directory in ``storage``.

    Returns:
        names in the directory that are not of the savepoint; these files and the directory are still there.

    Raises:
        CheckpointNotFound: there is no savepoint.
        InvalidConfiguration: the directory holds a checkpoint, which its job's retention deletes.
        CorruptMetadata: the savepoint's ``_metadata`` cannot be trusted.
        StorageError: the storage failed; dispose of the savepoint again.
    """
    record = f"{directory}/{_DISPOSING}"
    disposal = read_record(storage, record, _Disposal, place=_DISPOSING)
    if disposal is None and not _is_left_over(storage, directory):
        disposal = _Disposal(tuple(_names_of_savepoint(storage, directory)))
        _record_disposal(storage, directory, disposal)
    if disposal is not None:
        # As with a checkpoint, the manifest goes first, so that nobody can restore a half-deleted savepoint.
        storage.remove(f"{directory}/{METADATA_FILE_NAME}")
        storage.sync_directories([directory])
        for name in disposal.files:
            storage.remove(f"{directory}/{name}")
        storage.sync_directories([directory])
        storage.remove(record)
    unknown = sorted(entry.name for entry in storage.list(directory))
    if not unknown:
        storage.remove_directory(directory)
    return unknown


def _record_disposal(storage: FileSystem, directory: str, disposal: _Disposal) -> None:
    """Record which files go; on a full disk some or all of them go first, while ``_metadata`` still names them.

    Until the record is there, another disposal finds the names in ``_metadata``, and a restore finds a file missing.
    """
    record = encode_record(disposal, _DISPOSING)
    for name in (*disposal.files, _DISPOSING):
        try:
            storage.create(f"{directory}/{_DISPOSING}", record)
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return
        if name != _CLAIMED:
            storage.remove(f"{directory}/{name}")


def claim_savepoint(savepoint: CheckpointMetadata, job_id: str, *, like: FileSystem) -> None:
    """Permit a lineage of the savepoint's job to delete the savepoint; durable on return.

    Raises:
        StorageError: the savepoint's directory cannot be written to.
    """
    storage, name = _place_of(savepoint.reference, like)
    storage.replace(f"{name}/{_CLAIMED}", encode_record(_Claimed(savepoint.job_name, job_id), _CLAIMED))
    storage.sync_directories([name])


def claimed_savepoint(catalog: CheckpointCatalog, choice: Choice) -> CheckpointMetadata | None:
    """The savepoint that a lineage may delete, if it is still there. Finishes an interrupted disposal."""
    location = choice.claimed
    if location is None:
        return None
    try:
        savepoint = catalog.resolve(location)
        storage, name = _place_of(location, catalog.filesystem)
        claimed = read_record(storage, f"{name}/{_CLAIMED}", _Claimed, place=_CLAIMED)
        if claimed == _Claimed(catalog.job_name, choice.job_id):
            return savepoint
        _log.warning(
            "Savepoint %s is left alone: nothing in its directory says that lineage %s of %s may delete it. "
            "`dagster-ckpt dispose` deletes it.",
            location,
            choice.job_id,
            catalog.job_name,
        )
    except CheckpointNotFound:
        dispose_claimed(location, like=catalog.filesystem)
        for pin in catalog.records.pins.all():
            if pin.reason == _GIVEN_UP:  # a run was killed between the deletion and the removal of its pin
                catalog.records.pins.remove(pin)
    except CorruptCheckpoint as error:
        _log.warning("The claimed savepoint %s cannot be read and is left alone: %s", location, error.message)
    return None


def dispose_claimed(location: str, *, like: FileSystem) -> bool:
    """Delete a savepoint that its lineage or series no longer needs; ``False`` when that must be tried again."""
    try:
        dispose_savepoint(*_place_of(location, like))
    except CheckpointNotFound:
        return True
    except (CheckpointError, OSError) as error:
        _log.warning("The savepoint %s could not be deleted and will be tried again: %s", location, error)
        return False
    return True


def give_up_claimed(catalog: CheckpointCatalog, claimed: CheckpointMetadata, epoch: int, clock: Clock) -> bool:
    """Delete a savepoint that the caller's lineage has claimed; ``False`` when that must be tried again.

    A rollback that goes back to the savepoint holds its pin until the job has chosen: then the savepoint stays.
    """
    pins = catalog.records.pins
    pin = Pin.alone(claimed.job_id, claimed.checkpoint_id, _GIVEN_UP, iso(clock.time()))
    try:
        try:
            pins.add(pin)
        except StorageError as error:
            full = is_full(error)  # the deletion makes room
            if not full and not isinstance(error, PublishConflict):
                raise
            holder = pins.held(pin)
            # A run that was killed while it deleted the savepoint has left the pin.
            if not full if holder is None else holder.reason != _GIVEN_UP:
                return False
        # Under the pin: a rollback lets go of the pin only when its run has taken the job over.
        catalog.records.epochs.check(epoch)
        is_deleted = dispose_claimed(claimed.reference, like=catalog.filesystem)
        pins.remove(pin)
    except Fenced:
        pins.remove(pin)
        raise
    except (CheckpointError, OSError) as error:
        _log.warning("The savepoint %s could not be deleted and will be tried again: %s", claimed.reference, error)
        return False
    return is_deleted


def _place_of(location: str, like: FileSystem) -> tuple[FileSystem, str]:
    """The file system above a savepoint's directory, and the directory's name."""
    parent, _, name = location.rstrip("/").rpartition("/")
    return open_filesystem(parent, like=like), name


def _names_of_savepoint(storage: FileSystem, directory: str) -> list[str]:
    where = f"{storage.url}/{directory}"
    data = storage.read_if_there(f"{directory}/{METADATA_FILE_NAME}")
    if data is None:
        raise CheckpointNotFound(
            f"Cannot find meta data file '_metadata' in directory '{where}': there is no savepoint to dispose of.",
            hint="Name the directory of a savepoint. An incomplete savepoint, without _metadata, can be deleted by "
            "hand.",
        )
    metadata = CheckpointMetadata.decode(data, f"{where}/{METADATA_FILE_NAME}")
    if metadata.kind != SAVEPOINT:
        raise InvalidConfiguration(
            f"{where} is {metadata.name} of job {metadata.job_name!r} and no savepoint: other checkpoints may need its "
            "files.",
            hint="Checkpoints are deleted by their job's retention; `dagster-ckpt retention` shows what "
            f"that of {metadata.job_name} would delete.",
        )
    return sorted({*metadata.references, _CLAIMED})


def _is_left_over(storage: FileSystem, directory: str) -> bool:
    """Whether this is the empty directory of a savepoint, left by a disposal that was interrupted before its end."""
    parent, _, name = directory.rpartition("/")
    return (
        _NAME.fullmatch(name) is not None
        and any(entry.name == name and entry.is_directory for entry in storage.list(parent))
        and not storage.list(directory)
    )


def _store(
    files: DataFiles, snapshot: Snapshot, inline_threshold: int, stop: Callable[[], bool]
) -> tuple[FileEntry, ...]:
    entries: dict[str, FileEntry] = {}
    whole: list[PinnedFile] = []
    packed: list[PinnedFile] = []
    inline_bytes = 0
    for file in snapshot.files:
        if stop():  # reading a small file may be a request to a bucket
            raise Stopped
        if file.size > inline_threshold:
            whole.append(file)
        elif inline_bytes + file.size > MAX_INLINE_BYTES:
            packed.append(file)
        else:
            entries[file.path] = inline_entry(file.path, file.read())
            inline_bytes += file.size
    for entry in [*files.write_whole(whole, stop), *files.write_packed(packed, stop)]:
        entries[entry.path] = entry
    return tuple(entries[file.path] for file in snapshot.files)
