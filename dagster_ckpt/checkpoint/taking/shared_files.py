"""The files that checkpoints share: which are stored already, which are in use, and storing new ones.

A file is shared by name *and* content, because Spark may write other bytes under a name that it has used before. The
stored file in ``shared/`` has its own name, which is never used again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.checkpoint.format import (
    CHECKPOINT_SHARED_STATE_DIR,
    CheckpointMetadata,
    FileEntry,
    Identity,
    PinnedFile,
    Snapshot,
)
from dagster_ckpt.checkpoint.taking.compaction import mostly_dead
from dagster_ckpt.checkpoint.taking.data_files import DataFiles
from dagster_ckpt.checkpoint.taking.progress import Gauge
from dagster_ckpt.errors import CheckpointFailure
from dagster_ckpt.filesystem import FileSystem, Part, Stopped, Stored, Written

__all__ = ["DEFAULT_INLINE_THRESHOLD", "MAX_INLINE_BYTES", "SharedFiles"]

#: Inline bytes in one ``_metadata`` never exceed this, whatever the threshold for one file.
MAX_INLINE_BYTES = 1 << 20
DEFAULT_INLINE_THRESHOLD = 20 * 1024


class SharedFiles:
    """The shared files of one lineage, as one epoch knows them. Thread-safe.

    Args:
        filesystem: the storage.
        directory: ``{job name}/{job id}/shared``.
        epoch: the writer's epoch, part of every new name.
        inline_threshold: files of at most this many bytes are small: small files that do not recur are kept in
            ``_metadata`` (1 MiB in all), other small files are packed together.
        verified: a checkpoint whose files have all just been read and found sound; a savepoint is ignored, because its
            files are not shared.
        max_state_size: if set, every file is kept in ``_metadata``, and no file may have more bytes than this; ``None``
            to store files separately.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        epoch: int,
        inline_threshold: int,
        verified: CheckpointMetadata | None,
        max_state_size: int | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._max_state_size = max_state_size
        self._shared = directory
        self._epoch = epoch
        self._inline_threshold = inline_threshold
        self._lock = threading.RLock()
        #: The completed checkpoints, by identity: no manifest ever changes.
        self._retained: dict[int, CheckpointMetadata] = {}
        #: How many completed checkpoints have each stored file, and how many of these files each stored name holds.
        self._uses: Counter[FileEntry] = Counter()
        self._names: Counter[str] = Counter()
        self._in_flight: dict[int, frozenset[str]] = {}
        self._written: dict[int, DataFiles] = {}
        self._by_identity: dict[tuple[str, Identity], FileEntry] = {}
        self._by_content: dict[tuple[str, int], dict[str, FileEntry]] = {}
        self._pack_sizes: dict[str, int] = {}
        self._sound = {
            (file.reference, file.offset)
            for file in (verified.files if verified is not None and verified.location is None else ())
            if file.reference is not None
        }

    def retain(self, checkpoints: Sequence[CheckpointMetadata]) -> None:
        """Set the completed checkpoints; a new checkpoint may share only their files.

        Only the difference from the completed checkpoints before is gone through.
        """
        with self._lock:
            before, self._retained = self._retained, {id(metadata): metadata for metadata in checkpoints}
            self._use([metadata for key, metadata in self._retained.items() if key not in before])
            for key, metadata in before.items():
                if key not in self._retained:
                    self._forget(metadata)
            self._by_identity = {
                key: entry
                for key, entry in self._by_identity.items()
                if entry.reference is None or _name_of(entry.reference) in self._names
            }

    def _use(self, checkpoints: Sequence[CheckpointMetadata]) -> None:
        # Manifests share most of their entries, and counting a number is cheaper than counting a tuple.
        entries = {id(file): file for metadata in checkpoints for file in metadata.files}
        counts = Counter(id(file) for metadata in checkpoints for file in metadata.files)
        for key, file in entries.items():
            if file.reference is None:
                continue
            if file not in self._uses:
                self._names[_name_of(file.reference)] += 1
                if (content := _content_of(file)) is not None:
                    self._by_content.setdefault((file.path, file.size), {})[content] = file
            self._uses[file] += counts[key]

    def _forget(self, metadata: CheckpointMetadata) -> None:
        for file in metadata.files:
            if file.reference is None:
                continue
            self._uses[file] -= 1
            if self._uses[file]:
                continue
            del self._uses[file]
            alike, content = self._by_content.get((file.path, file.size), {}), _content_of(file)
            if content is not None and alike.get(content) == file:
                del alike[content]
                if not alike:
                    del self._by_content[file.path, file.size]
            name = _name_of(file.reference)
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
                self._pack_sizes.pop(file.reference, None)

    def remember(self, snapshot: Snapshot, entries: Sequence[FileEntry]) -> None:
        """Remember the files of a completed checkpoint of ``snapshot``: unchanged ones need not be read again."""
        with self._lock:
            self._by_identity = {
                (file.path, file.identity): entry
                for file, entry in zip(snapshot.files, entries, strict=True)
                if file.identity is not None
            }

    def in_use(self) -> frozenset[str]:
        """The names in ``shared/`` that a completed checkpoint or a checkpoint attempt needs."""
        with self._lock:
            return frozenset(self._names).union(*(map(_name_of, names) for names in self._in_flight.values()))

    def release(self, number: int) -> None:
        """Note that a checkpoint attempt is over: only if it completed, its files stay in use."""
        with self._lock:
            self._in_flight.pop(number, None)
            self._written.pop(number, None)

    def undo(self, number: int) -> None:
        """Delete the files of a failed checkpoint attempt. A file that cannot be deleted is unreachable: no harm."""
        if (files := self._written.get(number)) is not None:
            files.undo()

    def store(
        self, number: int, snapshot: Snapshot, stop: Callable[[], bool], storing: Gauge
    ) -> tuple[tuple[FileEntry, ...], int]:
        """Store the files that no retained checkpoint has, and the live files of packs that are mostly dead.

        Returns the entries of all files, and the bytes that were written. Until :meth:`release` for the same
        ``number``, no file that the entries refer to may be deleted. ``storing`` measures the progress.

        Raises:
            Stopped: ``stop()`` became true.
            CheckpointFailure: a pinned file has changed, or is larger than the state may be.
            StorageError: the storage failed.
        """
        if self._max_state_size is not None:
            return self._all_inline(snapshot, self._max_state_size, stop)
        entries: dict[str, FileEntry] = {}
        to_write: list[PinnedFile] = []
        # Each name contains the epoch, so that a sweep spares the files of newer epochs.
        files = self._written[number] = DataFiles(
            self._filesystem,
            self._shared,
            storing,
            prefix=f"{self._epoch:06}-",
            referred_as=f"../{CHECKPOINT_SHARED_STATE_DIR}/",
        )
        inline_bytes = 0
        with self._lock:
            for file in snapshot.files:
                known = self._known(file)
                if known is not None and known.reference is not None:
                    entries[file.path] = known
            # In use from before the first decision to reuse a file until the publish: a subsumption that runs
            # meanwhile must not delete a file that this attempt is going to refer to.
            self._in_flight[number] = frozenset(
                entry.reference for entry in entries.values() if entry.reference is not None
            )
        to_pack: list[PinnedFile] = []
        for file in snapshot.files:
            if file.path in entries:
                continue
            small = file.size <= self._inline_threshold
            if small and not file.recurs and inline_bytes + file.size <= MAX_INLINE_BYTES:
                entries[file.path] = self._inline(file)
                inline_bytes += file.size
            elif (same := self._same_content(number, file)) is not None:
                entries[file.path] = same
            else:
                # An object that its bucket copies is not packed, because packing would download its bytes.
                (to_pack if small and file.source is None else to_write).append(file)
        for file in self._moved(entries, snapshot):
            (to_pack if file.source is None else to_write).append(file)
        storing.begin(sum(file.size for file in [*to_write, *to_pack]))
        new_bytes = inline_bytes
        for entry in [
            *files.write_whole(to_write, stop),
            *files.write_packed(to_pack, stop),
        ]:
            entries[entry.path] = entry
            new_bytes += entry.size
        self._remember_packs(entries[file.path] for file in to_pack)
        return tuple(entries[file.path] for file in snapshot.files), new_bytes

    def _moved(self, entries: Mapping[str, FileEntry], snapshot: Snapshot) -> list[PinnedFile]:
        """The files of ``snapshot`` that are stored in mostly dead packs."""
        packs = {entry.reference for entry in entries.values() if entry.reference and entry.offset is not None}
        with self._lock:
            sizes: dict[str, int | None] = {pack: size for pack, size in self._pack_sizes.items() if pack in packs}
        unknown = sorted(packs - sizes.keys())
        found = self._filesystem.size_many([f"{self._shared}/{PurePosixPath(pack).name}" for pack in unknown])
        asked = dict(zip(unknown, found, strict=True))
        with self._lock:
            self._pack_sizes.update((pack, size) for pack, size in asked.items() if size is not None)
        dead = mostly_dead(entries.values(), sizes | asked)
        return [file for file in snapshot.files if file.path in entries and entries[file.path].reference in dead]

    def _remember_packs(self, packed: Iterable[FileEntry]) -> None:
        """Remember the sizes of new packs, which contain exactly these files."""
        sizes: Counter[str] = Counter()
        for entry in packed:
            sizes[entry.reference or ""] += entry.size
        with self._lock:
            self._pack_sizes.update(sizes)

    def _all_inline(
        self, snapshot: Snapshot, max_state_size: int, stop: Callable[[], bool]
    ) -> tuple[tuple[FileEntry, ...], int]:
        entries, new_bytes = [], 0
        for file in snapshot.files:
            if stop():
                raise Stopped
            if file.size > max_state_size:
                raise CheckpointFailure(
                    "Size of the state is larger than the maximum permitted memory-backed state. "
                    f"Size={file.size}, maxSize={max_state_size} ({file.path}).",
                    hint="Consider using a different checkpoint storage, like the FileSystemCheckpointStorage, "
                    "or raise max_state_size.",
                )
            with self._lock:
                known = self._known(file)
            entries.append(known or self._inline(file))
            new_bytes += 0 if known else file.size
        return tuple(entries), new_bytes

    def _known(self, file: PinnedFile) -> FileEntry | None:
        """The retained entry of this very file."""
        return None if file.identity is None else self._by_identity.get((file.path, file.identity))

    def _inline(self, file: PinnedFile) -> FileEntry:
        return self._known(file) or inline_entry(file.path, file.read())

    def _same_content(self, number: int, file: PinnedFile) -> FileEntry | None:
        """The retained entry of the same name and content: needed after a restart, when identities are unknown."""
        with self._lock:
            if (file.path, file.size) not in self._by_content:
                return None
        content = file_sha256(file) if file.source is None else _md5_of(file.source.of)
        if content is None:
            return None
        with self._lock:
            known = self._by_content.get((file.path, file.size), {}).get(content)
            if known is None or known.reference is None:
                return None
            self._in_flight[number] |= {known.reference}
        return known if self._is_sound(known) else None

    def _is_sound(self, entry: FileEntry) -> bool:
        """Whether a stored file matches its manifest; the file is read once, unless this run restored it.

        A new checkpoint must not inherit the damage of an old one.
        """
        place = (entry.reference or "", entry.offset)
        if place not in self._sound:
            part = None if entry.offset is None else Part(entry.offset, entry.size)
            path = f"{self._shared}/{PurePosixPath(place[0]).name}"
            try:
                if not self._is_as_written(path, part, entry):
                    return False
            except OSError:
                return False
            self._sound.add(place)
        return True

    def _is_as_written(self, path: str, part: Part | None, entry: FileEntry) -> bool:
        if entry.stored is None:
            return self._filesystem.checksum(path, part) == Written(entry.size, entry.sha256 or "")
        # Only the bucket's own checksums are compared, because the bucket tells them without a read.
        store = self._filesystem.copies
        return store is not None and store.stored(path).is_same_content(entry.stored)

    def know(self, files: Iterable[tuple[FileEntry, Identity]]) -> None:
        """Remember that live objects were copied from stored files, so that they need not be copied back.

        Stored files that no retained checkpoint of this lineage has are ignored.

        Args:
            files: each stored file's entry, with the identity of the live object copied from it.
        """
        with self._lock:
            for entry, identity in files:
                if entry in self._uses:
                    self._by_identity[entry.path, identity] = entry


def _name_of(reference: str) -> str:
    """The name in ``shared/`` of a stored file."""
    return reference.rpartition("/")[2]


def _content_of(entry: FileEntry) -> str | None:
    """A digest that identifies the content of a stored file; CRC32C alone is too short to identify it."""
    return entry.sha256 if entry.stored is None else _md5_of(entry.stored)


def _md5_of(stored: Stored) -> str | None:
    return None if stored.md5 is None else f"md5:{stored.md5}"


def file_sha256(file: PinnedFile) -> str:
    """SHA-256 of a pinned file's bytes."""
    with Path(file.local).open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def inline_entry(path: str, data: bytes) -> FileEntry:
    """A file kept in ``_metadata`` itself."""
    return FileEntry(path, len(data), hashlib.sha256(data).hexdigest(), inline=data)
